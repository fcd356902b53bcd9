"""The number of rounds until a metric reaches a target value."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import number, same_length, series
from fl.errors import FLError


def rounds_to(
    values: ArrayLike, target: float, *, rounds: ArrayLike | None = None, falling: bool = False
) -> float | None:
    """Return the number of the first round with a value of at least `target` (with `falling`: at most), or
    None if there is none. `rounds[i]` is the round in which `values[i]` was measured; i by default."""
    numbers, aim = series("values", values, finite=False), number("the target", target)
    when = np.arange(len(numbers), dtype=np.float64) if rounds is None else series("rounds", rounds)
    same_length("values", numbers, "rounds", when)
    if (np.diff(when) <= 0).any():
        raise FLError("rounds must be given in order, each once")
    reached = np.flatnonzero(numbers <= aim if falling else numbers >= aim)
    return float(when[reached[0]]) if reached.size else None
