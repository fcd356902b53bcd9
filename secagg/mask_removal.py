"""Removal of masks from a total: in one process, or divided among several (see `secagg.mask_pool`).

A vector is a list of *parts*, one array each. A *removal* describes one or more masks of a client. For
several processes, the masks are divided into *portions*, and a vector is cut into *stretches*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, TypeAlias

from secagg.double_masking import PairMasks, Removal, Seeds, SelfMask, take_off
from secagg.residue_packing import Residues

MOST_PORTIONS: Final = 256
Range: TypeAlias = tuple[int, int]  # the first index, and the index after the last


class Expander(Protocol):
    """The interface of `OneProcess` and `secagg.mask_pool.ProcessPool`, which remove masks from a total."""

    def get_ready(self) -> None:
        """Prepare for a call of `take_off` that will follow within milliseconds."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None: ...


class OneProcess:
    """An `Expander` that removes masks in the calling process, without worker processes."""

    def get_ready(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        take_off(residues, removals, salt=salt)


def mask_count(removals: Sequence[Removal]) -> int:
    return sum(_count(removal) for removal in removals)


def divided(removals: Sequence[Removal], ranges: Sequence[Range]) -> list[list[Removal]]:
    """Divide the masks: return, for each of `ranges` of mask numbers, the removals of just these masks."""
    lists: list[list[Removal]] = [[] for _ in ranges]
    at = done = 0  # the index of the range that is being filled, and the number of masks before the removal
    for removal in removals:
        count = _count(removal)
        while at < len(ranges) and ranges[at][0] < done + count:
            start, stop = ranges[at]
            lists[at] += _cut(removal, max(start - done, 0), min(stop - done, count))
            if stop > done + count:
                break
            at += 1
        done += count
    return lists


def _count(removal: Removal) -> int:
    return len(removal.pairs) if isinstance(removal, PairMasks) else 1


def _cut(removal: Removal, start: int, stop: int) -> list[Removal]:
    """Return masks `start` to `stop` - 1 of a removal as a list: empty, or with one removal."""
    if start >= stop:
        return []
    if isinstance(removal, SelfMask):
        return [removal]
    return [PairMasks(removal.mask_key, removal.pairs[start:stop])]


def portions(total: int, *, sharers: int, least: int) -> list[Range]:
    """Divide the numbers below `total` into ranges of work, which `sharers` processes claim one by one.

    The first ranges are large, so that there are few. The last are small, so that at the end no process waits
    long for the others: "Guided self-scheduling: a practical scheduling scheme for parallel supercomputers".
    Each range but the last has at least `least` numbers, and there are at most `MOST_PORTIONS` ranges.
    """
    least = max(least, -(-total // MOST_PORTIONS))
    ranges: list[Range] = []
    start = 0
    while start < total:
        stop = min(start + max(least, (total - start) // (2 * sharers)), total)
        ranges.append((start, stop))
        start = stop
    return ranges


def seeds_between(seeds: Seeds, portion: Range) -> Seeds:
    """Return the seeds with the numbers in `portion`. Seeds to add are numbered before seeds to subtract."""
    (plus, minus), (start, stop) = seeds, portion
    return plus[start:stop], minus[max(start - len(plus), 0) : max(stop - len(plus), 0)]


@dataclass(frozen=True)
class Slice:
    """A stretch of a vector: its range in each part. `skip`: the key-stream bytes of the elements before."""

    ranges: tuple[Range, ...]
    skip: int

    def of(self, residues: Sequence[Residues]) -> list[Residues]:
        """Return the elements of the stretch, as one view into each part."""
        return [part[start:stop] for part, (start, stop) in zip(residues, self.ranges, strict=True)]


def slices(residues: Sequence[Residues], shares: int) -> list[Slice]:
    """Cut a vector into `shares` stretches. Their lengths in bytes differ by at most about one element."""
    total = sum(part.nbytes for part in residues)
    cuts = [total * share // shares for share in range(shares + 1)]
    return [_slice(residues, low, high) for low, high in pairwise(cuts)]


def _slice(residues: Sequence[Residues], low: int, high: int) -> Slice:
    """Return the elements of all parts whose first byte in the key stream of a mask is in [low, high)."""
    ranges, skip, base = [], -1, 0
    for part in residues:
        start, stop = (min(max(-(-(cut - base) // part.itemsize), 0), len(part)) for cut in (low, high))
        if skip < 0 and start < stop:
            skip = base + start * part.itemsize
        ranges.append((start, stop))
        base += part.nbytes
    return Slice(tuple(ranges), max(skip, 0))
