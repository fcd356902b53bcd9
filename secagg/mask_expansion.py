"""The work of removing masks from a total, by one process or divided among several (`secagg.mask_pool`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, TypeAlias

from secagg.double_masking import PairMasks, Removal, SelfMask, take_off
from secagg.residue_ring import Residues

MOST_PORTIONS: Final = 256
Seeds: TypeAlias = tuple[list[bytes], list[bytes]]  # of masks to add, and to subtract
Range: TypeAlias = tuple[int, int]  # from here on, and before there


class Expander(Protocol):
    """Removes masks from a total. `secagg.mask_pool` has one with several processes."""

    def get_ready(self) -> None:
        """Prepare: `take_off` will be called within milliseconds."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None: ...


class OneProcess:
    """An expander that works in this process."""

    def get_ready(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        take_off(residues, removals, salt=salt)


def masks_in(removals: Sequence[Removal]) -> int:
    return sum(_masks(removal) for removal in removals)


def divided(removals: Sequence[Removal], ranges: Sequence[Range]) -> list[list[Removal]]:
    """Return the masks of each of the consecutive ranges. A removal with many masks may be cut."""
    lists: list[list[Removal]] = [[] for _ in ranges]
    at = done = 0  # the range that is being filled, and the masks before the removal
    for removal in removals:
        count = _masks(removal)
        while at < len(ranges) and ranges[at][0] < done + count:
            start, stop = ranges[at]
            lists[at] += _cut(removal, max(start - done, 0), min(stop - done, count))
            if stop > done + count:
                break
            at += 1
        done += count
    return lists


def _masks(removal: Removal) -> int:
    return len(removal.pairs) if isinstance(removal, PairMasks) else 1


def _cut(removal: Removal, start: int, stop: int) -> list[Removal]:
    """Return the masks from `start` to `stop` of one removal."""
    if start >= stop:
        return []
    if isinstance(removal, SelfMask):
        return [removal]
    return [PairMasks(removal.mask_key, removal.pairs[start:stop])]


def portions(total: int, *, sharers: int, least: int) -> list[Range]:
    """Divide 0 to `total` into ranges, of which each of the `sharers` takes the next when it is ready.

    Large ones come first, so that there are few, and small ones last, so that no worker waits long for the
    others in the end: "Guided self-scheduling: a practical scheduling scheme for parallel supercomputers".
    All but the last have at least `least`, and there are at most `MOST_PORTIONS`.
    """
    least = max(least, -(-total // MOST_PORTIONS))
    ranges: list[Range] = []
    start = 0
    while start < total:
        stop = min(start + max(least, (total - start) // (2 * sharers)), total)
        ranges.append((start, stop))
        start = stop
    return ranges


def joined(several: Iterable[Seeds]) -> Seeds:
    plus: list[bytes] = []
    minus: list[bytes] = []
    for more_plus, more_minus in several:
        plus += more_plus
        minus += more_minus
    return plus, minus


def seeds_between(seeds: Seeds, portion: Range) -> Seeds:
    """Return a range of the seeds, where those to subtract come after those to add."""
    (plus, minus), (start, stop) = seeds, portion
    return plus[start:stop], minus[max(start - len(plus), 0) : max(stop - len(plus), 0)]


@dataclass(frozen=True)
class Slice:
    """A stretch of a vector: the elements of each part, and the bytes of key stream before the first."""

    ranges: tuple[Range, ...]
    skip: int

    def of(self, residues: Sequence[Residues]) -> list[Residues]:
        """Return the stretch as views."""
        return [part[start:stop] for part, (start, stop) in zip(residues, self.ranges, strict=True)]


def slices(residues: Sequence[Residues], shares: int) -> list[Slice]:
    """Cut the vector into `shares` stretches that need equally much key stream, except for one element."""
    total = sum(part.nbytes for part in residues)
    cuts = [total * share // shares for share in range(shares + 1)]
    return [_slice(residues, low, high) for low, high in pairwise(cuts)]


def _slice(residues: Sequence[Residues], low: int, high: int) -> Slice:
    """Return the elements whose first byte of key stream is one of `low` to `high`."""
    ranges, skip, base = [], -1, 0
    for part in residues:
        start, stop = (min(max(-(-(cut - base) // part.itemsize), 0), len(part)) for cut in (low, high))
        if skip < 0 and start < stop:
            skip = base + start * part.itemsize
        ranges.append((start, stop))
        base += part.nbytes
    return Slice(tuple(ranges), max(skip, 0))
