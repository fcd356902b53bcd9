"""The server's choice of clients that have a `min_difference` in their policies.

Such a client refuses a sum over clients that differ from those of an earlier sum of its kind, but by fewer
than `min_difference`. Clients are therefore left out and taken in by batches: a client that is back waits
until enough others differ, and if one is missing, enough others are left out as well, or the sum is over
exactly the clients of an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from secagg.hashing import digest

# Bounds the work of one search. All subsets of 12 clients are within it.
_MOST_STEPS: Final = 20_000
_DEEPEST: Final = 400  # levels of recursion
_ENTRIES_PER_STEP: Final = 256  # of the table of clients and sets, which is made before a search


def is_allowed(members: Collection[int], earlier: Mapping[frozenset[int], int]) -> bool:
    """Return whether `members` are, for each set in `earlier`, exactly its clients, or differ from them by at
    least the number of clients that `earlier` has for it.

    >>> is_allowed({1, 2, 3}, {frozenset({1, 2, 3, 4}): 2})
    False
    """
    chosen = frozenset(members)
    return all(chosen == each or len(chosen ^ each) >= least for each, least in earlier.items())


def largest_roster(
    present: Collection[int],
    earlier: Mapping[frozenset[int], int],
    *,
    least: int,
    most: int,
    spare: int = 0,
) -> tuple[int, ...] | None:
    """Return the ids of `least` to `most` clients of `present` that are allowed (`is_allowed`), as many as
    possible, even if any `spare` of them drop out. Return None if there are none. If several choices have the
    same size, clients of an earlier set come first. If many earlier sets are close to each other, the search
    may end before it has found a set that is larger than any earlier one.

    >>> largest_roster([1, 2, 3, 4, 5], {frozenset({1, 2, 3, 4}): 3}, least=3, most=5)
    (1, 2, 3, 4)
    """
    here = frozenset(present)
    demands = {each: number for each, number in earlier.items() if number > 1}
    same = None if spare and demands else _largest_repeat(here, demands, least, most)
    fewest_left_out = max(0, len(here) - most)
    most_left_out = len(here) - (least + spare if same is None else len(same) + 1)
    steps = _Steps(_MOST_STEPS)
    for size in range(fewest_left_out, most_left_out + 1):
        left_out = _Search(here, demands, spare, steps).leave_out(size)
        if left_out is not None:
            return tuple(sorted(here - left_out))
    return None if same is None else tuple(sorted(same))


def _largest_repeat(
    here: frozenset[int], earlier: Mapping[frozenset[int], int], least: int, most: int
) -> frozenset[int] | None:
    """Return the largest earlier set, of `least` to `most` clients that are all here, that is allowed."""
    complete = (each for each in earlier if least <= len(each) <= most and each <= here)
    allowed = (each for each in complete if is_allowed(each, earlier))
    return max(allowed, key=lambda each: (len(each), sorted(each)), default=None)


class _Steps:
    """Counts down the steps that a search may still take."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> bool:
        """Take `count` steps. Return whether they were left."""
        self.left -= count
        return self.left >= 0


@dataclass(frozen=True)
class _Gap:
    """How far a roster is from an earlier set: it needs `inside` more clients of the set to be left out, or
    has `outside` clients that are not in the set, besides those that may drop out."""

    inside: int
    outside: int

    @property
    def lacking(self) -> int:
        """By how many clients more the roster must differ from the set; 0 or less if it differs enough."""
        return self.inside - max(self.outside, 0)

    def without(self, *, member: bool) -> _Gap:
        """Return the gap of a roster without one more client, which is a `member` of the set or not."""
        return _Gap(self.inside - member, self.outside - (not member))


class _Search:
    """Searches for clients to leave out, so that those that stay differ enough from all earlier sets. Clients
    that are in the same earlier sets are interchangeable, and are treated as one class."""

    def __init__(
        self, here: frozenset[int], demands: Mapping[frozenset[int], int], spare: int, steps: _Steps
    ) -> None:
        self._here = here
        self._steps = steps
        self._gaps = {
            each: _Gap(least - len(each - here), len(here - each) - spare) for each, least in demands.items()
        }
        self._classes: list[tuple[tuple[bool, ...], list[int]]] = []
        self._last = 0  # number of clients that are left to leave out at the deepest level of recursion

    def leave_out(self, size: int) -> frozenset[int] | None:
        """Return `size` clients to leave out; None if none were found."""
        near = [each for each, gap in self._gaps.items() if gap.lacking > -size]
        if not self._steps.take(len(self._here) * len(near) // _ENTRIES_PER_STEP):
            return None
        self._classes, self._last = self._classes_by(near), size - _DEEPEST
        counts = [0] * len(self._classes)
        if not self._find([self._gaps[each] for each in near], size, range(len(counts)), counts):
            return None
        return frozenset(
            member
            for (_, members), count in zip(self._classes, counts, strict=True)
            for member in members[:count]
        )

    def _classes_by(self, near: list[frozenset[int]]) -> list[tuple[tuple[bool, ...], list[int]]]:
        """Return the clients by the sets of `near` that they are in."""
        classes: dict[tuple[bool, ...], list[int]] = {}
        for member in sorted(self._here, key=lambda member: _rank(member, len(self._gaps))):
            classes.setdefault(tuple(member in each for each in near), []).append(member)
        return list(classes.items())

    def _find(self, gaps: list[_Gap], left: int, usable: Collection[int], counts: list[int]) -> bool:
        """Leave out `left` more clients, of the `usable` classes, and count them in `counts`. Return whether
        the rest differs enough from all sets, to which it has these `gaps`."""
        lacking = [gap.lacking for gap in gaps]
        worst = max(lacking, default=-left)
        if worst > left or not self._steps.take(1):
            return False
        if worst <= -left:  # whichever others are left out, the rest differs enough
            self._fill(left, counts)
            return True
        if left <= self._last:
            return False
        tried: set[int] = set()
        for index in self._candidates(lacking.index(worst), usable, counts, need=worst > 0):
            counts[index] += 1
            within = zip(gaps, self._classes[index][0], strict=True)
            after = [gap.without(member=member) for gap, member in within]
            if self._find(after, left - 1, [each for each in usable if each not in tried], counts):
                return True
            counts[index] -= 1
            tried.add(index)
        return False

    def _candidates(self, worst: int, usable: Collection[int], counts: list[int], *, need: bool) -> list[int]:
        """Return the classes of which a client can be left out next: first those in the set number `worst`,
        from which the rest differs least; if clients of it are not a `need`, then the others."""
        free = [index for index in usable if counts[index] < len(self._classes[index][1])]
        within = [index for index in free if self._classes[index][0][worst]]
        return within if need else within + [index for index in free if not self._classes[index][0][worst]]

    def _fill(self, left: int, counts: list[int]) -> None:
        for index, (_, members) in enumerate(self._classes):
            more = min(left, len(members) - counts[index])
            counts[index] += more
            left -= more


def _rank(member: int, salt: int) -> bytes:
    """Return a pseudorandom rank of a client, so that it is not always the same clients who are left out."""
    return digest("left out of a batch", salt.to_bytes(4, "big"), member.to_bytes(4, "big"))
