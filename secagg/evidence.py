"""Evidence that a client lied, which anybody with the registry can check (see `secagg.evidence_examiner`).

It exists only under `malicious_server`, where clients sign what they publish, accept and reveal. Evidence
consists of frames of the session, statements that clients signed, and a few values. Among these may be shares
or a secret that were revealed for the sum in which the client lied. As in any sum, that is at most one of the
two secrets that mask an input, so that evidence shows no input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from secagg.errors import ParameterError

_LENGTH = 4


class Offence(StrEnum):
    """What a client is convicted of."""

    WRONG_SHARE = "wrong share"
    FALSE_DEALING = "false dealing"
    FALSE_COUNT = "false count"
    FALSE_WORD = "false word"
    FALSE_DEPOSIT = "false deposit"
    MANY_DISPUTES = "many disputes"


class Signed(NamedTuple):
    """The `fields` that a client signs with a message, and its signature, which is empty if none is used."""

    fields: tuple[bytes, ...]
    signature: bytes

    def __repr__(self) -> str:
        return "Signed()"  # no shares


@dataclass(frozen=True)
class Statement:
    """What client `signer` signed for a `purpose`: `fields`."""

    signer: int
    purpose: str
    fields: tuple[bytes, ...] = field(repr=False)
    signature: bytes = field(repr=False)

    def encode(self) -> bytes:
        return _joined([_u32(self.signer), self.purpose.encode("ascii"), self.signature, *self.fields])

    @classmethod
    def decode(cls, data: bytes) -> Statement:
        signer, purpose, signature, *fields = _cut(data)
        return cls(int.from_bytes(signer, "big"), purpose.decode("ascii"), tuple(fields), signature)


@dataclass(frozen=True)
class Evidence:
    """The proof that client `accused` lied: the frames that define the session, the statements that
    contradict each other, and further `values`, whose meaning depends on the offence."""

    offence: Offence
    accused: int
    invitation: bytes = field(repr=False)
    key_list: bytes = field(repr=False)
    statements: tuple[Statement, ...] = field(repr=False)
    values: tuple[bytes, ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """Return the evidence as bytes, for a file."""
        statements = _joined([each.encode() for each in self.statements])
        head = [self.offence.encode("ascii"), _u32(self.accused), self.invitation, self.key_list]
        return _joined([*head, statements, _joined(self.values)])

    @property
    def sha256(self) -> str:
        """The SHA-256 of the encoded evidence, in hexadecimal: its name in ledgers and logs."""
        return sha256(self.encode()).hexdigest()

    @classmethod
    def decode(cls, data: bytes) -> Evidence:
        """Return the evidence in `data`. Raises `ParameterError` if it is malformed."""
        try:
            offence, accused, invitation, key_list, statements, values = _cut(data)
            return cls(
                Offence(offence.decode("ascii")),
                int.from_bytes(accused, "big"),
                invitation,
                key_list,
                tuple(Statement.decode(each) for each in _cut(statements)),
                tuple(_cut(values)),
            )
        except ValueError:
            raise ParameterError("this is not evidence of a lie, or it is damaged") from None


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _joined(fields: Sequence[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(_LENGTH, "big") + each for each in fields)


def _cut(data: bytes) -> Iterator[bytes]:
    """Yield the fields in `data`. Raises `ValueError` if the last one is incomplete."""
    at = 0
    while at < len(data):
        start = at + _LENGTH
        at = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or at > len(data):
            raise ValueError("the last field is cut off")
        yield data[start:at]
