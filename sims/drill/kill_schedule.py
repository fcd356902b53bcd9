"""Draws at random which clients of a drill are killed and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from secagg import Trust
from secagg import messages as m
from secagg.hybrid_keys import KeyAgreement
from sims.drill.config import DrillConfig

SETUP: Final = -1  # used in place of the index of a sum for the set-up of the session
_OUTSIDE: Final = 0.3  # fraction of the kills within sums that happen at a random time
_LONGEST: Final = 0.5  # seconds from the start of a sum to the latest such kill
# (sum or `SETUP`, index of a message in `_MESSAGES`). Points compare in the order of the protocol.
ProtocolPoint: TypeAlias = tuple[int, int]
_MESSAGES: Final = (m.Advertisement, m.Shares, m.Deposit, m.MaskedInput, m.Confirmation, m.Reveal)
_IN_SET_UP: Final = 3  # of these


@dataclass(frozen=True)
class ScheduledKill:
    """Says when the process of a client is killed, with all its clients. If `delay` is None, the client kills
    it when a fraction `part` of its message at `point` of the protocol is sent, or when it sends a later
    message. Otherwise the main process kills it `delay` seconds after the sum of `point` began."""

    point: ProtocolPoint
    part: float  # 0: before the first byte; 1: after the last
    delay: float | None = None

    def is_due(self, point: ProtocolPoint, sent: int, size: int) -> bool:
        """Return whether the client kills itself now, after it has sent `sent` of the `size` bytes of its
        message at `point`. False if `delay` is set, because then the main process kills it."""
        if self.delay is not None:
            return False
        return point > self.point or (point == self.point and sent >= self.part * size)


def point_of(message: type[m.Message], sum_index: int) -> ProtocolPoint | None:
    """Return the point (sum, message) at which a client sends `message`; None if drills never kill there."""
    if message not in _MESSAGES:
        return None
    place = _MESSAGES.index(message)
    return (SETUP if place < _IN_SET_UP else sum_index, place)


def protocol_points(setting: DrillConfig) -> list[list[ProtocolPoint]]:
    """Return the points (sum, message) at which clients can be killed: a list for set-up and one per sum."""
    steps = (3, 4, 5) if setting.trust is Trust.MALICIOUS else (3, 5)
    in_set_up = range(_IN_SET_UP if setting.params.key_agreement is KeyAgreement.HYBRID else _IN_SET_UP - 1)
    return [
        [(SETUP, step) for step in in_set_up],
        *([(k, step) for step in steps] for k in range(setting.sums)),
    ]


def draw_kills(setting: DrillConfig, groups: Sequence[Sequence[int]]) -> dict[int, ScheduledKill]:
    """Draw from the seed which clients are killed and when. `groups` has the clients of each process, which
    are killed together: at most one kill per process, and at most `setting.killed` clients in all. Return
    each kill by the client that it is drawn for."""
    chance = random.Random(setting.seed)
    left, kills = setting.killed, {}
    for group in chance.sample(list(groups), len(groups)):
        if len(group) <= left:
            left -= len(group)
            kills[chance.choice(group)] = _draw_one(setting, chance)
    return kills


def _draw_one(setting: DrillConfig, chance: random.Random) -> ScheduledKill:
    point = chance.choice(chance.choice(protocol_points(setting)))
    part = chance.choice((0.0, chance.random(), 1.0))
    outside = point[0] != SETUP and chance.random() < _OUTSIDE
    return ScheduledKill(point, part, chance.random() * _LONGEST if outside else None)
