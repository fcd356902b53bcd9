"""What the tests of the smaller algorithms share: quadratic clients, and runs over both channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm
from protocols.quadratic_learner import QuadraticLearner
from protocols.run import Run
from protocols.serialisation import Vector, pack
from secagg.local_session import Stage
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum, secure_sum

Learners = dict[int, QuadraticLearner]


def quadratics(
    centres: ArrayLike,
    curvatures: Sequence[float] | None = None,
    *,
    samples: Sequence[int] | None = None,
    rate: float = 0.1,
    steps: int = 1,
) -> Learners:
    """One client for each row of `centres`."""
    rows = np.atleast_2d(np.asarray(centres, np.float64))
    return {
        k: QuadraticLearner(
            row,
            1.0 if curvatures is None else curvatures[k],
            samples=1 if samples is None else samples[k],
            rate=rate,
            steps=steps,
        )
        for k, row in enumerate(rows)
    }


class Diverged(QuadraticLearner):
    """A client of whose model one number is infinite, however it is trained."""

    def train(self, start: Vector, *_args: Any, **_other: Any) -> Vector:
        trained = np.array(start)
        trained[0] = np.inf
        return trained


def ran(
    algorithm: AnyAlgorithm, learners: Learners, rounds: int, *, secure: bool = False, **setting: Any
) -> tuple[Run[Any], SessionChannel]:
    """A run over the plain or the secure channel, and the channel."""
    make = secure_sum if secure else insecure_plain_sum
    channel = make(algorithm, learners, Setting(**setting))
    run = Run(algorithm, channel, algorithm.start(np.zeros(algorithm.dim)))
    for _ in range(rounds):
        run.round()
    return run, channel


def settled(algorithm: AnyAlgorithm, learners: Learners, rounds: int) -> Vector:
    """The model after so many rounds, all of them completed."""
    run, _ = ran(algorithm, learners, rounds)
    assert all(run.round_info.completed(number) for number in range(max(0, rounds - 63), rounds))
    return run.model


def assert_same_bits(algorithm: AnyAlgorithm, learners: Learners, rounds: int = 3) -> None:
    """State and memories after some rounds do not depend on whether sums are secure."""
    found = []
    for make in (secure_sum, insecure_plain_sum):
        channel = make(algorithm, learners, Setting(insecure_seed=b"the same rounding"))
        run = Run(algorithm, channel, algorithm.start(np.zeros(algorithm.dim)))
        reports = [run.round() for _ in range(rounds)]
        assert all(report.completed for report in reports)
        memories = [pack(each.memory) for each in channel.participants.values()]
        found.append((pack(run.state), memories))
    assert found[0] == found[1]
    assert np.any(run.model != 0)


def missing(member: int, stage: Stage, number: int, sum_number: int = 0) -> DropoutSchedule:
    """One client goes missing at one stage of one sum of one round."""

    def dropouts(who: int, where: Stage, round_info: int, asked: int) -> bool:
        return (who, where, round_info, asked) == (member, stage, number, sum_number)

    return dropouts


def all_missing(number: int, stage: Stage = Stage.MASK) -> DropoutSchedule:
    """Nobody gets further than that stage in one round."""

    def dropouts(_who: int, where: Stage, round_info: int, asked: int) -> bool:
        return where is stage and round_info == number and asked >= 0

    return dropouts
