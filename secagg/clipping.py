"""Real vectors within their bound, block by block: all that becomes of a block stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.inputs import largest
from secagg.spec import L2, LInf

Real: TypeAlias = NDArray[np.float64]
# How a block of the input becomes real numbers of our own, within the bound.
Clip: TypeAlias = Callable[[NDArray[Any]], Real]

# Coordinates converted at a time.
_BLOCK: Final = 1 << 14


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))


def clip(array: NDArray[Any], bound: L2 | LInf) -> tuple[Clip, float]:
    """(what clips a block of `array`, factor by which the largest excess is reduced)."""
    most = largest(array)
    if isinstance(bound, LInf):
        if most <= bound.limit:
            return _as_real, 1.0
        return lambda block: _as_real(block).clip(-bound.limit, bound.limit), bound.limit / most
    if not most:
        return _as_real, 1.0
    # Dividing by the largest coordinate first keeps the squares of huge inputs finite.
    norm = math.sqrt(sum(sum_of_squares(_as_real(block) / most) for block in blocks(array)))
    factor = bound.limit / most / norm
    if factor >= 1.0:
        return _as_real, 1.0
    return lambda block: _as_real(block) / most * (bound.limit / norm), factor


def sum_of_squares(vector: Real) -> float:
    # A dot product would be left to BLAS, which starts threads and keeps them spinning.
    return float(np.square(vector).sum())


def _as_real(block: NDArray[Any]) -> Real:
    """A copy: the input is the caller's."""
    return block.astype(np.float64)
