"""`secagg keygen --renew`: gives an existing identity a new key, or a new certificate for its key.

The old pair is kept beside the new one, and so are all older ones: any of them may be the one that is
enrolled, which this command cannot know. At every moment, a usable pair lies on the disk: the old one is
copied first, then the hand-over is written, then the new key, and its certificate last. If this is
interrupted before the last step, calling it again completes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secagg.errors import KeyFileError, Peer
from secagg.hand_over import HandOver
from secagg.keys import Identity
from secagg.net.atomic_files import PRIVATE, PUBLIC
from secagg.net.certificates import certificate_key, make_certificate, private_pem
from secagg.net.identity_and_registry_files import (
    CERTIFICATE,
    KEY,
    hand_over_path,
    old_path,
    older_path,
    read_all_hand_overs,
    read_certificate,
    read_hand_overs,
    read_key,
    write_hand_overs,
)


@dataclass(frozen=True)
class IdentityFiles:
    """The files of an identity: its private key and its certificate."""

    key: Path
    certificate: Path

    @property
    def hand_over(self) -> Path:
        return hand_over_path(self.key)


def renew_certificate(files: IdentityFiles, *, now: int, days: int) -> Identity:
    """Replace the certificate by one with new dates for the same key, and return the identity. Raise
    `KeyFileError` if a file is unusable, or an old pair is there that belongs to another identity."""
    identity = _current(files)
    _keep_old(files, identity, _predecessors(read_all_hand_overs(files.hand_over), identity.public))
    certificate = make_certificate(identity, now=now, days=days)
    CERTIFICATE.replace(files.certificate, certificate, mode=PUBLIC)
    return identity


def renew_key(files: IdentityFiles, owner: Peer, *, now: int, days: int) -> Identity:
    """Replace key and certificate of `owner` (a client's id, or "server") by new ones, signed by the old key,
    and return the new identity. Raise `KeyFileError` as `renew_certificate` does."""
    statements = read_hand_overs(files.hand_over, owner)
    interrupted = _interrupted(files, statements)
    if interrupted is not None:
        new = interrupted
    else:
        old, new = _current(files), Identity.generate()
        _keep_old(files, old, _predecessors(statements, old.public))
        write_hand_overs(files.hand_over, [*statements, HandOver.sign(owner, old, new.public)])
        KEY.replace(files.key, private_pem(new), mode=PRIVATE)
    CERTIFICATE.replace(files.certificate, make_certificate(new, now=now, days=days), mode=PUBLIC)
    return new


def _current(files: IdentityFiles) -> Identity:
    identity, certificate = read_key(files.key), read_certificate(files.certificate)
    if certificate_key(certificate) != identity.public:
        raise KeyFileError(f"{files.certificate} belongs to another key than the private key in {files.key}")
    return identity


def _interrupted(files: IdentityFiles, statements: tuple[HandOver, ...]) -> Identity | None:
    """Return the new identity if an earlier call has written its key, but not its certificate."""
    identity, old = read_key(files.key), certificate_key(read_certificate(files.certificate))
    handed_over = any((each.old, each.new) == (old, identity.public) for each in statements)
    return identity if handed_over else None


def _predecessors(statements: tuple[HandOver, ...], key: bytes) -> set[bytes]:
    """Return `key` and the earlier keys that statements hand over to it."""
    before = {each.new: each.old for each in statements}
    found = {key}
    while key in before and before[key] not in found:
        key = before[key]
        found.add(key)
    return found


def _keep_old(files: IdentityFiles, identity: Identity, own: set[bytes]) -> None:
    """Copy the current pair to the names for the old one. Raise `KeyFileError` if a pair is there whose key
    is not among `own`: `identity` and its earlier keys."""
    _keep_older(files, identity.public, own)
    KEY.replace(old_path(files.key), private_pem(identity), mode=PRIVATE)
    CERTIFICATE.replace(old_path(files.certificate), read_certificate(files.certificate), mode=PUBLIC)


def _keep_older(files: IdentityFiles, current: bytes, own: set[bytes]) -> None:
    """Copy the pair that has the names for the old one to names of its own, unless its key is `current`: this
    may be the only copy of the key that is enrolled."""
    key, certificate = old_path(files.key), old_path(files.certificate)
    kept_key = read_key(key) if KEY.exists(key) else None
    kept_certificate = read_certificate(certificate) if CERTIFICATE.exists(certificate) else None
    first = current if kept_key is None else kept_key.public
    second = current if kept_certificate is None else certificate_key(kept_certificate)
    if not own.issuperset((first, second)):
        raise KeyFileError(f"{key} or {certificate} belongs to another identity; move both away")
    # After an interruption, the two may belong to different keys.
    if kept_key is not None and first != current:
        KEY.replace(older_path(files.key, first), private_pem(kept_key), mode=PRIVATE)
    if kept_certificate is not None and second != current:
        CERTIFICATE.replace(older_path(files.certificate, second), kept_certificate, mode=PUBLIC)
