"""How far a model is from one that is known to be the best."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl.errors import FLError
from fl.metrics.checked import Floats, number, same_length, series, vector


def distance(model: ArrayLike, optimum: ArrayLike) -> float:
    """Euclidean, in double precision whatever the models are in."""
    here, there = vector("the model", model), vector("the optimum", optimum)
    same_length("elements of the model", here, "of the optimum", there)
    return float(np.linalg.norm(here - there))


def relative_distance(model: ArrayLike, optimum: ArrayLike) -> float:
    """In lengths of the optimum."""
    length = float(np.linalg.norm(vector("the optimum", optimum)))
    if length == 0:
        raise FLError("the optimum is zero, so no distance is relative to it: use `distance`")
    return distance(model, optimum) / length


def gaps(losses: ArrayLike, best: float, *, tolerance: float = 1e-6) -> Floats:
    """By how much each loss is above that of the optimum.

    Rounding may put a loss a little below: up to `tolerance` times the best loss counts as no gap.
    Infinite losses, of models that diverged, have infinite gaps.
    """
    values = series("losses", losses, finite=False)
    least = number("the loss of the optimum", best)
    found = values - least
    if (below := found < -tolerance * abs(least)).any():
        raise FLError(
            f"a loss of {values[below].min():g} is below {least:g}, which is said to be the least: "
            "compute the optimum more exactly"
        )
    return np.maximum(found, 0.0)


def relative_gaps(losses: ArrayLike, best: float, start: float, *, tolerance: float = 1e-6) -> Floats:
    """The share of the gap at `start` that is left."""
    first = number("the loss at the start", start) - number("the loss of the optimum", best)
    if first <= 0:
        raise FLError(f"the loss at the start, {start:g}, is not above that of the optimum, {best:g}")
    return gaps(losses, best, tolerance=tolerance) / first
