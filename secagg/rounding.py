"""Stochastic rounding: up with a probability equal to the fraction, so that nothing is biased."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.clipping import Real
from secagg.masks import KeyStream

_BITS: Final = 53


def rounded(values: Real, stream: KeyStream) -> NDArray[np.int64]:
    """Each of `values` or one of its two neighbours. What is left of `values` is of no use."""
    whole = np.floor(values)
    values -= whole
    values *= 2.0**_BITS  # a power of two: exact
    draw = stream.words(len(values)) >> (64 - _BITS)
    result = whole.astype(np.int64)
    result += draw.view(np.int64) < values.astype(np.int64)
    return result


def float_at_most(value: int) -> float:
    """The largest float64 that does not exceed `value`."""
    nearest = float(value)
    return nearest if int(nearest) <= value else float(np.nextafter(nearest, 0.0))
