"""Numbers that a metric can be computed from: not none, none missing, and as many as belong to them."""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl.errors import FLError
from fl.samples import Array

Floats: TypeAlias = NDArray[np.float64]


def series(name: str, values: ArrayLike, *, finite: bool = True) -> Floats:
    """One number for each client, round or seed. `finite=False` lets infinities pass, never NaN."""
    numbers = array(name, values)
    if not numbers.size:
        raise FLError(f"there are no {name}: give at least one")
    if numbers.ndim != 1:
        raise FLError(f"{name} must be a list of numbers, not an array of shape {numbers.shape}")
    return _double(name, numbers, finite=finite)


def vector(name: str, model: ArrayLike) -> Floats:
    """A model as one vector, in double precision."""
    numbers = array(name, model)
    if numbers.ndim != 1 or not numbers.size:
        raise FLError(f"{name} must be one flat vector with at least one element, not shape {numbers.shape}")
    return _double(f"elements of {name}", numbers, finite=True)


def array(name: str, values: ArrayLike) -> Array:
    """Numbers, in rows of the same length if there are several."""
    try:
        numbers = np.asarray(values)
    except ValueError:  # rows of several lengths
        raise FLError(f"{name} must all have the same length") from None
    if numbers.dtype.kind not in "biuf":
        raise FLError(f"{name} must be numbers, not {numbers.dtype}")
    return numbers


def number(name: str, value: float) -> float:
    if not np.isfinite(value):
        raise FLError(f"{name} is {value}: give a finite number")
    return float(value)


def same_length(first_name: str, first: Sized, second_name: str, second: Sized) -> None:
    if len(first) != len(second):
        raise FLError(
            f"{len(first)} {first_name} and {len(second)} {second_name}: give one of each, in the same order"
        )


def _double(name: str, numbers: Array, *, finite: bool) -> Floats:
    """In double precision; always a copy, so that nobody's array changes under another's hands."""
    found = numbers.astype(np.float64)
    bad = ~np.isfinite(found) if finite else np.isnan(found)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise FLError(
            f"{int(bad.sum())} of {len(found)} {name} are {'not finite' if finite else 'NaN'}, the first "
            f"at index {first}: leave them out, or find out what diverged"
        )
    return found
