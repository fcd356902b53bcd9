"""Creates and changes the registry: the list of all clients and their keys, signed by an authority. The
authority must not be a client, nor the server, which could otherwise enrol clients that it controls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from secagg.errors import CertificateError, ForeignRegistry, KeyFileError, RegistryError, WrongHandOver
from secagg.hand_over import HandOver, HandOverSigner, chain_of
from secagg.identity_registry import NEVER_EXPIRES, Registry
from secagg.keys import Identity
from secagg.ledger.file_lock import try_lock_file
from secagg.net.certificates import certificate_key, check_dates, expiry, split_bundle
from secagg.net.identity_and_registry_files import (
    BUNDLE,
    REGISTRY,
    bundle_path,
    create_hand_over,
    hand_over_path,
    read_bundle,
    read_certificate,
    read_hand_overs,
    read_signed,
    write_registry,
)
from secagg.net.notices import MAX_KEY_NOTICE, Notice, Topic

FIRST_VERSION = 1


@dataclass(frozen=True)
class Changes:
    """Changes to a registry of clients: certificate files of members to enrol, by id; ids of members to
    remove; a new time of expiry; a new file for a hand-over that the authority signs itself, because the
    old key of a member is lost; and the certificate of that key, if the registry lists it no more."""

    members: Mapping[int, Path]  # certificate files of new or changed members
    remove: frozenset[int] = frozenset()
    expires: int | None = None  # Unix time; None: unchanged, or never in a new registry
    hand_over: Path | None = None
    old_certificate: Path | None = None  # None: the old key is the one that the registry lists


@dataclass(frozen=True)
class Enrolled:
    """A registry, its members' certificates by id (empty if there is no file), and whether it was changed.
    `new_keys` has the members that got another key, and who signed the hand-over to it; None: no one."""

    registry: Registry
    certificates: Mapping[int, bytes]
    changed: bool
    new_keys: Mapping[int, HandOverSigner | None] = field(default_factory=dict)


def look(path: Path, authority: bytes) -> Enrolled:
    """Return the registry at `path`, even if expired, and its members' certificates, if their file exists.
    Raise `RegistryError` if a file is damaged, or if the key `authority` did not sign the registry."""
    registry = read_signed(path, authority=authority)
    # On the machine of a client, there is no file of certificates.
    certificates = read_bundle(path, registry) if BUNDLE.exists(bundle_path(path)) else {}
    return Enrolled(registry, certificates, changed=False)


def enrol(path: Path, authority: Identity, changes: Changes, *, now: int) -> Enrolled:
    """Create or change the registry at `path` and return it; `now` is Unix time. A changed registry gets the
    next version number; a new certificate for the same key is stored, but does not count as a change. Raise
    `RegistryError` or `KeyFileError` if the changes are impossible."""
    _check_changes(bundle_path(path), changes)
    given = {member: _given(file, authority, now) for member, file in changes.members.items()}
    with _alone(path):
        stored = _stored(bundle_path(path))
        old = _signed(path, authority) if REGISTRY.exists(path) else None
        if old is None:
            _check_new(path, stored, given)
        new = _changed(old, changes, given)
        _check_unexpired(new, now)
        _check_size(new, authority)
        certificates = {
            member: given.get(member, stored.get(key, b"")) for member, key in new.members.items()
        }
        _check_complete(bundle_path(path), certificates)
        new_keys = _hand_overs(old, new, changes, authority)
        write_registry(path, new, authority, certificates)
    return Enrolled(new, certificates, changed=new != old, new_keys=new_keys)


# --- hand-overs -------------------------------------------------------------------------------------


def _hand_overs(
    old: Registry | None, new: Registry, changes: Changes, authority: Identity
) -> dict[int, HandOverSigner | None]:
    """Return who signed the hand-over of each member that gets another key; None if there is none. Write the
    authority's own if `changes` ask for it. Raise `RegistryError` if one beside a certificate is wrong."""
    known: Mapping[int, bytes] = {} if old is None else old.members
    if changes.old_certificate is not None:
        known = _named_key(changes.members, changes.old_certificate, new)
    both = {k: (known[k], new.members[k]) for k in changes.members if k in known}
    renewed = {member: keys for member, keys in both.items() if keys[0] != keys[1]}
    if changes.hand_over is not None:
        if len(renewed) != 1:
            raise RegistryError(
                "a hand-over is for one member that gets another key: give one --member, and "
                "--old-certificate if the registry no longer lists its old key"
            )
        ((member, keys),) = renewed.items()
        create_hand_over(changes.hand_over, HandOver.sign_as_authority(member, *keys, authority))
        return {member: HandOverSigner.AUTHORITY}
    return {
        member: _signer(member, before, after, hand_over_path(changes.members[member]), authority)
        for member, (before, after) in renewed.items()
    }


def _named_key(members: Iterable[int], file: Path, new: Registry) -> dict[int, bytes]:
    """Return the key in the certificate `file` as the old one of `members`. Its dates do not matter: it may
    have expired since. Raise `RegistryError` if `new` lists the key: then it is neither lost nor stolen."""
    key = certificate_key(read_certificate(file))
    owners = [member for member, listed in new.members.items() if listed == key]
    if owners:
        raise RegistryError(
            f"{file} has the key with which member {owners[0]} is enrolled: give the certificate of the key "
            "that is lost or stolen"
        )
    return dict.fromkeys(members, key)


def _signer(
    member: int, before: bytes, after: bytes, file: Path, authority: Identity
) -> HandOverSigner | None:
    statements = read_hand_overs(file, member)
    if not statements:
        return None
    try:
        steps = chain_of(statements, member, old=before, new=after, authority=authority.public)
    except WrongHandOver as error:
        raise RegistryError(
            f"{file} does not hand member {member} over to its new key: {error.why}; ask its owner, or move "
            "the file away"
        ) from None
    return steps[-1].signer


# --- read -------------------------------------------------------------------------------------------


def _given(file: Path, authority: Identity, now: int) -> bytes:
    """Return a new member's certificate. Raise `KeyFileError` if it is invalid or that of the authority."""
    certificate = read_certificate(file)
    try:
        check_dates(certificate, now=now)
    except CertificateError as error:
        early = expiry(certificate) > now
        what = "is the clock right?" if early else "ask its owner for a current one"
        raise KeyFileError(f"{file} is {error}; {what}") from None
    if certificate_key(certificate) == authority.public:
        raise KeyFileError(f"{file} is the authority's own: it must be neither a client nor the server")
    return certificate


def _stored(bundle: Path) -> dict[bytes, bytes]:
    """Return the certificates in the file `bundle`, by public key; empty if there is no file. After a crash,
    some may belong to no member. Raise `RegistryError` if the file is damaged."""
    if not BUNDLE.exists(bundle):
        return {}
    try:
        return {certificate_key(each): each for each in split_bundle(BUNDLE.read(bundle))}
    except CertificateError as error:
        raise RegistryError(f"{bundle} is damaged: it has in it {error}; restore it") from None


def _signed(path: Path, authority: Identity) -> Registry:
    try:
        return read_signed(path, authority=authority.public)
    except ForeignRegistry:
        raise ForeignRegistry(
            f"{path} is foreign: this authority (key {authority.public.hex()}) did not sign it, or it was "
            "changed since; name the key that signed it with --authority, or another --registry"
        ) from None


def _changed(old: Registry | None, changes: Changes, given: Mapping[int, bytes]) -> Registry:
    members = dict(old.members) if old else {}
    for member in changes.remove:
        if member not in members:
            raise RegistryError(f"member {member} cannot be removed: there is no such member")
        del members[member]
    for member, certificate in given.items():
        members[member] = certificate_key(certificate)
    if not members:
        raise RegistryError(
            "no member would be left: enrol one in the same command, or give an end with --expires"
        )
    _check_keys_differ(members)
    expires = (old.expires if old else NEVER_EXPIRES) if changes.expires is None else changes.expires
    if old is None:
        return Registry(FIRST_VERSION, members, expires)
    same = (members, expires) == (dict(old.members), old.expires)
    return old if same else Registry(old.version + 1, members, expires)


# --- checks -----------------------------------------------------------------------------------------


def _check_changes(bundle: Path, changes: Changes) -> None:
    if changes.old_certificate is not None and changes.hand_over is None:
        raise RegistryError("--old-certificate names the key that is handed over: give --hand-over as well")
    for member, file in changes.members.items():
        if member in changes.remove:
            raise RegistryError(f"member {member} cannot be enrolled and removed at once")
        if file.resolve() == bundle.resolve():
            raise RegistryError(f"{file} would be overwritten: give the registry another name")


def _check_new(path: Path, stored: Mapping[bytes, bytes], given: Mapping[int, bytes]) -> None:
    """Raise `RegistryError` if a new registry has no members, or if its file of certificates exists already.
    The file may exist if all its certificates are of the given members: then an earlier attempt crashed."""
    if not given:
        raise RegistryError(f"{path} does not exist; give its first members, or correct the path")
    beside = bundle_path(path)
    if BUNDLE.exists(beside) and not (stored and stored.keys() <= set(map(certificate_key, given.values()))):
        raise RegistryError(
            f"{path} does not exist, but {beside} does: restore the one, or move the other away"
        )


def _check_keys_differ(members: Mapping[int, bytes]) -> None:
    owners: dict[bytes, int] = {}
    for member, key in sorted(members.items()):
        if key in owners:
            raise RegistryError(f"members {owners[key]} and {member} would have the same key: enrol it once")
        owners[key] = member


def _check_unexpired(registry: Registry, now: int) -> None:
    if registry.expires != NEVER_EXPIRES and registry.expires <= now:
        raise RegistryError(
            "the registry would have expired already: give a later day with --expires, or never"
        )


def _check_size(registry: Registry, authority: Identity) -> None:
    """Raise `RegistryError` if the notice with the registry is too long: all clients would refuse it."""
    size = len(Notice(Topic.REGISTRY, registry.sign(authority)).encode())
    if size > MAX_KEY_NOTICE:
        raise RegistryError(
            f"the registry would be too long: with {len(registry.members)} members it has {size} bytes, and "
            f"clients accept {MAX_KEY_NOTICE}; enrol fewer members, or remove some"
        )


def _check_complete(bundle: Path, certificates: Mapping[int, bytes]) -> None:
    missing = sorted(member for member, certificate in certificates.items() if not certificate)
    if missing:
        raise RegistryError(
            f"{bundle} has no certificate of member {missing[0]}: restore the file, give that certificate "
            "again with --member, or remove the member"
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock the registry's directory during the context. Raise `RegistryError` if it is locked or unusable."""
    handle = _open_directory(path.parent)
    try:
        _lock(handle, path.parent)
        yield
    finally:
        os.close(handle)


def _open_directory(directory: Path) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RegistryError(f"the directory {directory} cannot be used: {error.strerror}") from None


def _lock(handle: int, directory: Path) -> None:
    try:
        locked = try_lock_file(handle)
    except OSError as error:
        raise RegistryError(f"the directory {directory} cannot be locked: {error.strerror}") from None
    if not locked:
        raise RegistryError(f"another process is changing a registry in {directory}; try again")
