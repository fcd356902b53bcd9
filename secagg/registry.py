"""The registry: which identities exist, signed by an authority that is not the server.

A server that could add identities would fill a cohort with its own. Clients hold the registry, compare its
digest when they join, and never go back to an older version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from secagg.codec import Reader, encode_fields
from secagg.errors import MalformedMessage, ParameterError, PeerError, WrongRegistry
from secagg.hashing import digest
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, verify
from secagg.thresholds import Trust

MAX_ID: Final = (1 << 32) - 1
_RECORD: Final = 4 + KEY_BYTES
_PURPOSE: Final = "registry"


@dataclass(frozen=True)
class Registry:
    """Version and members (id -> Ed25519 public key) of a deployment."""

    version: int
    members: Mapping[int, bytes]

    def __post_init__(self) -> None:
        if not 0 <= self.version < 1 << 63:
            raise ParameterError("the version of a registry must be from 0 to 2^63 - 1")
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
        return digest("registry", self.version.to_bytes(8, "big"), self.records)

    def sign(self, authority: Identity) -> bytes:
        """The registry as a file that clients verify with the authority's public key."""
        signature = authority.sign(_PURPOSE, self.digest)
        return encode_fields(self.version, self.records, signature)


def verify_registry(data: bytes, *, authority: bytes) -> Registry:
    """The registry in `data`; raises `WrongRegistry` unless `authority` signed it."""
    try:
        version, records, signature = _parse(data)
        registry = Registry(version, dict(_members(records)))
        if registry.records != records:
            raise WrongRegistry("server", "members of the registry are not in order")
        verify(authority, signature, _PURPOSE, registry.digest, peer="server")
    except (PeerError, ParameterError) as error:
        raise WrongRegistry("server", f"not a registry signed by the authority ({error})") from None
    return registry


def check_identity(member: int, trust: Trust, identity: Identity | None, registry: Registry | None) -> None:
    """A signed session needs a registry in which we are; an unsigned one must not pretend to have one."""
    if not 0 <= member <= MAX_ID:
        raise ParameterError(f"the id of a client must be from 0 to {MAX_ID}")
    if trust is Trust.CURIOUS:
        if identity is not None or registry is not None:
            raise ParameterError("identity and registry are for malicious_server only")
    elif identity is None or registry is None:
        raise ParameterError("malicious_server needs an identity and a registry")
    elif registry.members.get(member) != identity.public:
        raise ParameterError(f"the registry does not list this identity as client {member}")


def _parse(data: bytes) -> tuple[int, bytes, bytes]:
    reader = Reader(data, sender="server")
    reader.array(3)
    version, records, signature = reader.uint(), reader.blob(), reader.blob()
    reader.end()
    if len(records) % _RECORD or len(signature) != SIGNATURE_BYTES:
        raise MalformedMessage("server", "a registry of the wrong length")
    return version, records, signature


def _members(records: bytes) -> list[tuple[int, bytes]]:
    rows = [records[start : start + _RECORD] for start in range(0, len(records), _RECORD)]
    return [(int.from_bytes(row[:4], "big"), row[4:]) for row in rows]
