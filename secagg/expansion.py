"""Who works masks off a total: this process, or several that share the work."""

from __future__ import annotations

from collections.abc import Sequence
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
