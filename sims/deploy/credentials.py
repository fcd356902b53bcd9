"""Loads and checks the keys, certificates and registry (list of clients) of a server or client, before it
connects. The registry is signed by an authority. This must not be the server, which could enrol clients that
it controls. Under `curious_server` no message is signed: the registry only lists who may connect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secagg.errors import SERVER, CertificateError, Peer, SecaggError
from secagg.hand_over import HandOver
from secagg.identity_registry import Registry, verify_registry
from secagg.keys import Identity
from secagg.net.certificates import certificate_key, check_dates, expiry
from secagg.net.identity_and_registry_files import (
    REGISTRY,
    hand_over_path,
    old_path,
    older_path,
    read_bundle,
    read_certificate,
    read_hand_overs,
    read_key,
    read_registry,
)
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ClientSection, DeploySection, ServeFileServer


@dataclass(frozen=True)
class KeyPair:
    """A private key and its certificate, as PEM. Two are equal if their certificates are."""

    identity: Identity = field(repr=False, compare=False)
    certificate: bytes


@dataclass(frozen=True)
class OwnCredentials:
    """The identity of a server or client, its certificate as PEM, the registry of clients, and the key of the
    authority that signed it. `hand_overs` lead from earlier keys to this one."""

    identity: Identity = field(repr=False, compare=False)  # the certificate has its public key
    certificate: bytes
    registry: Registry
    authority: bytes
    hand_overs: tuple[HandOver, ...]


@dataclass(frozen=True)
class ServerCredentials(OwnCredentials):
    clients: Mapping[int, bytes]  # client -> certificate
    signed: bytes  # the file of the registry
    previous: KeyPair | None  # which `secagg keygen --renew` has kept


@dataclass(frozen=True)
class ClientCredentials(OwnCredentials):
    server: bytes  # the certificate of the server
    other: KeyPair | None  # a new key, which the registry does not list yet, or an earlier certificate


def server_credentials(
    section: ServeFileServer | DeploySection, problems: Problems, *, now: int, name: str = "server"
) -> ServerCredentials | None:
    """Read the server's identity, certificate and registry, and the clients' certificates. Return None if a
    file is unusable. Add all problems to `problems`, also those of usable files. `now` is Unix time, and
    `name` is the table of the configuration that names the files."""
    own = _own(section, name, problems, now)
    registry, authority = _registry(section, name, problems, now)
    hand_overs = _hand_overs(section, SERVER, name, problems)
    clients = signed = None
    if registry is not None and authority is not None:
        with problems.about(f"{name}.registry"):
            clients = read_bundle(section.registry, registry)
            signed = REGISTRY.read(section.registry)
            if verify_registry(signed, authority=authority) != registry:
                raise ConfigError(f"{section.registry} was changed while it was read; try again")
    if own is not None:
        _check_server(own.identity.public, section.key, f"{name}.key", registry, authority, problems)
    if own is None or registry is None or authority is None or clients is None or signed is None:
        return None
    previous = _old_pair(section, now)
    return ServerCredentials(
        own.identity, own.certificate, registry, authority, hand_overs, clients, signed, previous
    )


def client_credentials(section: ClientSection, problems: Problems, *, now: int) -> ClientCredentials | None:
    """Read the client's identity, certificate and registry, and the server's certificate. If the registry
    lists an old key that `secagg keygen --renew` has kept, this one is used, and the new one later. Return
    None if a file is unusable. Add all problems to `problems`, also those of usable files. `now` is Unix
    time."""
    registry, authority = _registry(section, "client", problems, now)
    own, new = _listed_pair(section, registry, problems, now)
    if own is not None and registry is not None:
        with problems.about("client.member"):
            _check_member(section, own.identity.public, registry)
    hand_overs = _hand_overs(section, section.member, "client", problems)
    key, server = "client.server_certificate", None
    with problems.about(key):
        server = _certificate(section.server_certificate, now)
    if server is not None:
        _check_server(certificate_key(server), section.server_certificate, key, registry, authority, problems)
    if own is None or registry is None or authority is None or server is None:
        return None
    return ClientCredentials(own.identity, own.certificate, registry, authority, hand_overs, server, new)


def newest_pair(section: ServeFileServer | DeploySection | ClientSection, *, now: int) -> KeyPair:
    """Return the key and certificate that the files hold now. Raise `SecaggError` if they are unusable, or do
    not belong together."""
    problems = Problems(section.key)
    own = _own(section, "files", problems, now)
    problems.check()
    assert own is not None
    return own


def _listed_pair(
    section: ClientSection, registry: Registry | None, problems: Problems, now: int
) -> tuple[KeyPair | None, KeyPair | None]:
    """Return the client's pair that the registry lists, and another one that it may have to use: a newer key,
    or an earlier certificate of the same key. If it lists none, return the pair in the files, if any."""
    listed = None if registry is None else registry.members.get(section.member)
    old = _old_pair(section, now)
    if listed is not None and (old is None or old.identity.public != listed):
        old = _kept_pair(older_path(section.key, listed), older_path(section.certificate, listed), now)
    if old is not None and old.identity.public == listed:
        try:
            new = newest_pair(section, now=now)
        except SecaggError:
            return old, None  # secagg keygen --renew has not written all files yet
        return (new, old) if new.identity.public == listed else (old, new)
    return _own(section, "client", problems, now), None


def _old_pair(section: ServeFileServer | DeploySection | ClientSection, now: int) -> KeyPair | None:
    """Return the pair that was in the files before the last `secagg keygen --renew`, as `_kept_pair` does."""
    return _kept_pair(old_path(section.key), old_path(section.certificate), now)


def _kept_pair(key: Path, certificate_file: Path, now: int) -> KeyPair | None:
    """Return a pair that `secagg keygen --renew` has kept; None if there is none, or it cannot be used."""
    try:
        identity, certificate = read_key(key), _certificate(certificate_file, now)
    except SecaggError:
        return None
    return KeyPair(identity, certificate) if certificate_key(certificate) == identity.public else None


def _hand_overs(
    section: ServeFileServer | DeploySection | ClientSection, owner: Peer, name: str, problems: Problems
) -> tuple[HandOver, ...]:
    usual = hand_over_path(section.key)
    path = usual if section.hand_over is None else section.hand_over
    with problems.about(f"{name}.hand_over"):
        # Beside the key, there is no file before its first renewal. Another name would not be given in vain.
        if path != usual and not os.path.exists(path):
            raise ConfigError(f"{path} does not exist; correct the path, or remove the key hand_over")
        return read_hand_overs(path, owner)
    return ()


# --- parts ------------------------------------------------------------------------------------------


def _own(
    section: ServeFileServer | DeploySection | ClientSection, name: str, problems: Problems, now: int
) -> KeyPair | None:
    """Return a server's or client's own key and certificate. Add a problem and return None if one is
    unusable, or if they do not belong together."""
    identity = certificate = None
    with problems.about(f"{name}.key"):
        identity = read_key(section.key)
    with problems.about(f"{name}.certificate"):
        certificate = _certificate(section.certificate, now)
    if identity is None or certificate is None:
        return None
    if certificate_key(certificate) == identity.public:
        return KeyPair(identity, certificate)
    problems.add(
        f"{name}.certificate",
        f"{section.certificate} belongs to another key than the private key in {section.key}; secagg keygen "
        "makes the two together",
    )
    return None


def _certificate(path: Path, now: int) -> bytes:
    certificate = read_certificate(path)
    try:
        check_dates(certificate, now=now)
    except CertificateError as error:
        # A certificate that is not yet valid suggests that a clock is wrong.
        early = expiry(certificate) > now
        what = "is the clock right?" if early else "its owner makes a new one with secagg keygen"
        raise ConfigError(f"{path} is {error}; {what}") from None
    return certificate


def _registry(
    section: ServeFileServer | DeploySection | ClientSection, name: str, problems: Problems, now: int
) -> tuple[Registry | None, bytes | None]:
    """Return the registry, and the public key of the authority that must have signed it. Add a problem if one
    is unusable, and return None in its place. Without the key, both are None."""
    authority = None
    with problems.about(f"{name}.authority"):
        authority = certificate_key(read_certificate(section.authority))
    if authority is None:
        return None, None
    with problems.about(f"{name}.registry"):
        return read_registry(section.registry, section.authority, now), authority
    return None, authority


def _check_server(
    key: bytes, path: Path, name: str, registry: Registry | None, authority: bytes | None, problems: Problems
) -> None:
    if key == authority:
        problems.add(
            name,
            f"{path} is the authority's own: the registry must be signed by a party other than the server",
        )
    elif registry is not None and key in registry.members.values():
        problems.add(name, f"{path} is that of a client: the server needs an identity of its own")


def _check_member(section: ClientSection, public: bytes, registry: Registry) -> None:
    member = section.member
    if registry.members.get(member) == public:
        return
    enrolled = [other for other, key in registry.members.items() if key == public]
    if enrolled:
        raise ConfigError(f"the key in {section.key} is enrolled as member {enrolled[0]}, not {member}")
    if member in registry.members:
        raise ConfigError(
            f"{section.registry} lists member {member} with another key than the one in {section.key}; "
            "correct the path, or have the authority enrol the new key"
        )
    raise ConfigError(f"{section.registry} has no member {member}; have the authority enrol it")
