"""Newton's method for strictly convex functions of few variables, to machine precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fl.errors import DataError
from fl.samples import Array

_STEPS: Final = 100  # It needs about ten; more than this means that it will not get there.


def minimum(
    slope: Callable[[Array], Array],
    bend: Callable[[Array], Array],
    value: Callable[[Array], float],
    start: Array,
) -> Array:
    """Where `value` is least, given its gradient and its Hessian: until a step is nothing but rounding."""
    model = np.array(start, dtype=np.float64)
    for _ in range(_STEPS):
        step = np.linalg.solve(bend(model), slope(model))
        if np.abs(step).max() <= 1e-13 * max(1.0, np.abs(model).max()):
            return np.asarray(model - step)
        here, length = value(model), 1.0
        # Far from the minimum a full step can overshoot; near to it, values are equal up to rounding.
        while value(model - length * step) > here + 1e-12 * abs(here):
            length /= 2
        model -= length * step
    raise DataError("no optimum was found: the labels can be told apart by too wide a margin; add noise")
