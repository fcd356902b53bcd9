"""Hand-overs: signed statements that an identity goes on under a new key.

The member (or the server) stays the same, and only its key changes. Its ledger, with its privacy costs,
then belongs to the new key. The old key signs the statement, or the authority if the old key is lost or
stolen. A statement names both keys, so it is of no use for another identity, nor after a newer statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from secagg.canonical_msgpack import Reader, encode_fields
from secagg.errors import SERVER, BadSignature, MalformedMessage, ParameterError, Peer, WrongHandOver
from secagg.identity_registry import MAX_ID
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, verify

_PURPOSE: Final = "hand-over"
_SERVER_ID: Final = MAX_ID + 1  # in the encoding; no client has this id


class HandOverSigner(IntEnum):
    """Who signed a hand-over."""

    OLD_KEY = 1
    AUTHORITY = 2


@dataclass(frozen=True)
class HandOver:
    """The statement that `owner` (the id of a client, or "server") goes on with key `new` in place of `old`.
    Its signature is not checked before `verify`. Raises `ParameterError` if a field is out of range.

    >>> old, new = Identity.generate(), Identity.generate()
    >>> statement = HandOver.sign(7, old, new.public)
    >>> statement.verify(authority=None)
    >>> HandOver.parse(statement.encode(), sender=7) == statement
    True
    """

    owner: Peer
    old: bytes
    new: bytes
    signer: HandOverSigner
    signature: bytes

    def __post_init__(self) -> None:
        if self.owner != SERVER and not (type(self.owner) is int and 0 <= self.owner <= MAX_ID):
            raise ParameterError(f"the owner of a hand-over is a client, 0 to {MAX_ID}, or the server")
        if len(self.old) != KEY_BYTES or len(self.new) != KEY_BYTES or self.old == self.new:
            raise ParameterError("a hand-over names two different public keys of 32 bytes")
        if len(self.signature) != SIGNATURE_BYTES:
            raise ParameterError("a signature has 64 bytes")

    @classmethod
    def sign(cls, owner: Peer, old: Identity, new: bytes) -> Self:
        """Return the statement, signed by the old key. `new` is the new public key."""
        return cls._made(owner, old.public, new, HandOverSigner.OLD_KEY, old)

    @classmethod
    def sign_as_authority(cls, owner: Peer, old: bytes, new: bytes, authority: Identity) -> Self:
        """Return the statement, signed by the authority. `old` and `new` are public keys."""
        return cls._made(owner, old, new, HandOverSigner.AUTHORITY, authority)

    @classmethod
    def _made(cls, owner: Peer, old: bytes, new: bytes, signer: HandOverSigner, key: Identity) -> Self:
        unsigned = cls(owner, old, new, signer, bytes(SIGNATURE_BYTES))
        return cls(owner, old, new, signer, key.sign(_PURPOSE, *unsigned._fields()))

    def _fields(self) -> tuple[bytes, ...]:
        return self._owner_id.to_bytes(8, "big"), self.old, self.new, bytes([self.signer])

    @property
    def _owner_id(self) -> int:
        return _SERVER_ID if self.owner == SERVER else self.owner

    def encode(self) -> bytes:
        return encode_fields(self._owner_id, self.old, self.new, int(self.signer), self.signature)

    @classmethod
    def parse(cls, data: bytes, *, sender: Peer) -> Self:
        """Return the statement in `data`. Raises `MalformedMessage` unless it is its one valid encoding."""
        reader = Reader(data, sender=sender)
        reader.array(5)
        number, old, new = reader.uint(), reader.blob(), reader.blob()
        signer, signature = reader.uint(), reader.blob()
        reader.end()
        try:
            return cls(
                SERVER if number == _SERVER_ID else number, old, new, HandOverSigner(signer), signature
            )
        except (ParameterError, ValueError):
            raise MalformedMessage(sender, "not a hand-over of one key to another") from None

    def verify(self, *, authority: bytes | None) -> None:
        """Raise `WrongHandOver` unless the old key has signed, or the public key `authority` if it is not
        None."""
        key = self.old if self.signer is HandOverSigner.OLD_KEY else authority
        if key is None:
            raise WrongHandOver(self.owner, "only an authority that is not known here has signed the new key")
        try:
            verify(key, self.signature, _PURPOSE, *self._fields(), peer=self.owner)
        except BadSignature:
            raise WrongHandOver(
                self.owner, "the new key is signed neither by the old key nor by the authority"
            ) from None


def chain_of(
    statements: Iterable[HandOver], owner: Peer, *, old: bytes, new: bytes, authority: bytes | None
) -> tuple[HandOver, ...]:
    """Return the statements that lead from key `old` of `owner` to key `new`, in order, all verified. Others
    are ignored. Raises `WrongHandOver` if there is no such chain, or if a signature in it does not verify."""
    before: dict[bytes, HandOver] = {}
    wrong: dict[bytes, WrongHandOver] = {}
    for each in statements:
        try:
            each.verify(authority=authority)
        except WrongHandOver as error:
            wrong[each.new] = error
        else:
            if each.owner == owner:
                before[each.new] = each
    chain: list[HandOver] = []
    at = new
    while at != old:
        if at not in before:
            raise wrong.get(at, WrongHandOver(owner, "no statement hands its old key over to its new one"))
        chain.insert(0, before.pop(at))
        at = chain[0].old
    return tuple(chain)
