"""Participants of whom an observer knows more than a server does: whether their training has diverged."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm
from sims.runtime import SessionChannel
from sims.runtime.participants import SimulatedParticipant

_NEVER = -1


class Watched(SimulatedParticipant):
    """`diverged` is the last round in which it had nothing to say: nobody here restarts and loses notes.

    In a sum with noise, who has nothing to say sends zeros, and nothing is noticed.
    """

    diverged = _NEVER

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        values = super().answer(kind, payload, round_number=round_number, invited=invited)
        if values is None:
            self.diverged = round_number
        return values


def watch(channel: SessionChannel, algorithm: AnyAlgorithm, trust: str) -> dict[int, Watched]:
    """Put watched participants in the place of those of a channel that nobody has used yet."""
    watched = {
        member: Watched(algorithm, each.learner, trust=trust, member=member)
        for member, each in channel.participants.items()
    }
    channel.participants.update(watched)
    return watched
