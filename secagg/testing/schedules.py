"""Who goes missing, and when: drop-out schedules by stage.

A schedule answers "is this member absent from this stage of this sum?" and nothing else, so the same one
serves `LocalSession(absent=...)` and, through `wire.losing`, the fake wire. The sum of set-up is -1. Every
schedule is a pure function of its arguments: the order in which it is asked does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from secagg.hashing import digest
from secagg.local import Absent, Stage

SET_UP: Final = -1

Moment: TypeAlias = tuple[Stage, int]  # a stage of a sum, or of set-up

_ORDER: Final = list(Stage)


def explicit(*absences: tuple[int, Stage, int]) -> Absent:
    """Exactly these (member, stage, sum) are missing."""
    missing = frozenset(absences)
    return lambda member, stage, sum_index: (member, stage, sum_index) in missing


def at_random(seed: bytes, rates: Mapping[Stage, float]) -> Absent:
    """Each member misses each stage on its own, with the stage's rate (0 where there is none)."""

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        return uniform(seed, member, _ORDER.index(stage), sum_index) < rates.get(stage, 0.0)

    return absent


def leaves_for_good(leavers: Mapping[int, Moment]) -> Absent:
    """Each leaver takes part until its moment and is never seen again."""

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        return member in leavers and _place(*leavers[member]) <= _place(stage, sum_index)

    return absent


def returns_next_sum(leavers: Mapping[int, Moment]) -> Absent:
    """Each leaver misses the rest of one sum, from its moment on, and is back for the next."""

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        if member not in leavers or leavers[member][1] != sum_index:
            return False
        return _place(*leavers[member]) <= _place(stage, sum_index)

    return absent


def either(*schedules: Absent) -> Absent:
    """Missing according to any of `schedules`."""
    return lambda *moment: any(schedule(*moment) for schedule in schedules)


def uniform(seed: bytes, *numbers: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    fields = (number.to_bytes(8, "big", signed=True) for number in numbers)
    return int.from_bytes(digest("insecure test choice", seed, *fields)[:6], "big") / (1 << 48)


def _place(stage: Stage, sum_index: int) -> tuple[int, int]:
    """Moments in the order of time."""
    return sum_index, _ORDER.index(stage)
