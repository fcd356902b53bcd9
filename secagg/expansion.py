"""Who works masks off a total: this process, or several that share the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from secagg.masking import PairMasks, Removal, SelfMask, take_off
from secagg.ring import Residues


class Expander(Protocol):
    """Something that works removals off a total. `secagg.pool` has one with several processes."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None: ...


class OneProcess:
    """This one."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        take_off(residues, removals, salt=salt)


def split(removals: Sequence[Removal], shares: int) -> list[list[Removal]]:
    """`removals` in `shares` lists with equally many masks; one with many masks may be cut."""
    total = sum(_masks(removal) for removal in removals)
    lists: list[list[Removal]] = [[] for _ in range(shares)]
    done = 0
    for removal in removals:
        count = _masks(removal)
        for index, taken in enumerate(lists):
            start, stop = total * index // shares, total * (index + 1) // shares
            taken += _cut(removal, max(start - done, 0), min(stop - done, count))
        done += count
    return lists


def _masks(removal: Removal) -> int:
    return len(removal.pairs) if isinstance(removal, PairMasks) else 1


def _cut(removal: Removal, start: int, stop: int) -> list[Removal]:
    """The masks from `start` to `stop` of one removal."""
    if start >= stop:
        return []
    if isinstance(removal, SelfMask):
        return [removal]
    return [PairMasks(removal.mask_key, removal.pairs[start:stop])]


@dataclass(frozen=True)
class Slice:
    """A stretch of a vector: the elements of each part, and the bytes of key stream before the first."""

    ranges: tuple[tuple[int, int], ...]
    skip: int

    def of(self, residues: Sequence[Residues]) -> list[Residues]:
        """The stretch itself, as views."""
        return [part[start:stop] for part, (start, stop) in zip(residues, self.ranges, strict=True)]


def slices(residues: Sequence[Residues], shares: int) -> list[Slice]:
    """The vector in `shares` stretches that need equally much key stream, but for an element."""
    total = sum(part.nbytes for part in residues)
    cuts = [total * share // shares for share in range(shares + 1)]
    return [_slice(residues, low, high) for low, high in pairwise(cuts)]


def _slice(residues: Sequence[Residues], low: int, high: int) -> Slice:
    """The elements whose first byte of key stream is one of `low` to `high`."""
    ranges, skip, base = [], -1, 0
    for part in residues:
        start, stop = (min(max(-(-(cut - base) // part.itemsize), 0), len(part)) for cut in (low, high))
        if skip < 0 and start < stop:
            skip = base + start * part.itemsize
        ranges.append((start, stop))
        base += part.nbytes
    return Slice(tuple(ranges), max(skip, 0))
