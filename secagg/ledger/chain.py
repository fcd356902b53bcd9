"""The rows of a ledger as a hash chain (each hash covers all rows before it), and the owner of a ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from secagg.errors import ParameterError
from secagg.hashing import DIGEST_BYTES, digest
from secagg.identity_registry import MAX_ID
from secagg.keys import KEY_BYTES
from secagg.sum_spec import Count, Part, SumSpec

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Head:
    """The state of a ledger: its number of rows and last hash. An older copy of it has another head."""

    rows: int
    hash: bytes

    def after(self, text: bytes) -> Head:
        """Return the head of the ledger after a row with the text `text` is appended."""
        number = self.rows.to_bytes(8, "big")
        return Head(self.rows + 1, digest("ledger row", self.hash, number, text))


START: Final = Head(0, bytes(DIGEST_BYTES))


@dataclass(frozen=True)
class Row:
    """One row of a ledger. `body["entry"]` is the type of the row, and the other items are its data."""

    number: int
    body: Body


def text_of(body: Body) -> bytes:
    """Return the only valid text of a row's body, to be stored and hashed. It is JSON, for human readers."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def body_of(text: bytes) -> Body:
    body: Body = json.loads(text)
    return body


def describe(spec: SumSpec) -> dict[str, Any]:
    """Return a JSON object with the parts of `spec`, their bounds and noise, and the noise assumptions."""
    promise = None if spec.promise is None else asdict(spec.promise)
    return {"parts": [_part(part) for part in spec.parts], "promise": promise}


def _part(part: Part) -> dict[str, Any]:
    bound: dict[str, Any] = {"type": type(part.bound).__name__, "limit": getattr(part.bound, "limit", None)}
    if isinstance(part.bound, Count):
        bound["total"] = part.bound.total
    noise = part.noise
    return {
        "name": part.name,
        "size": part.size,
        "bits": part.bits,
        "bound": bound,
        "noise": None if noise is None else {"scale": noise.scale, "variance": str(noise.variance)},
    }


class Role(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a ledger: a client with id `member`, or a server. `identity` is its public key, if any."""

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
