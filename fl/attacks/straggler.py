"""Stragglers: clients that submit their model after only some of their epochs.

In every round, a fraction of the clients are stragglers, and each of them runs 1 to E - 1 of E epochs,
uniformly at random, as in "Federated Optimization in Heterogeneous Networks" (FedProx). Algorithms are not
told the reduced number of steps, even those that use the number of steps, such as SCAFFOLD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from fl.attacks.corrupt_clients import by_count
from fl.errors import TrainingError
from fl.learner_wrapper import LearnerWrapper, WrappedLearners, generator
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering, TrainOptions


class Straggler(LearnerWrapper):
    """A learner that stops early with probability `share` per training, after some of its `epochs` epochs."""

    def __init__(self, learner: Any, rng: np.random.Generator, *, epochs: int, share: float = 1.0) -> None:
        super().__init__(learner)
        if epochs < 1:
            raise TrainingError(f"epochs must be at least 1 for stragglers, not {epochs}")
        self._rng = rng
        self._epochs = epochs
        self._share = _check_share(share)

    def train(self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]) -> Array:
        steps = options.get("steps")
        options["steps"] = self._steps_done(self.steps if steps is None else steps)
        return super().train(start, steering, **options)

    def _steps_done(self, steps: int) -> int:
        """Return how many of `steps` steps this training does; at least one, unless `steps` is 0. Every call
        draws the same number of random values, so that trainings are reproducible."""
        late, epochs = self._rng.random() < self._share, int(self._rng.integers(1, max(self._epochs, 2)))
        if not late or not steps:
            return steps
        return max(1, steps * epochs // self._epochs)


def slow_down(
    learners: Mapping[int, Any], *, fraction: float, epochs: int, seed: int, fixed: bool = False
) -> WrappedLearners:
    """Return the learners by client id, some as stragglers, which stop before the end of `epochs` epochs. By
    default, each client is a straggler with probability `fraction` in every training, so their number varies.
    If `fixed`, this fraction of the clients is chosen once, and these are always stragglers."""
    _check_share(fraction)
    late = by_count(learners, fraction, seed) if fixed else frozenset(learners)

    def change(client: int, learner: Any) -> Any:
        if client not in late:
            return learner
        rng = generator("straggler", seed, client)
        return Straggler(learner, rng, epochs=epochs, share=1.0 if fixed else fraction)

    return WrappedLearners.of(learners, change)


def _check_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise TrainingError(f"the share of stragglers must be from 0 to 1, not {share!r}")
    return share
