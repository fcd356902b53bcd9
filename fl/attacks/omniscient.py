"""The omniscient attack of "Robust Aggregation for Federated Learning": corrupt clients know all updates.

With N samples in all, of which corrupt clients hold N_c, every corrupt client submits

    u = (mean of the corrupt clients' honest updates) - 2 (N / N_c) (mean of all honest updates)

so that the mean of what everybody submits is minus the mean of all honest updates. Who averages then climbs
where it should descend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from fl.attacks.learner_wrapper import LearnerWrapper
from fl.errors import TrainingError
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering


class Exchange(Protocol):
    """What a learner that trains together with others can do besides."""

    def exchange(self, value: Any) -> Mapping[int, Any]:
        """Wait for everybody who is still at work on this sum; then, what each gave, by client."""
        ...


class Omniscient(LearnerWrapper):
    """One client of a cohort in which those in `who` are corrupt. All clients need it, honest ones too.

    Honest ones show their updates, and submit them unchanged. `weighted` says whether the algorithm weighs
    clients by their samples.
    """

    def __init__(self, learner: Any, client: int, who: Collection[int], *, weighted: bool = True) -> None:
        if not callable(getattr(learner, "exchange", None)):
            raise TrainingError(
                "an omniscient attack needs learners that train together and can exchange values: "
                "put the clients in a Crowd"
            )
        super().__init__(learner)
        self._exchange: Exchange = learner
        self._client = client
        self._who = frozenset(who)
        self._weighted = weighted

    def train(
        self,
        start: Array,
        steering: Steering = NO_STEERING,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Array | None = None,
    ) -> Array:
        return self._shown(start, super().train(start, steering, steps=steps, rate=rate, only=only))

    def _proximal(self, point: Array, eta: float) -> Array:
        return self._shown(point, super()._proximal(point, eta))

    def _shown(self, start: Array, trained: Array) -> Array:
        """What is submitted, once everybody's update is known to everybody."""
        if not getattr(self._exchange, "in_batch", True):  # nobody else is at work: nothing is submitted
            return trained
        weight = float(self.samples if self._weighted else 1)
        everybody = self._exchange.exchange((trained - start, weight))
        if self._client not in self._who:
            return trained
        return np.asarray(start + against(everybody, self._who), trained.dtype)


def against(updates: Mapping[int, tuple[Array, float]], who: Collection[int]) -> Array:
    """What corrupt clients submit, given everybody's honest update and weight.

    Whoever diverged is in no sum, and so in no mean.
    """
    everyone = sorted(client for client, (update, _) in updates.items() if np.isfinite(update).all())
    corrupt = sorted(set(everyone) & set(who))
    total, own = (sum(updates[client][1] for client in group) for group in (everyone, corrupt))
    if not own:
        raise TrainingError("an omniscient attack needs corrupt clients with samples")
    return _mean(updates, corrupt) - 2 * (total / own) * _mean(updates, everyone)


def _mean(updates: Mapping[int, tuple[Array, float]], clients: Iterable[int]) -> Array:
    chosen = [updates[client] for client in clients]
    weights = np.array([weight for _, weight in chosen])
    vectors = np.array([update for update, _ in chosen], np.float64)
    return np.asarray(weights @ vectors / weights.sum())
