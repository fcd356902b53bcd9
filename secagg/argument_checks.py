"""Checks of numbers and names given as arguments: each function returns the value, or raises
`ParameterError`. Numpy numbers are accepted like Python numbers. Bools and strings are not numbers."""

from __future__ import annotations

from enum import StrEnum
from numbers import Integral, Real
from typing import TypeGuard, TypeVar

import numpy as np

from secagg.errors import ParameterError

_Kind = TypeVar("_Kind", bound=StrEnum)


def whole(value: object, what: str, least: int, most: int) -> int:
    value = _plain(value)
    if not _is_whole(value) or not least <= value <= most:
        raise ParameterError(f"{what} must be a whole number from {least} to {most}")
    return int(value)


def real(value: object, what: str, least: float, most: float) -> float:
    """Return `value` as a float. Raises `ParameterError`, in which `what` names the value, unless it is a
    number from `least` to `most`."""
    value = _plain(value)
    if not _is_real(value) or not least <= value <= most:
        raise ParameterError(f"{what} must be a number from {least:g} to {most:g}")
    return float(value)


def probability(value: object, what: str) -> float:
    """Return `value` as a float. Raises `ParameterError`, in which `what` names the value, unless it is a
    number above 0 and below 1, and still is after rounding to a float."""
    value = _plain(value)
    if not _is_real(value) or not 0 < value < 1 or not 0 < float(value) < 1:
        raise ParameterError(f"{what} must be a number above 0 and below 1")
    return float(value)


def share(value: object, what: str) -> float:
    value = _plain(value)
    if not _is_real(value) or not 0 < value <= 1:
        raise ParameterError(f"{what} must be a number above 0 and at most 1")
    return float(value)


def one_of(kinds: type[_Kind], value: object, what: str) -> _Kind:
    """Return the member of the enum `kinds` that `value` is, or whose string it is. Raises `ParameterError`,
    in which `what` names the value, if there is none."""
    try:
        return kinds(value)  # type: ignore[arg-type]  # other values raise
    except ValueError:
        raise ParameterError(f"{what} must be one of {', '.join(kinds)}") from None


def _is_whole(value: object) -> TypeGuard[int]:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_real(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, Real)


def _plain(value: object) -> object:
    """Return a numpy scalar as a Python number, whose comparisons are exact, and other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value
