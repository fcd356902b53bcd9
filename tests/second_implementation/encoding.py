"""Frames, bitmaps and packed vectors (sections 3 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgpack

VERSION = 2

Field = int | str | bytes

# Type number and fields after the context, by name (7): u an integer, t text, b bytes.
MESSAGES = {
    "Invitation": (1, "ttubbb"),
    "KeyList": (2, "ub"),
    "Delivery": (3, "b"),
    "Query": (4, "uutbb"),
    "Survivors": (5, "ub"),
    "Confirmations": (6, "ub"),
    "GroupClosed": (7, "u"),
    "Farewell": (8, ""),
    "Neighbours": (9, "uubbb"),
    "Advertisement": (16, "b"),
    "Shares": (17, "bbbb"),
    "MaskedInput": (18, "ubbb"),
    "Confirmation": (19, "ub"),
    "Reveal": (20, "ubbbb"),
    "Decline": (21, "u"),
    "Leave": (22, ""),
    "Lost": (23, "b"),
    "Deposit": (24, "bb"),
}
NAMES = {number: name for name, (number, _) in MESSAGES.items()}
LETTERS = {int: "u", str: "t", bytes: "b"}


@dataclass(frozen=True)
class Message:
    """A decoded frame: its name, its context, and its other fields in order."""

    name: str
    context: bytes
    fields: tuple[Field, ...]

    def number(self, index: int) -> int:
        """An integer field."""
        value = self.fields[index]
        assert isinstance(value, int)
        return value

    def text(self, index: int) -> str:
        """A text field."""
        value = self.fields[index]
        assert isinstance(value, str)
        return value

    def data(self, index: int) -> bytes:
        """A field of bytes."""
        value = self.fields[index]
        assert isinstance(value, bytes)
        return value


def shortest(value: object) -> bytes:
    """MessagePack in its shortest form, with floats of 64 bits (3.1, 5.3)."""
    packed = msgpack.packb(value, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def frame(name: str, context: bytes, *fields: Field) -> bytes:
    """The bytes of a message (3.1)."""
    number, letters = MESSAGES[name]
    assert "".join(LETTERS[type(field)] for field in fields) == letters, name
    return shortest([VERSION, number, context, *fields])


def parse(data: bytes) -> Message:
    """The message of a frame, whose encoding must be the canonical one (3.1)."""
    items = msgpack.unpackb(data, raw=False)
    version, number, context, *fields = items
    assert version == VERSION, f"a frame of version {version}"
    message = Message(NAMES[number], context, tuple(fields))
    assert frame(message.name, context, *fields) == data, "a frame with another encoding"
    return message


def u32(value: int) -> bytes:
    """Four bytes, big-endian."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """Eight bytes, big-endian."""
    return value.to_bytes(8, "big")


def bitmap(places: Iterable[int], size: int) -> bytes:
    """The bitmap of some of `size` places (3.2)."""
    return sum(1 << place for place in places).to_bytes((size + 7) // 8, "little")


def in_bitmap(data: bytes, place: int) -> bool:
    """Whether a bitmap holds a place."""
    return bool(data[place // 8] >> (place % 8) & 1)


def places_of(data: bytes, size: int) -> list[int]:
    """The places that a bitmap holds, ascending; its length must be that of `size` places."""
    assert len(data) == (size + 7) // 8
    assert int.from_bytes(data, "little") >> size == 0
    return [place for place in range(size) if in_bitmap(data, place)]


def pack(values: Sequence[int], bits: int) -> bytes:
    """One part of a packed vector, padded to whole bytes (3.3)."""
    whole = sum(value << (index * bits) for index, value in enumerate(values))
    return whole.to_bytes((len(values) * bits + 7) // 8, "little")


def unpack(data: bytes, size: int, bits: int) -> list[int]:
    """The elements of one part of a packed vector."""
    whole = int.from_bytes(data, "little")
    assert len(data) == (size * bits + 7) // 8
    assert whole >> (size * bits) == 0, "padding that is not zero"
    return [whole >> (index * bits) & ((1 << bits) - 1) for index in range(size)]


def chunks(data: bytes, size: int) -> list[bytes]:
    """The records of `size` bytes in a string (3.4)."""
    assert size > 0
    assert len(data) % size == 0, f"{len(data)} bytes are no records of {size}"
    return [data[start : start + size] for start in range(0, len(data), size)]


def listed(items: Iterable[bytes]) -> bytes:
    """A list of evidence: each item after its length (13.5)."""
    return b"".join(u32(len(item)) + item for item in items)


def unlisted(data: bytes) -> list[bytes]:
    """The items of a list of evidence."""
    items = []
    while data:
        size = int.from_bytes(data[:4], "big")
        assert len(data) >= 4 + size, "a list that is cut off"
        items.append(data[4 : 4 + size])
        data = data[4 + size :]
    return items
