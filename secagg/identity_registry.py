"""The registry: a list of all client identities, signed by an authority that is not the server.

If a server could add identities, it could fill a cohort with its own. Each client has a copy of the registry,
compares its digest with the server's when it joins a session, and never accepts an older version again. A
registry may have an expiry time, so that a client without a newer version does not trust revoked identities
for ever. This module has no clock: the client and the server pass the time to `check_current` every session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final

from secagg.canonical_msgpack import Reader, encode_fields
from secagg.errors import BadSignature, ExpiredRegistry, MalformedMessage, ParameterError, WrongRegistry
from secagg.hashing import digest
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, verify
from secagg.trust_levels import Trust

MAX_ID: Final = (1 << 32) - 1
NEVER_EXPIRES: Final = 0
MAX_EXPIRES: Final = 253_402_300_799  # the last second of the year 9999, the last of `datetime`
_RECORD: Final = 4 + KEY_BYTES
_PURPOSE: Final = "registry"


@dataclass(frozen=True)
class Registry:
    """The identities of a deployment: `members` maps each id to an Ed25519 public key.

    `expires` is the expiry time, as Unix time in seconds; 0 means that the registry does not expire. Raises
    `ParameterError` if a field is out of range, or if two members have the same key.

    >>> members = {number: Identity.generate().public for number in (1, 2, 3)}
    >>> sorted(Registry(1, members).members)
    [1, 2, 3]
    """

    version: int
    members: Mapping[int, bytes]
    expires: int = NEVER_EXPIRES

    def __post_init__(self) -> None:
        if not 0 <= self.version < 1 << 63:
            raise ParameterError("the version of a registry must be from 0 to 2^63 - 1")
        if not 0 <= self.expires <= MAX_EXPIRES:
            raise ParameterError("a registry must expire by the year 9999, or never")
        for member, key in self.members.items():
            if not 0 <= member <= MAX_ID or len(key) != KEY_BYTES:
                raise ParameterError("a member of a registry has a 32-bit id and a 32-byte key")
        if len(set(self.members.values())) != len(self.members):
            raise ParameterError("two members of a registry have the same key")
        object.__setattr__(self, "members", MappingProxyType(dict(self.members)))

    @cached_property
    def records(self) -> bytes:
        return b"".join(k.to_bytes(4, "big") + self.members[k] for k in sorted(self.members))

    @cached_property
    def digest(self) -> bytes:
        return digest(
            "registry", self.version.to_bytes(8, "big"), self.expires.to_bytes(8, "big"), self.records
        )

    def sign(self, authority: Identity) -> bytes:
        """Return the bytes of a registry file, signed by `authority`. `verify_registry` reads it."""
        signature = authority.sign(_PURPOSE, self.digest)
        return encode_fields(self.version, self.expires, self.records, signature)

    def check_current(self, now: int | None) -> None:
        """Raise `ExpiredRegistry` if the registry has expired at `now`, in seconds of Unix time. Raises
        `ParameterError` if the registry expires at some time and `now` is None."""
        if self.expires == NEVER_EXPIRES:
            return
        if now is None:
            raise ParameterError("this registry expires: give the current time as `now`", parameter="now")
        if now >= self.expires:
            end = datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
            raise ExpiredRegistry(
                f"registry {self.version} expired at {end}; get a newer one from the authority, who makes it "
                "with secagg enrol --expires"
            )


@dataclass(frozen=True)
class SignedRegistry:
    """A parsed registry file whose signature is not checked. Call `verified` before you trust `claimed`."""

    claimed: Registry
    signature: bytes

    @classmethod
    def parse(cls, data: bytes) -> SignedRegistry:
        """Parse a registry file's bytes. Raise `WrongRegistry` if malformed; the signature is not checked."""
        try:
            version, expires, records, signature = _parse(data)
            registry = Registry(version, dict(_members(records)), expires)
            if registry.records != records:
                raise MalformedMessage("server", "members of the registry are not in order")
        except (MalformedMessage, ParameterError) as error:
            raise _wrong(error) from None
        return cls(registry, signature)

    def verified(self, *, authority: bytes) -> Registry:
        """Return the claimed registry. Raise `WrongRegistry` unless the public key `authority` signed it."""
        try:
            verify(authority, self.signature, _PURPOSE, self.claimed.digest, peer="server")
        except BadSignature as error:
            raise _wrong(error) from None
        return self.claimed


def verify_registry(data: bytes, *, authority: bytes) -> Registry:
    """Return the registry in the file `data`. Raise `WrongRegistry` unless the key `authority` signed it.

    >>> authority, member = Identity.generate(), Identity.generate()
    >>> data = Registry(1, {7: member.public}).sign(authority)
    >>> verify_registry(data, authority=authority.public).version
    1
    >>> verify_registry(data, authority=member.public)
    Traceback (most recent call last):
        ...
    secagg.errors.WrongRegistry: ...
    """
    return SignedRegistry.parse(data).verified(authority=authority)


def _wrong(why: Exception) -> WrongRegistry:
    return WrongRegistry("server", f"not a registry signed by the authority ({why})")


def check_identity(member: int, trust: Trust, identity: Identity | None, registry: Registry | None) -> None:
    """Raise `ParameterError` unless `member` is a valid id and, under `malicious_server`, the registry lists
    the identity as `member`. Under `curious_server`, identity and registry must be None."""
    if not 0 <= member <= MAX_ID:
        raise ParameterError(f"the id of a client must be from 0 to {MAX_ID}")
    if trust is Trust.CURIOUS:
        if identity is not None or registry is not None:
            raise ParameterError("identity and registry are for malicious_server only")
    elif identity is None or registry is None:
        raise ParameterError("malicious_server needs an identity and a registry")
    elif registry.members.get(member) != identity.public:
        raise ParameterError(f"the registry does not list this identity as client {member}")


def _parse(data: bytes) -> tuple[int, int, bytes, bytes]:
    reader = Reader(data, sender="server")
    reader.array(4)
    version, expires, records, signature = reader.uint(), reader.uint(), reader.blob(), reader.blob()
    reader.end()
    if len(records) % _RECORD or len(signature) != SIGNATURE_BYTES:
        raise MalformedMessage("server", "a registry of the wrong length")
    return version, expires, records, signature


def _members(records: bytes) -> list[tuple[int, bytes]]:
    rows = [records[start : start + _RECORD] for start in range(0, len(records), _RECORD)]
    return [(int.from_bytes(row[:4], "big"), row[4:]) for row in rows]
