"""The omniscient attack of "Robust Aggregation for Federated Learning": corrupt clients know all updates.

If all clients together have N samples, and the corrupt clients N_c, then every corrupt client submits

    u = (mean of the corrupt clients' honest updates) - 2 (N / N_c) (mean of all honest updates)

The mean of all submitted updates is then minus the mean of all honest ones, so that averaging the updates
moves the model in the opposite direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, Unpack

import numpy as np

from fl.attacks.learner_wrapper import LearnerWrapper
from fl.errors import TrainingError
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering, TrainOptions


class Exchange(Protocol):
    """A learner that can exchange values with other learners that train at the same time."""

    def exchange(self, value: Any) -> Mapping[int, Any]:
        """Wait until every other client has called this or ended. Return all values passed, by client id."""


class Omniscient(LearnerWrapper):
    """The learner of one client in a simulation where the clients in `who` are corrupt.

    Honest clients are wrapped, too: they share their updates with the corrupt clients, and submit them
    unchanged. `weighted` says whether the algorithm weights clients by their numbers of samples.
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

    def train(self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]) -> Array:
        return self._submitted(start, super().train(start, steering, **options))

    def _proximal(self, point: Array, eta: float) -> Array:
        return self._submitted(point, super()._proximal(point, eta))

    def _submitted(self, start: Array, trained: Array) -> Array:
        """Return the model that this client submits, after waiting for the updates of all clients."""
        if not getattr(self._exchange, "in_batch", True):  # not in a batch: nothing is submitted
            return trained
        weight = float(self.samples if self._weighted else 1)
        updates = self._exchange.exchange((trained - start, weight))
        if self._client not in self._who:
            return trained
        return np.asarray(start + against(updates, self._who), trained.dtype)


def against(updates: Mapping[int, tuple[Array, float]], who: Collection[int]) -> Array:
    """Return the update that corrupt clients submit, given the honest (update, weight) of every client by id.
    Clients with infinite or NaN updates are left out of the means, because no sum includes them."""
    clients = sorted(client for client, (update, _) in updates.items() if np.isfinite(update).all())
    corrupt = sorted(set(clients) & set(who))
    total, own = (sum(updates[client][1] for client in group) for group in (clients, corrupt))
    if not own:
        raise TrainingError("an omniscient attack needs corrupt clients with samples")
    return _mean(updates, corrupt) - 2 * (total / own) * _mean(updates, clients)


def _mean(updates: Mapping[int, tuple[Array, float]], clients: Iterable[int]) -> Array:
    chosen = [updates[client] for client in clients]
    weights = np.array([weight for _, weight in chosen])
    vectors = np.array([update for update, _ in chosen], np.float64)
    return np.asarray(weights @ vectors / weights.sum())
