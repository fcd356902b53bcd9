"""Sets of clients on the wire: one bit per member of the cohort, in order of their ids.

Bit `i` of the set is bit `i % 8` (least significant first) of byte `i // 8`; unused bits are zero,
so a set has exactly one encoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from secagg.errors import MalformedMessage, Peer


def bitmap_bytes(size: int) -> int:
    """Length of a bitmap over `size` members."""
    return (size + 7) // 8


def pack_positions(positions: Iterable[int], size: int) -> bytes:
    """The bitmap of `positions`, each below `size`."""
    bits = 0
    for position in positions:
        bits |= 1 << position
    return bits.to_bytes(bitmap_bytes(size), "little")


def unpack_positions(bitmap: bytes, size: int, *, sender: Peer) -> tuple[int, ...]:
    """The positions in `bitmap`, ascending; a set over another cohort size is malformed."""
    bits = int.from_bytes(bitmap, "little") if len(bitmap) == bitmap_bytes(size) else -1
    if bits < 0 or bits >> size:
        raise MalformedMessage(sender, f"a bitmap that is not over {size} members")
    return tuple(position for position in range(size) if bits >> position & 1)
