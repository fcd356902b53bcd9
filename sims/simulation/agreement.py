"""How far clients agree on where the common model should go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fl.crowd import Crowd
from fl.samples import Array
from protocols.run import Run
from sims.runtime import ObservedChannel

_DIGITS: Final = 4


def agreement() -> Callable[[int, Run[Any], ObservedChannel, Crowd], Any]:
    """The mean cosine between clients' honest updates and their mean, weighted by samples.

    From 0, where they cancel, to 1, where all are the same. It is the pull of one unit vector for each client
    along their common way, and so what a geometric median has to set against clients who all pull the other
    way. Trainings are seen from the second round on.
    """
    models: list[Array] = []
    seen: dict[int, Array] = {}

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        before = models.pop() if models else None
        models.append(np.array(run.model))
        if crowd.latest is None:
            crowd.latest = {}
        trained = {client: own for client, own in crowd.latest.items() if seen.get(client) is not own}
        seen.update(trained)
        if before is None or not trained:
            return None
        updates = np.stack([own - before for own in trained.values()])
        return _cosine(updates, np.array([crowd[client].samples for client in trained], float))

    return observe


def _cosine(updates: Array, weights: Array) -> float | None:
    """None where a model diverged."""
    if not np.isfinite(updates).all():
        return None
    mean = np.average(updates, axis=0, weights=weights)
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(mean)
    cosines = np.divide(updates @ mean, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return round(float(np.average(cosines, weights=weights)), _DIGITS)
