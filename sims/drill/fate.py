"""Fates: which process is killed, and at which point of the protocol."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from secagg import Trust
from secagg import messages as m
from sims.drill.setting import DrillSetting

SETUP: Final = -1
_OUTSIDE: Final = 0.3  # part of the fates within sums that others bring about
_LONGEST: Final = 0.5  # seconds
Point: TypeAlias = tuple[int, int]  # (sum, place of a message in it), in the order of the protocol
_MESSAGES: Final = (m.Advertisement, m.Shares, m.MaskedInput, m.Confirmation, m.Reveal)


@dataclass(frozen=True)
class Fate:
    """When a client is killed.

    By its own hand when it has sent a part of its message at this point, or of a later one; or, where `delay`
    is not None, by another's, so many seconds after the sum at this point was begun.
    """

    point: Point
    part: float  # 0: before the first byte; 1: after the last
    delay: float | None = None

    def has_come(self, point: Point, sent: int, size: int) -> bool:
        if self.delay is not None:
            return False
        return point > self.point or (point == self.point and sent >= self.part * size)


def point_of(message: type[m.Message], sum_index: int) -> Point | None:
    """Where a message belongs; None for one that is no step of the protocol."""
    if message not in _MESSAGES:
        return None
    place = _MESSAGES.index(message)
    return (SETUP if place < 2 else sum_index, place)


def points(setting: DrillSetting) -> list[list[Point]]:
    """Those of the set-up, and those of each sum."""
    steps = (2, 3, 4) if setting.trust is Trust.MALICIOUS else (2, 4)
    return [[(SETUP, 0), (SETUP, 1)], *([(k, step) for step in steps] for k in range(setting.sums))]


def draw(setting: DrillSetting, crews: Sequence[Sequence[int]]) -> dict[int, Fate]:
    """Fates of clients, at most one in each process, whose ends take `kill` of all clients with them.

    A process that hosts several clients takes all of them with it, so there may be fewer, never more.
    """
    chance = random.Random(setting.seed)
    left, fates = setting.killed, {}
    for crew in chance.sample(list(crews), len(crews)):
        if len(crew) <= left:
            left -= len(crew)
            fates[chance.choice(crew)] = _draw_one(setting, chance)
    return fates


def _draw_one(setting: DrillSetting, chance: random.Random) -> Fate:
    point = chance.choice(chance.choice(points(setting)))
    part = chance.choice((0.0, chance.random(), 1.0))
    outside = point[0] != SETUP and chance.random() < _OUTSIDE
    return Fate(point, part, chance.random() * _LONGEST if outside else None)
