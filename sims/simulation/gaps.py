"""How far the common model is from the best one, where that is known exactly.

It is for linear models with a squared or a logistic loss (fl/proximal.py). What is measured is the objective
of all clients together, the sum over all their samples of the loss, weight decay included, above its least.
Papers that divide a sum by the number of users or of samples have this divided by that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fl.crowd import Crowd
from fl.errors import FLError
from fl.proximal import Exact
from fl.samples import Array
from protocols.run import Run
from sims.runtime import ObservedChannel

_DIGITS: Final = 5  # that count: gaps go through many orders of magnitude
_DIVERGED: Final = "diverged"

Observer = Callable[[int, Run[Any], ObservedChannel, Crowd], Any]


def optimality_gap() -> Observer:
    """Of the model in use."""
    return _gap(lambda run: run.model)


def ergodic_gap() -> Observer:
    """Of the mean of all rounds' models, each weighted by the size of its step, where the algorithm keeps it.

    It is what a splitting scheme would have for its model if it were told to be `ergodic`.
    """
    return _gap(lambda run: getattr(run.state, "average", None))


def _gap(chosen: Callable[[Run[Any]], Array | None]) -> Observer:
    known: list[tuple[Exact, int]] = []

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        model = chosen(run)
        if model is None:
            return None
        if not known:
            known.append(_everybody(crowd))
        objective, samples = known[0]
        gap = samples * objective.excess(np.asarray(model)) if np.isfinite(model).all() else math.inf
        return float(f"{gap:.{_DIGITS}g}") if math.isfinite(gap) else _DIVERGED

    return observe


def _everybody(crowd: Crowd) -> tuple[Exact, int]:
    """The objective of all clients' data in one place, and how many samples it is the mean of."""
    pooled = crowd.pooled()
    if pooled.exact is None:
        raise FLError(
            "the optimum is not known, so there is no gap to it: observe optimality-gap and ergodic-gap with "
            'a linear model (kind = "linear") and the loss squared or logistic, or leave them out'
        )
    return pooled.exact, pooled.samples
