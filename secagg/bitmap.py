"""Sets of clients as bitmaps: one bit per member of the cohort, in the order of their ids.

On the wire, bit `i` of the set is bit `i % 8` (least significant first) of byte `i // 8`; unused bits are
zero, so a set has exactly one encoding. In memory, a set is one integer, which takes little space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import SupportsIndex

from secagg.errors import MalformedMessage, Peer


def bitmap_bytes(size: int) -> int:
    """Return the length in bytes of a bitmap for a cohort of `size` members."""
    return (size + 7) // 8


class PositionSet(AbstractSet[int]):
    """An immutable set of clients, as positions in the cohort. Iteration is in ascending order."""

    __slots__ = ("_bits",)
    _bits: int

    def __init__(self, positions: Iterable[int] = ()) -> None:
        if isinstance(positions, PositionSet):
            self._bits = positions._bits
            return
        marks = bytearray(1)
        for position in positions:
            if position < 0:
                raise ValueError("a position is not negative")
            if position >> 3 >= len(marks):
                marks.extend(bytes((position >> 3) - len(marks) + 1))
            marks[position >> 3] |= 1 << (position & 7)
        self._bits = int.from_bytes(marks, "little")

    @classmethod
    def parse(cls, bitmap: bytes, size: int, *, sender: Peer) -> PositionSet:
        """Return the set in `bitmap`. Raise `MalformedMessage` unless it is a valid bitmap of `size` bits."""
        bits = int.from_bytes(bitmap, "little") if len(bitmap) == bitmap_bytes(size) else -1
        if bits >> size:  # -1, too, has bits beyond any size
            raise MalformedMessage(sender, f"a bitmap that is not over {size} members")
        return cls._of(bits)

    @classmethod
    def _of(cls, bits: int) -> PositionSet:
        made = cls()
        made._bits = bits
        return made

    def pack(self, size: int) -> bytes:
        """Return this set as a bitmap for a cohort of `size` members. All positions must be below `size`."""
        return self._bits.to_bytes(bitmap_bytes(size), "little")

    def __contains__(self, position: object) -> bool:
        # Integers of numpy are positions, too, but the check for SupportsIndex is slow.
        at = position if type(position) is int or not isinstance(position, SupportsIndex) else int(position)
        return isinstance(at, int) and at >= 0 and bool(self._bits >> at & 1)

    def __iter__(self) -> Iterator[int]:
        digits = format(self._bits, "b")[::-1]
        return (position for position, digit in enumerate(digits) if digit == "1")

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, PositionSet) else super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()

    def __le__(self, other: AbstractSet[object]) -> bool:
        return not self._bits & ~other._bits if isinstance(other, PositionSet) else super().__le__(other)

    def __repr__(self) -> str:
        return f"PositionSet({list(self)})"


def pack_positions(positions: Iterable[int], size: int) -> bytes:
    """Return the set `positions` as a bitmap for a cohort of `size` members. All must be below `size`."""
    return PositionSet(positions).pack(size)


def unpack_positions(bitmap: bytes, size: int, *, sender: Peer) -> tuple[int, ...]:
    """Return the positions in `bitmap`, ascending. Raise `MalformedMessage` unless it has `size` bits."""
    return tuple(PositionSet.parse(bitmap, size, sender=sender))
