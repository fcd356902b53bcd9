"""The omniscient attack of "Robust Aggregation for Federated Learning": corrupt clients know all updates.

If all clients together have N samples, and the corrupt clients N_c, then every corrupt client submits

    u = (mean of the corrupt clients' honest updates) - 2 (N / N_c) (mean of all honest updates)

with means weighted by samples. The mean of all submitted updates is then minus the mean of all honest ones,
so that averaging the updates moves the model in the opposite direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, Unpack

import numpy as np

from fl.errors import TrainingError
from fl.learner_wrapper import LearnerWrapper
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering, TrainOptions


class Exchange(Protocol):
    """A learner that can exchange values with other learners that train at the same time."""

    def exchange(self, value: Any) -> Mapping[int, Any]:
        """Wait until all others have called this or finished. Return the callers' values by client id."""


class Omniscient(LearnerWrapper):
    """The learner of one client in a simulation of the omniscient attack: clients in `who` submit an update
    that reverses the mean of all updates. Every client has such a learner, because honest clients, too, must
    share their updates with the corrupt ones; they submit them unchanged. `weighted` says whether clients
    count in means by their number of samples, or equally."""

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
        """Share the update `trained` - `start` with all clients and wait for theirs. Return the model to
        submit: `trained` for honest clients. Outside of a batch (`in_batch`), only return `trained`."""
        if not getattr(self._exchange, "in_batch", True):  # not in a batch: nothing is submitted
            return trained
        weight = float(self.samples if self._weighted else 1)
        updates = self._exchange.exchange((trained - start, weight))
        if self._client not in self._who:
            return trained
        return np.asarray(start + against(updates, self._who), trained.dtype)


def against(updates: Mapping[int, tuple[Array, float]], who: Collection[int]) -> Array:
    """Return the update that every corrupt client (in `who`) submits. `updates` has the honest update and the
    weight of each client, by id. Updates with infinite or NaN elements are left out of all means, because
    clients do not send them. Raise `TrainingError` if no corrupt client with a positive weight is left."""
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
