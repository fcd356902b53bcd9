"""Runs a few rounds of an algorithm without noise and without protection, to measure what clients would send.

Only a simulation can do this, as it has the data of all clients. Nothing of it reaches the run itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from protocols.algorithm import AnyAlgorithm, ClientRound
from protocols.averaging import clipped
from protocols.rounds import Query, run_round
from protocols.serialisation import Vector
from secagg.errors import SumFailed
from secagg.sum_spec import L2, LInf, Part, Total
from sims.plan.signal_and_noise import MeasuredVectors

Measured = Mapping[tuple[str, str], MeasuredVectors]


def measure(
    algorithm: AnyAlgorithm,
    learners: Mapping[int, Any],
    initial: Vector,
    *,
    rounds: int,
    begin_round: Callable[[int], None],
) -> Measured:
    """Return the norms of what these clients send in the first `rounds` rounds, by kind of sum and name of
    the part. `begin_round` is called with the number of every round, from 0. If a round cannot be completed,
    only the sums before that are measured."""
    trial = _Trial(algorithm, list(learners.values()))
    state = algorithm.start(initial)
    with suppress(SumFailed):  # a total that the algorithm cannot use, such as weights of zero
        for number in range(rounds):
            begin_round(number)
            trial.begin()
            state = run_round(algorithm.round(state), trial.ask).state
            trial.end()
    return trial.measured()


class _Trial:
    """Answers the queries of rounds with exact totals, and records norms."""

    def __init__(self, algorithm: AnyAlgorithm, learners: Sequence[Any]) -> None:
        self._algorithm = algorithm
        self._learners = learners
        self._memories = [algorithm.first_memory() for _ in learners]
        self._clients: list[ClientRound[Any]] = []
        self._norms: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def begin(self) -> None:
        own = zip(self._learners, self._memories, strict=True)
        self._clients = [self._algorithm.client(learner, memory) for learner, memory in own]

    def end(self) -> None:
        self._memories = [client.memory() for client in self._clients]

    def ask(self, query: Query) -> Total:
        assert self._algorithm.table is not None  # there is a query
        spec, count = self._algorithm.table[query.kind], len(self._clients)
        answers = [client.answer(query) for client in self._clients]
        usable = [each for each in answers if all(np.isfinite(values).all() for values in each.values())]
        parts = {part.name: self._added(query.kind, part, usable) for part in spec.parts}
        return Total(parts, count=count, invited=count)

    def _added(self, kind: str, part: Part, answers: Sequence[Mapping[str, Any]]) -> Any:
        vectors = [_bounded(part, each[part.name]) for each in answers]
        total = np.sum(vectors, axis=0) if vectors else np.zeros(part.size)
        mean = float(np.linalg.norm(total)) / len(self._clients)
        longest = max((float(np.linalg.norm(each)) for each in vectors), default=0.0)
        self._norms.setdefault((kind, part.name), []).append((longest, mean))
        return total.astype(np.uint64) if part.counts and part.noise is None else total

    def measured(self) -> Measured:
        return {
            key: MeasuredVectors(
                longest=float(np.mean([longest for longest, _ in norms])),
                mean=float(np.mean([mean for _, mean in norms])),
            )
            for key, norms in self._norms.items()
        }


def _bounded(part: Part, values: Any) -> Vector:
    vector = np.asarray(values, np.float64)
    match part.bound:
        case L2(limit):
            return clipped(vector, limit)
        case LInf(limit):
            return np.clip(vector, -limit, limit)
        case _:
            return vector
