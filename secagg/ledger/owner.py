"""Whose ledger it is. A ledger is opened by its owner, or only read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from secagg.errors import ParameterError
from secagg.keys import KEY_BYTES
from secagg.ledger.chain import Body
from secagg.registry import MAX_ID


class Role(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A client with its id and, where clients have identities, its public key; or a server."""

    role: Role
    member: int | None = None
    identity: bytes = b""

    @classmethod
    def client(cls, member: int, identity: bytes = b"") -> Self:
        if type(member) is not int or not 0 <= member <= MAX_ID:
            raise ParameterError(f"member must be a whole number from 0 to {MAX_ID}")
        return cls(role=Role.CLIENT, member=member, identity=_public(identity))

    @classmethod
    def server(cls, identity: bytes = b"") -> Self:
        return cls(role=Role.SERVER, identity=_public(identity))

    def __str__(self) -> str:
        name = "the server" if self.role is Role.SERVER else f"client {self.member}"
        return f"{name} with key {self.identity.hex()[:16]}..." if self.identity else name

    def body(self) -> Body:
        return {"role": str(self.role), "member": self.member, "identity": self.identity.hex()}

    @classmethod
    def of(cls, body: Body) -> Self:
        identity = bytes.fromhex(body["identity"])
        return cls(role=Role(body["role"]), member=body["member"], identity=identity)


def _public(identity: bytes) -> bytes:
    if not isinstance(identity, bytes) or len(identity) not in (0, KEY_BYTES):
        raise ParameterError(
            f"identity must be the {KEY_BYTES} bytes of a public key, or empty: give identity.public"
        )
    return identity
