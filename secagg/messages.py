"""The messages of the protocol. Each instance is well-formed; only `decode` makes one from bytes.

Every frame is an array `[version, type, context, field, ...]`. The context is empty in the invitation, the
invitation's digest until the session has an id and in the farewell, and the session id otherwise.
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
    """An unsigned integer up to `most`."""

    most: int

    def read(self, reader: Reader) -> int:
        return reader.uint()

    def allows(self, value: object) -> bool:
        return type(value) is int and 0 <= value <= self.most


@dataclass(frozen=True)
class Blob:
    """A byte string whose length is in `lengths`."""

    lengths: range | tuple[int, ...] = range(1, _MAX_BLOB + 1)

    def read(self, reader: Reader) -> bytes:
        return reader.blob()

    def allows(self, value: object) -> bool:
        return type(value) is bytes and len(value) in self.lengths


@dataclass(frozen=True)
class Text:
    """A short ASCII string."""

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
    """The base of all messages: the context, and the schema of the fields after it."""

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

    def __repr__(self) -> str:  # payloads, envelopes and shares stay out of logs
        return f"{type(self).__name__}()"


def _names(kind: type[Message]) -> tuple[str, ...]:
    """The names of its fields, which `fields` would look up anew for every message."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(column.name for column in fields(kind))
    return _NAMES[kind]


# --- from the server ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Invitation(Message):
    """Proposes a session: trust level, number of sums, the digests of table and registry."""

    TYPE = 1
    SCHEMA = (Blob((0,)), Text(), Uint(MAX_SUMS), _DIGEST, Blob((0, DIGEST_BYTES)), _DIGEST)

    trust: str
    sums: int
    table: bytes
    registry: bytes
    nonce: bytes


@dataclass(frozen=True, repr=False)
class KeyList(Message):
    """All advertised keys, and the threshold."""

    TYPE = 2
    SCHEMA = (_DIGEST, Uint(1 << 16), Blob())

    threshold: int
    adverts: bytes


@dataclass(frozen=True, repr=False)
class Delivery(Message):
    """The envelopes that others sealed for the receiver."""

    TYPE = 3
    SCHEMA = (_DIGEST, Blob())

    parcels: bytes


@dataclass(frozen=True, repr=False)
class Query(Message):
    """Asks for one sum: which kind, in which round, over whom, and the broadcast itself."""

    TYPE = 4
    SCHEMA = (_DIGEST, _SUM, Uint(MAX_ROUND), Text(), Blob(), _ANY)

    sum_index: int
    round: int
    kind: str
    roster: bytes
    payload: bytes


@dataclass(frozen=True, repr=False)
class Survivors(Message):
    """The set of clients whose masked inputs arrived."""

    TYPE = 5
    SCHEMA = (_DIGEST, _SUM, Blob())

    sum_index: int
    survivors: bytes


@dataclass(frozen=True, repr=False)
class Confirmations(Message):
    """Signatures of survivors on the survivor set."""

    TYPE = 6
    SCHEMA = (_DIGEST, _SUM, Blob())

    sum_index: int
    signatures: bytes


@dataclass(frozen=True, repr=False)
class GroupClosed(Message):
    """The sum is abandoned, and with it the rest of its group."""

    TYPE = 7
    SCHEMA = (_DIGEST, _SUM)

    sum_index: int


@dataclass(frozen=True, repr=False)
class Farewell(Message):
    """The server ends the session."""

    TYPE = 8
    SCHEMA = (_DIGEST,)


@dataclass(frozen=True, repr=False)
class Neighbours(Message):
    """On a ring, in place of the key list: the adverts of one client and its neighbours.

    Each client has another list, so each receives the size of the cohort and the digest of all its keys.
    """

    TYPE = 9
    SCHEMA = (_DIGEST, Uint(MAX_COHORT), Uint(1 << 16), _DIGEST, Blob())

    size: int
    threshold: int
    ring: bytes
    adverts: bytes


# --- from a client --------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Advertisement(Message):
    """One client's public keys and commitments for the whole session."""

    TYPE = 16
    SCHEMA = (_DIGEST, Blob())

    advert: bytes


@dataclass(frozen=True, repr=False)
class Shares(Message):
    """One envelope for every neighbour, and a signature on the session."""

    TYPE = 17
    SCHEMA = (_DIGEST, Blob(), _SIGNATURE)

    envelopes: bytes
    signature: bytes


@dataclass(frozen=True, repr=False)
class MaskedInput(Message):
    """The masked, packed residues of all parts."""

    TYPE = 18
    SCHEMA = (_DIGEST, _SUM, Blob())

    sum_index: int
    data: bytes


@dataclass(frozen=True, repr=False)
class Confirmation(Message):
    """A survivor's signature on the survivor set."""

    TYPE = 19
    SCHEMA = (_DIGEST, _SUM, Blob((SIGNATURE_BYTES,)))

    sum_index: int
    signature: bytes


@dataclass(frozen=True, repr=False)
class Reveal(Message):
    """Shares: of the self mask of each survivor, of the mask key of the others in the roster."""

    TYPE = 20
    SCHEMA = (_DIGEST, _SUM, Blob(), Blob())

    sum_index: int
    dealers: bytes  # whose shares follow, of the sender's neighbourhood
    shares: bytes


@dataclass(frozen=True, repr=False)
class Decline(Message):
    """Declines this sum."""

    TYPE = 21
    SCHEMA = (_DIGEST, _SUM)

    sum_index: int


@dataclass(frozen=True, repr=False)
class Leave(Message):
    """Leaves the session for good. It gives no reason: a reason is a side channel."""

    TYPE = 22
    SCHEMA = (Blob((0, DIGEST_BYTES)),)


@dataclass(frozen=True, repr=False)
class Lost(Message):
    """Reports whose envelopes, of its neighbourhood, did not open, right after the delivery."""

    TYPE = 23
    SCHEMA = (_DIGEST, Blob())

    dealers: bytes


FROM_SERVER: Final = (
    Invitation, KeyList, Delivery, Query, Survivors, Confirmations, GroupClosed, Farewell, Neighbours,
)  # fmt: skip
FROM_CLIENT: Final = (Advertisement, Shares, MaskedInput, Confirmation, Reveal, Decline, Leave, Lost)

_TYPES: Final[dict[int, type[Message]]] = {c.TYPE: c for c in (*FROM_SERVER, *FROM_CLIENT)}
_HEADER: Final = 2  # version and type


def frame_bytes(*blobs: int) -> int:
    """Length of a frame with a 32-byte context and byte strings of these lengths."""
    header = len(encode_fields(VERSION, 1, bytes(DIGEST_BYTES)))
    return header + sum(blob + (2 if blob < 1 << 8 else 3 if blob < 1 << 16 else 5) for blob in blobs)


def decode(frame: bytes, *, sender: Peer, limit: int) -> Message:
    """Return the message in `frame`, from a sender of either kind. Raises `PeerError` if there is none.

    `limit` bounds the frame, and the memory used is a small multiple of the frame.
    """
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
    """Return the type that `frame` claims. Its fields are not checked."""
    return _open(frame, sender)[0]


def _open(frame: bytes, sender: Peer) -> tuple[type[Message], Reader]:
    """Read the header: the class of the message, and a reader at its first field."""
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
