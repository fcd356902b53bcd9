"""Division of the work of removing masks from a total among processes (see `secagg.mask_pool`).

A vector is a list of *parts*, one array each. A *removal* describes one or more masks of a client. The masks
are divided into *portions*, and a vector is cut into *stretches* of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import PairMasks, Removal, Seeds, SelfMask

MOST_PORTIONS: Final = 256
Range: TypeAlias = tuple[int, int]  # the first index, and the index after the last


def mask_count(removals: Sequence[Removal]) -> int:
    return sum(_count(removal) for removal in removals)


def divided(removals: Sequence[Removal], ranges: Sequence[Range]) -> list[list[Removal]]:
    """Number the masks of all `removals` in order. Return, for each of `ranges` of numbers, a list of
    removals that describe just the masks in this range."""
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
    """Return a list of one removal, of the masks `start` to `stop` - 1 of `removal`; empty if no masks."""
    if start >= stop:
        return []
    if isinstance(removal, SelfMask):
        return [removal]
    return [PairMasks(removal.mask_key, removal.pairs[start:stop])]


def portions(total: int, *, sharers: int, least: int) -> list[Range]:
    """Divide the indices 0 to `total` - 1 into ranges of work, which `sharers` processes claim one by one.
    The first ranges are large, so that there are few. The last are small, so that at the end no process waits
    long for the others: "Guided self-scheduling: a practical scheduling scheme for parallel supercomputers".
    Each range but the last has at least `least` indices, and there are at most `MOST_PORTIONS` ranges."""
    least = max(least, -(-total // MOST_PORTIONS))
    ranges: list[Range] = []
    start = 0
    while start < total:
        stop = min(start + max(least, (total - start) // (2 * sharers)), total)
        ranges.append((start, stop))
        start = stop
    return ranges


def seeds_between(seeds: Seeds, portion: Range) -> Seeds:
    """Return the seeds whose indices are in `portion`. Seeds to add come first, then those to subtract."""
    (plus, minus), (start, stop) = seeds, portion
    return plus[start:stop], minus[max(start - len(plus), 0) : max(stop - len(plus), 0)]


@dataclass(frozen=True)
class Slice:
    """A stretch (consecutive elements) of a vector: the range of indices that it has in each part. `skip` is
    the number of bytes of a mask's key stream that belong to the elements before the stretch."""

    ranges: tuple[Range, ...]
    skip: int

    def of(self, residues: Sequence[Residues]) -> list[Residues]:
        """Return the elements of the stretch in the vector `residues`, as one view into each part."""
        return [part[start:stop] for part, (start, stop) in zip(residues, self.ranges, strict=True)]


def slices(residues: Sequence[Residues], shares: int) -> list[Slice]:
    """Cut a vector, between elements, into `shares` stretches of nearly equal length in bytes."""
    total = sum(part.nbytes for part in residues)
    cuts = [total * share // shares for share in range(shares + 1)]
    return [_slice(residues, low, high) for low, high in pairwise(cuts)]


def _slice(residues: Sequence[Residues], low: int, high: int) -> Slice:
    """Return the stretch of all elements whose masks begin at bytes `low` to `high` - 1 of the key stream."""
    ranges, skip, base = [], -1, 0
    for part in residues:
        start, stop = (min(max(-(-(cut - base) // part.itemsize), 0), len(part)) for cut in (low, high))
        if skip < 0 and start < stop:
            skip = base + start * part.itemsize
        ranges.append((start, stop))
        base += part.nbytes
    return Slice(tuple(ranges), max(skip, 0))
