"""The messages of the protocol, and their encoding as frames. `decode` returns only well-formed messages.

Every frame is an array `[version, type, context, field, ...]`. The context of an invitation is empty. The
context of a farewell, and of any message before the session has an id, is the digest of the invitation. The
context of all other messages is the session id.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, TypeAlias

from secagg.canonical_msgpack import Reader, encode_fields
from secagg.errors import MalformedMessage, OversizeMessage, Peer, WrongVersion
from secagg.hashing import DIGEST_BYTES, VERSION
from secagg.keys import SIGNATURE_BYTES

MAX_SUMS: Final = 64
MAX_COHORT: Final = 1 << 20
MAX_ROUND: Final = (1 << 63) - 1
_MAX_BLOB: Final = (1 << 32) - 1


@dataclass(frozen=True)
class Uint:
    """The schema of a field that holds an unsigned integer of at most `most`."""

    most: int

    def read(self, reader: Reader) -> int:
        return reader.uint()

    def allows(self, value: object) -> bool:
        return type(value) is int and 0 <= value <= self.most


@dataclass(frozen=True)
class Blob:
    """The schema of a field that holds a byte string whose length is in `lengths`."""

    lengths: range | tuple[int, ...] = range(1, _MAX_BLOB + 1)

    def read(self, reader: Reader) -> bytes:
        return reader.blob()

    def allows(self, value: object) -> bool:
        return type(value) is bytes and len(value) in self.lengths


@dataclass(frozen=True)
class Text:
    """The schema of a field that holds an ASCII string of 1 to 64 characters."""

    def read(self, reader: Reader) -> str:
        return reader.text()

    def allows(self, value: object) -> bool:
        return type(value) is str and 1 <= len(value) <= 64 and value.isascii()


Field: TypeAlias = Uint | Blob | Text

_DIGEST: Final = Blob((DIGEST_BYTES,))
_SUM: Final = Uint(MAX_SUMS - 1)
_SIGNATURE: Final = Blob((0, SIGNATURE_BYTES))
_ANY: Final = Blob(range(_MAX_BLOB + 1))
_NAMES: Final[dict[type, tuple[str, ...]]] = {}


@dataclass(frozen=True)
class Message:
    """Base class of messages. `SCHEMA` limits the fields, `context` first. Bad values raise `ValueError`."""

    TYPE: ClassVar[int]
    SCHEMA: ClassVar[tuple[Field, ...]]

    context: bytes

    def __post_init__(self) -> None:
        for name, schema in zip(_names(type(self)), self.SCHEMA, strict=True):
            if not schema.allows(getattr(self, name)):
                raise ValueError(f"{type(self).__name__}.{name} is outside its range")

    def encode(self) -> bytes:
        values = (getattr(self, name) for name in _names(type(self)))
        return encode_fields(VERSION, self.TYPE, *values)

    def __repr__(self) -> str:  # no fields: payloads, envelopes and shares must not appear in logs
        return f"{type(self).__name__}()"


def _names(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of a message class's fields, from a cache because `dataclasses.fields` is slow."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(column.name for column in fields(kind))
    return _NAMES[kind]


# --- from the server ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Invitation(Message):
    """Proposes a session: trust level, key agreement, number of sums, digests of sum table and client
    registry, a nonce."""

    TYPE = 1
    SCHEMA = (Blob((0,)), Text(), Text(), Uint(MAX_SUMS), _DIGEST, Blob((0, DIGEST_BYTES)), _DIGEST)

    trust: str
    agreement: str
    sums: int
    table: bytes
    registry: bytes
    nonce: bytes


@dataclass(frozen=True, repr=False)
class KeyList(Message):
    """Sends all clients' adverts (public keys and commitments), and the threshold of the secret sharing."""

    TYPE = 2
    SCHEMA = (_DIGEST, Uint(1 << 16), Blob())

    threshold: int
    adverts: bytes


@dataclass(frozen=True, repr=False)
class Delivery(Message):
    """Delivers the envelopes with secret shares that other clients sealed for the receiver."""

    TYPE = 3
    SCHEMA = (_DIGEST, Blob())

    parcels: bytes


@dataclass(frozen=True, repr=False)
class Query(Message):
    """Asks for one sum. `roster` is a bitmap of the clients asked, `payload` the data sent to all of them."""

    TYPE = 4
    SCHEMA = (_DIGEST, _SUM, Uint(MAX_ROUND), Text(), Blob(), _ANY)

    sum_index: int
    round: int
    kind: str
    roster: bytes
    payload: bytes


@dataclass(frozen=True, repr=False)
class Survivors(Message):
    """Announces the survivors of a sum: a bitmap of the clients whose masked inputs arrived."""

    TYPE = 5
    SCHEMA = (_DIGEST, _SUM, Blob())

    sum_index: int
    survivors: bytes


@dataclass(frozen=True, repr=False)
class Confirmations(Message):
    """Forwards to all survivors (clients whose inputs arrived) their signatures on the survivor set."""

    TYPE = 6
    SCHEMA = (_DIGEST, _SUM, Blob())

    sum_index: int
    signatures: bytes


@dataclass(frozen=True, repr=False)
class GroupClosed(Message):
    """Announces that the server gives up a sum, and all later sums of the same vectors in this round."""

    TYPE = 7
    SCHEMA = (_DIGEST, _SUM)

    sum_index: int


@dataclass(frozen=True, repr=False)
class Farewell(Message):
    """Announces that the server ends the session."""

    TYPE = 8
    SCHEMA = (_DIGEST,)


@dataclass(frozen=True, repr=False)
class Neighbours(Message):
    """On a ring, sends a client its own advert and those of its neighbours, instead of a key list. Each
    client gets its own list; all get the same cohort `size`, `threshold`, digest of all keys (`ring`) and, if
    the session names its members, all their ids."""

    TYPE = 9
    SCHEMA = (_DIGEST, Uint(MAX_COHORT), Uint(1 << 16), _DIGEST, Blob(), _ANY)

    size: int
    threshold: int
    ring: bytes
    adverts: bytes
    members: bytes


# --- from a client --------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Advertisement(Message):
    """Publishes a client's public keys, and commitments to its secrets, for the whole session."""

    TYPE = 16
    SCHEMA = (_DIGEST, Blob())

    advert: bytes


@dataclass(frozen=True, repr=False)
class Shares(Message):
    """Sends an envelope with secret shares for every neighbour, and a signature on the session id. `tags` has
    hashes of all shares, those of the sender's own included, and `tags_signature` is a signature on them."""

    TYPE = 17
    SCHEMA = (_DIGEST, Blob(), _SIGNATURE, Blob(), _SIGNATURE)

    envelopes: bytes
    signature: bytes
    tags: bytes
    tags_signature: bytes


@dataclass(frozen=True, repr=False)
class MaskedInput(Message):
    """Sends a client's masked input to a sum: the packed residues of all parts and of the hidden count.
    `words` has, for each neighbour asked, the mask that this pair put on the hidden count."""

    TYPE = 18
    SCHEMA = (_DIGEST, _SUM, Blob(), Blob(), _SIGNATURE)

    sum_index: int
    data: bytes
    words: bytes
    signature: bytes


@dataclass(frozen=True, repr=False)
class Confirmation(Message):
    """Sends a client's signature on the survivor set: the clients whose masked inputs arrived."""

    TYPE = 19
    SCHEMA = (_DIGEST, _SUM, Blob((SIGNATURE_BYTES,)))

    sum_index: int
    signature: bytes


@dataclass(frozen=True, repr=False)
class Reveal(Message):
    """Reveals the sender's shares of its neighbours' secrets. Of a neighbour that dropped out, it reveals the
    share of the mask key. Of a survivor, it reveals the share of the self-mask secret, and then those of the
    seeds of surplus noise: noise that the server removes, as fewer clients dropped out than planned."""

    TYPE = 20
    SCHEMA = (_DIGEST, _SUM, Blob(), Blob(), Blob(), _SIGNATURE)

    sum_index: int
    dealers: bytes  # a bitmap over the sender's neighbourhood: the clients whose shares follow
    shares: bytes
    hidden: bytes  # for each of these clients, the hashes of the shares that stay secret
    signature: bytes


@dataclass(frozen=True, repr=False)
class Decline(Message):
    """Tells the server that this client sends no input to this sum."""

    TYPE = 21
    SCHEMA = (_DIGEST, _SUM)

    sum_index: int


@dataclass(frozen=True, repr=False)
class Leave(Message):
    """Tells the server that this client leaves the session for good, but not why: that could leak data."""

    TYPE = 22
    SCHEMA = (Blob((0, DIGEST_BYTES)),)


@dataclass(frozen=True, repr=False)
class Lost(Message):
    """Reports a bitmap of the neighbours whose envelopes, just delivered, could not be decrypted, or have
    shares that do not fit their tags."""

    TYPE = 23
    SCHEMA = (_DIGEST, Blob())

    dealers: bytes


@dataclass(frozen=True, repr=False)
class Deposit(Message):
    """With hybrid key agreement, sends for each neighbour the deposits of their pair secrets of all sums, and
    public tags of these secrets."""

    TYPE = 24
    SCHEMA = (_DIGEST, Blob(), _SIGNATURE)

    deposits: bytes
    signature: bytes


FROM_SERVER: Final = (
    Invitation, KeyList, Delivery, Query, Survivors, Confirmations, GroupClosed, Farewell, Neighbours,
)  # fmt: skip
FROM_CLIENT: Final = (Advertisement, Shares, MaskedInput, Confirmation, Reveal, Decline, Leave, Lost, Deposit)

_TYPES: Final[dict[int, type[Message]]] = {c.TYPE: c for c in (*FROM_SERVER, *FROM_CLIENT)}
_HEADER: Final = 2  # version and type


def frame_bytes(*blobs: int) -> int:
    """Return the length of an encoded message with a 32-byte context, and byte strings of lengths `blobs`."""
    header = len(encode_fields(VERSION, 1, bytes(DIGEST_BYTES)))
    return header + sum(blob + (2 if blob < 1 << 8 else 3 if blob < 1 << 16 else 5) for blob in blobs)


def decode(frame: bytes, *, sender: Peer, limit: int) -> Message:
    """Return the message in `frame`. Raises `PeerError` if the frame is not a well-formed message, or has
    more than `limit` bytes. `sender`, a client or the server, is named in errors."""
    if len(frame) > limit:
        raise OversizeMessage(sender, f"a message of {len(frame)} bytes; the limit is {limit}")
    kind, reader = _open(bytes(frame), sender)
    values: list[Any] = [schema.read(reader) for schema in kind.SCHEMA]
    reader.end()
    try:
        return kind(*values)
    except ValueError as error:
        raise MalformedMessage(sender, str(error)) from None


def message_type(frame: bytes, *, sender: Peer) -> type[Message]:
    """Return the message class named in the header of `frame`. Raises `PeerError` if the header is wrong."""
    return _open(frame, sender)[0]


def _open(frame: bytes, sender: Peer) -> tuple[type[Message], Reader]:
    """Return the message class named in the header of `frame`, and a reader at the first field. Raises
    `PeerError` if the header is invalid."""
    if len(frame) < 1 + _HEADER or frame[0] >> 4 != 0x9:
        raise MalformedMessage(sender, "not a message")
    reader = Reader(frame, sender=sender)
    size = frame[0] & 0xF
    reader.array(size)
    version, code = reader.uint(), reader.uint()
    if version != VERSION:
        raise WrongVersion(sender, f"version {version}; this side speaks only {VERSION}")
    kind = _TYPES.get(code)
    if kind is None or size != _HEADER + len(kind.SCHEMA):
        raise MalformedMessage(sender, "an unknown type of message, or one with other fields")
    return kind, reader
