"""Loads and checks the keys, certificates and registry (list of clients) of a server or client, before it
connects. The registry is signed by an authority. This must not be the server, which could enrol clients that
it controls. Under `curious_server` no message is signed: the registry only lists who may connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secagg.errors import CertificateError
from secagg.identity_registry import MAX_ID, Registry
from secagg.keys import Identity
from secagg.net.certificates import certificate_key, check_dates, expiry
from secagg.net.identity_and_registry_files import read_bundle, read_certificate, read_key, read_registry
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ClientSection, DeploySection, ServeFileServer


@dataclass(frozen=True)
class OwnCredentials:
    """The identity of a server or client, its certificate as PEM, and the registry of clients."""

    identity: Identity = field(repr=False)
    certificate: bytes
    registry: Registry


@dataclass(frozen=True)
class ServerCredentials(OwnCredentials):
    clients: Mapping[int, bytes]  # client -> certificate


@dataclass(frozen=True)
class ClientCredentials(OwnCredentials):
    server: bytes  # the certificate of the server


def server_credentials(
    section: ServeFileServer | DeploySection, problems: Problems, *, now: int, name: str = "server"
) -> ServerCredentials | None:
    """Read the server's identity, certificate and registry, and the clients' certificates. Return None if a
    file is unusable. Add all problems to `problems`, also those of usable files. `now` is Unix time, and
    `name` is the table of the configuration that names the files."""
    own = _own(section, name, problems, now)
    registry, authority = _registry(section, name, problems, now)
    clients = None
    if registry is not None:
        with problems.about(f"{name}.registry"):
            clients = read_bundle(section.registry, registry)
    if own is not None:
        _check_server(own.identity.public, section.key, f"{name}.key", registry, authority, problems)
    if own is None or registry is None or clients is None:
        return None
    return ServerCredentials(own.identity, own.certificate, registry, clients)


def client_credentials(section: ClientSection, problems: Problems, *, now: int) -> ClientCredentials | None:
    """Read the client's identity, certificate and registry, and the server's certificate. Return None if a
    file is unusable. Add all problems to `problems`, also those of usable files. `now` is Unix time."""
    own = _own(section, "client", problems, now)
    registry, authority = _registry(section, "client", problems, now)
    if own is not None and registry is not None:
        with problems.about("client.member"):
            _check_member(section, own.identity.public, registry)
    key, server = "client.server_certificate", None
    with problems.about(key):
        server = _certificate(section.server_certificate, now)
    if server is not None:
        _check_server(certificate_key(server), section.server_certificate, key, registry, authority, problems)
    if own is None or registry is None or server is None:
        return None
    return ClientCredentials(own.identity, own.certificate, registry, server)


# --- parts ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Own:
    identity: Identity = field(repr=False)
    certificate: bytes


def _own(
    section: ServeFileServer | DeploySection | ClientSection, name: str, problems: Problems, now: int
) -> _Own | None:
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
        return _Own(identity, certificate)
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
    if not 0 <= member <= MAX_ID:
        raise ConfigError(f"must be a whole number from 0 to {MAX_ID}, not {member}")
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
