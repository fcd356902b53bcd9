"""Hostile frames for fuzzing: structure-aware mutations of honest ones, noise, and bombs.

A mutation takes an honest frame apart into its fields, spoils one thing and puts it together again, so that
what comes out passes most of a decoder's checks and fails, or should fail, in one. All choices are made by a
*chooser*, a function that gives a number below its argument: `random.Random(1).randrange` for a fuzzer, a
draw from Hypothesis for a property test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgpack

from secagg import messages as m
from secagg.hashing import VERSION
from secagg.keys import SIGNATURE_BYTES
from secagg.message_records import ID_BYTES, Format
from secagg.shamir import PRIME, SHARE_BYTES

Chooser: TypeAlias = Callable[[int], int]
Fields: TypeAlias = list[Any]  # version, type, context and what follows it

_CODES: Final = tuple(kind.TYPE for kind in (*m.FROM_SERVER, *m.FROM_CLIENT))
_CONTEXT: Final = 2


def fields_of(frame: bytes) -> Fields:
    """The fields of an honest frame."""
    fields: Fields = msgpack.unpackb(frame)
    return fields


class Mutator:
    """Makes one hostile frame out of an honest one.

    `form` gives the sizes of records, `limit` is the largest frame that the receiver accepts, and `others`
    are honest frames to borrow fields from, such as those of another session.
    """

    def __init__(self, *, form: Format, limit: int, others: Sequence[bytes]) -> None:
        self._limit = limit
        self._others = others
        self._rows: Mapping[int, tuple[int, int]] = {  # type -> (field of the records, size of one)
            m.KeyList.TYPE: (4, form.advert_bytes),
            m.Neighbours.TYPE: (6, form.neighbour_bytes),
            m.Delivery.TYPE: (3, form.parcel_bytes),
            m.Confirmations.TYPE: (4, ID_BYTES + SIGNATURE_BYTES),
            m.Advertisement.TYPE: (3, form.advert_bytes),
            m.Shares.TYPE: (3, form.envelope_bytes),
            m.Reveal.TYPE: (5, SHARE_BYTES),
            m.Deposit.TYPE: (3, form.deposit_bytes),
        }
        self._mutations: tuple[Callable[[Fields, Chooser], bytes], ...] = (
            _resized, _flipped_blob, _padded_bitmap, _changed_number, _other_context, _swapped, _dropped,
            _added, _longer_number, _longer_blob, _blob_as_text, _other_value, _nested, _other_code,
            _other_version, _declared_huge, _truncated, _extended, _flipped, _inserted,
            self._records, self._records, self._records, self._borrowed, self._filled,
        )  # fmt: skip

    def __call__(self, frame: bytes, choose: Chooser) -> bytes:
        mutation = self._mutations[choose(len(self._mutations))]
        return mutation(fields_of(frame), choose)

    def _borrowed(self, fields: Fields, choose: Chooser) -> bytes:
        """A field, or all of them, from another frame."""
        other = fields_of(self._others[choose(len(self._others))])
        at = _CONTEXT + choose(len(fields) - _CONTEXT + 1)
        if at == len(fields):
            return pack(other)
        return pack(_replaced(fields, at, other[min(at, len(other) - 1)]))

    def _filled(self, fields: Fields, choose: Chooser) -> bytes:
        """As large as the receiver accepts, give or take a few bytes."""
        at = _blob_at(fields, choose)
        room = self._limit - len(pack(fields)) - 8 + choose(16)
        return pack(_replaced(fields, at, fields[at] + noise(choose, max(room, 0))))

    def _records(self, fields: Fields, choose: Chooser) -> bytes:
        """Rows dropped, repeated, out of order, with other ids or spoiled content."""
        at, size = self._rows.get(fields[1], (_blob_at(fields, choose), ID_BYTES))
        blob = fields[at]
        rows = [blob[start : start + size] for start in range(0, len(blob), size)]
        spoil = (_drop_row, _repeat_row, _swap_rows, _rename_row, _spoil_row)[choose(5)]
        return pack(_replaced(fields, at, b"".join(spoil(rows, choose))))


# --- one field ---------------------------------------------------------------------------------------


def _resized(fields: Fields, choose: Chooser) -> bytes:
    at = _blob_at(fields, choose)
    blob = fields[at]
    sizes = (blob[:-1], blob + b"\x00", blob[1:], blob + blob, b"", blob[: choose(len(blob) + 1)])
    return pack(_replaced(fields, at, sizes[choose(len(sizes))]))


def _flipped_blob(fields: Fields, choose: Chooser) -> bytes:
    at = _blob_at(fields, choose)
    return pack(_replaced(fields, at, _flip(fields[at], choose)))


def _padded_bitmap(fields: Fields, choose: Chooser) -> bytes:
    """All bits, or no bits, or bits beyond the cohort, in a short byte string (a bitmap, if there is one)."""
    at = min(
        (k for k in range(_CONTEXT, len(fields)) if isinstance(fields[k], bytes)),
        key=lambda k: len(fields[k]) or 99,
    )
    blob = fields[at]
    maps = (b"\xff" * len(blob), bytes(len(blob)), blob[:-1] + b"\xff", blob + b"\x01", blob[:-1] + b"\x80")
    return pack(_replaced(fields, at, maps[choose(len(maps))]))


def _changed_number(fields: Fields, choose: Chooser) -> bytes:
    at = _number_at(fields, choose)
    value = fields[at]
    near = (value + 1, max(value - 1, 0), 0, 1, m.MAX_SUMS - 1, m.MAX_SUMS)
    far = (1 << 16, (1 << 16) + 1, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    return pack(_replaced(fields, at, (near + far)[choose(12)]))


def _other_context(fields: Fields, choose: Chooser) -> bytes:
    contexts = (b"", noise(choose, 32), bytes(32), _flip(fields[_CONTEXT], choose), fields[_CONTEXT][::-1])
    return pack(_replaced(fields, _CONTEXT, contexts[choose(len(contexts))]))


def _longer_number(fields: Fields, choose: Chooser) -> bytes:
    """The same number in a form that canonical encoding does not use."""
    at = _number_at(fields, choose)
    value = fields[at]
    forms = [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8), (0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)]
    wide = [(lead, width) for lead, width in forms if value < 1 << (8 * width - (lead >= 0xD0))]
    lead, width = wide[choose(len(wide))]
    return _spliced(fields, at, bytes([lead]) + value.to_bytes(width, "big"))


def _longer_blob(fields: Fields, choose: Chooser) -> bytes:
    at = _blob_at(fields, choose)
    blob = fields[at]
    lead, width = ((0xC4, 1), (0xC5, 2), (0xC6, 4))[choose(3)]
    size = len(blob) % (1 << (8 * width))
    return _spliced(fields, at, bytes([lead]) + size.to_bytes(width, "big") + blob)


def _blob_as_text(fields: Fields, choose: Chooser) -> bytes:
    at = _blob_at(fields, choose)
    return _spliced(fields, at, bytes([0xDA]) + len(fields[at]).to_bytes(4, "big")[2:] + fields[at])


def _other_value(fields: Fields, choose: Chooser) -> bytes:
    """A value of a type that no field has, or not this one."""
    return _spliced(fields, choose(len(fields)), _ODD[choose(len(_ODD))])


def _nested(fields: Fields, choose: Chooser) -> bytes:
    """An array where a value should be, around it or instead of it, to any depth."""
    at = choose(len(fields))
    depth = 1 + choose(64)
    inner = (msgpack.packb(fields[at]), b"\x90")[choose(2)]
    return _spliced(fields, at, b"\x91" * depth + inner)


def _declared_huge(fields: Fields, choose: Chooser) -> bytes:
    """A length that no frame has room for."""
    lead = (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)[choose(5)]
    return _spliced(fields, choose(len(fields)), bytes([lead]) + b"\xff" * 4)


_ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 1.5, -1, -(1 << 63), {}, {1: 2}, [], b"", 0, 1 << 63, "", "text", "\u00e9", "x" * 65,
    msgpack.ExtType(1, b"x"),
)  # fmt: skip
_ODD: Final[tuple[bytes, ...]] = (
    *map(msgpack.packb, _ODD_VALUES),
    b"\xc1",  # the one byte that means nothing
    b"\xd9\x04text",  # a longer form than it needs
)


# --- all fields --------------------------------------------------------------------------------------


def _swapped(fields: Fields, choose: Chooser) -> bytes:
    one, other = choose(len(fields)), choose(len(fields))
    first, second = fields[one], fields[other]
    return pack(_replaced(_replaced(fields, one, second), other, first))


def _dropped(fields: Fields, choose: Chooser) -> bytes:
    at = choose(len(fields))
    return pack(fields[:at] + fields[at + 1 :])


def _added(fields: Fields, choose: Chooser) -> bytes:
    at = choose(len(fields) + 1)
    extra = (0, b"", b"x", fields[choose(len(fields))])[choose(4)]
    return pack([*fields[:at], extra, *fields[at:]])


def _other_code(fields: Fields, choose: Chooser) -> bytes:
    """The same fields as a message of another type."""
    codes = (*_CODES, 0, 10, 15, 31, 127, 128, 1 << 32)
    return pack(_replaced(fields, 1, codes[choose(len(codes))]))


def _other_version(fields: Fields, choose: Chooser) -> bytes:
    return pack(_replaced(fields, 0, (0, VERSION - 1, VERSION + 1, 127, 1 << 40)[choose(5)]))


# --- the bytes ---------------------------------------------------------------------------------------


def _truncated(fields: Fields, choose: Chooser) -> bytes:
    frame = pack(fields)
    return frame[: choose(len(frame))]


def _extended(fields: Fields, choose: Chooser) -> bytes:
    return pack(fields) + noise(choose, 1 + choose(16))


def _flipped(fields: Fields, choose: Chooser) -> bytes:
    return _flip(pack(fields), choose)


def _inserted(fields: Fields, choose: Chooser) -> bytes:
    frame = pack(fields)
    at = choose(len(frame) + 1)
    return frame[:at] + noise(choose, 1 + choose(4)) + frame[at:]


# --- rows of records ---------------------------------------------------------------------------------


def _drop_row(rows: list[bytes], choose: Chooser) -> list[bytes]:
    at = choose(len(rows) + 1)
    return rows[:at] + rows[at + 1 :]


def _repeat_row(rows: list[bytes], choose: Chooser) -> list[bytes]:
    at = choose(len(rows) + 1)
    return rows[: at + 1] + rows[at:]


def _swap_rows(rows: list[bytes], choose: Chooser) -> list[bytes]:
    at = choose(len(rows) + 1)
    return rows[at:] + rows[:at]


def _rename_row(rows: list[bytes], choose: Chooser) -> list[bytes]:
    """Another id in front of a row."""
    at = choose(len(rows) + 1)
    ids = (0, 1, (1 << 32) - 1, choose(1 << 32), choose(16))
    name = ids[choose(len(ids))].to_bytes(ID_BYTES, "big")
    return [name + row[ID_BYTES:] if k == at else row for k, row in enumerate(rows)]


def _spoil_row(rows: list[bytes], choose: Chooser) -> list[bytes]:
    """A key of small order, a share outside the field, or other values that a check must meet."""
    at = choose(len(rows) + 1)
    values = (
        bytes(32),
        b"\x01" + bytes(31),
        b"\xff" * 32,
        PRIME.to_bytes(SHARE_BYTES, "big"),
        b"\xff" * SHARE_BYTES,
    )
    value = values[choose(len(values))]
    return [_overwritten(row, value, choose) if k == at else row for k, row in enumerate(rows)]


def _overwritten(row: bytes, value: bytes, choose: Chooser) -> bytes:
    start = (0, ID_BYTES, ID_BYTES + 32 * choose(4), choose(len(row) + 1))[choose(4)]
    return (row[:start] + value + row[start + len(value) :])[: len(row)]


# --- frames without a pattern ------------------------------------------------------------------------


def random_frame(choose: Chooser, *, limit: int) -> bytes:
    """Noise, noise behind a good header, or well-formed values of any type in any order."""
    size = (choose(8), choose(64), choose(1024), choose(limit + 16))[choose(4)]
    style = choose(4)
    if style == 0:
        return noise(choose, size)
    header = bytes([0x90 | choose(16), VERSION, _CODES[choose(len(_CODES))]])
    if style == 1:
        return header + noise(choose, size)
    values = b"".join(_random_value(choose) for _ in range(choose(8)))
    return header + values if style == 2 else bytes([0x90 | choose(16)]) + values


def _random_value(choose: Chooser) -> bytes:
    blob = noise(choose, (0, 32, 64, choose(300))[choose(4)])
    number = choose(1 << (1, 7, 8, 32, 64)[choose(5)])
    encoded: bytes = msgpack.packb((blob, number, "kind", [], None, -number // 2)[choose(6)])
    return encoded


def bombs(limit: int) -> Iterator[bytes]:
    """Frames of up to `limit` bytes that ask a careless decoder for far more memory, or for its stack."""
    good = bytes([0x95, VERSION, m.Query.TYPE])
    for head in (b"", good, good[:1], bytes([0xDC, 0xFF, 0xFF]), bytes([0xDD]) + b"\xff" * 4):
        room = limit - len(head)
        yield from (head + filling * (room // len(filling)) for filling in _FILLINGS)
    for lead in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF):  # bin, ext, str, array and map of 2^32 - 1
        yield good + bytes([lead]) + b"\xff" * 4
        yield good + bytes([lead]) + b"\xff" * 4 + bytes(limit - 8)
        yield bytes([lead]) + b"\xff" * 4 + bytes(limit - 5)


_FILLINGS: Final = (
    b"\x90",  # empty arrays: one byte each on the wire, 56 in memory
    b"\x91",  # arrays in arrays in arrays
    b"\x80",  # empty maps
    b"\xc0",
    b"\xc4\x00",  # empty byte strings
    b"\xa0",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x81\x00",  # maps in maps
    b"\xdc\xff\xff",
    b"\xdd\xff\xff\xff\xff",
)


# --- small helpers -----------------------------------------------------------------------------------


def pack(fields: Fields) -> bytes:
    """Fields as one frame, whether or not they are a message."""
    frame: bytes = msgpack.packb(fields)
    return frame


def noise(choose: Chooser, size: int) -> bytes:
    """`size` bytes without a pattern, up to 64 of them at a time."""
    block = choose(1 << (8 * min(size, 64))).to_bytes(min(size, 64), "big")
    return (block * (size // 64 + 1))[:size]


def _replaced(fields: Fields, at: int, value: Any) -> Fields:
    return [*fields[:at], value, *fields[at + 1 :]]


def _spliced(fields: Fields, at: int, encoded: bytes) -> bytes:
    """The frame with the value at `at` given as bytes, well-formed or not."""
    pieces = [encoded if k == at else msgpack.packb(value) for k, value in enumerate(fields)]
    return bytes([0x90 | len(fields)]) + b"".join(pieces)


def _flip(blob: bytes, choose: Chooser) -> bytes:
    if not blob:
        return b"\x00"
    bit = choose(8 * len(blob))
    return blob[: bit // 8] + bytes([blob[bit // 8] ^ 1 << bit % 8]) + blob[bit // 8 + 1 :]


def _blob_at(fields: Fields, choose: Chooser) -> int:
    places = [k for k, value in enumerate(fields) if isinstance(value, bytes)]
    return places[choose(len(places))]


def _number_at(fields: Fields, choose: Chooser) -> int:
    places = [k for k, value in enumerate(fields) if isinstance(value, int)]
    return places[choose(len(places))]
