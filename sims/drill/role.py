"""What the clients of a drill do: add numbers of their own, and die when their time has come."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg import messages as m
from secagg.errors import SERVER
from secagg.events import Asked
from secagg.net.link import Progress
from sims.drill.fate import SETUP, Fate, point_of
from sims.drill.setting import PART, DrillSetting


def numbers(setting: DrillSetting, member: int, sum_index: int) -> NDArray[np.uint32]:
    """What a client adds: other numbers than anybody else, and than in any other sum."""
    chance = np.random.default_rng([setting.seed, member, sum_index])
    return chance.integers(0, setting.limit, setting.dim, np.uint32, endpoint=True)


def plain_sum(setting: DrillSetting, members: Iterable[int], sum_index: int) -> NDArray[np.int64]:
    total = np.zeros(setting.dim, np.int64)
    for member in members:
        total += numbers(setting, member, sum_index)
    return total


@dataclass(frozen=True)
class Part:
    """What a worker is told: the drill, and the fates of its clients."""

    setting: DrillSetting
    fates: Mapping[int, Fate]


class DrillRole:
    """The clients of one worker."""

    def __init__(self, part: Part) -> None:
        self._setting = part.setting
        self._fates = part.fates
        self._sums: dict[int, int] = {}
        self.table = part.setting.table
        self.policy = part.setting.policy

    def answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike]:
        self._sums[member] = asked.sum_index
        return {PART: numbers(self._setting, member, asked.sum_index)}

    def progress(self, member: int) -> Progress:
        fate = self._fates.get(member)

        def look(frame: bytes, sent: int) -> None:
            point = point_of(m.message_type(frame, sender=SERVER), self._sums.get(member, SETUP))
            if fate is not None and point is not None and fate.has_come(point, sent, len(frame)):
                os.kill(os.getpid(), signal.SIGKILL)

        return look
