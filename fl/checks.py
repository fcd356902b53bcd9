"""Checks of arguments: numbers, names, arrays and vectors. The error messages name the invalid argument."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sized
from difflib import get_close_matches
from typing import Final, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl.errors import DataError, FLError, TrainingError
from fl.samples import Array

Floats: TypeAlias = NDArray[np.float64]
_SEEDS: Final = 2**32

# --- numbers ---


def plain(value: object) -> object:
    """Return a numpy number as a Python number, and any other value unchanged."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return value


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is a Python integer. Booleans and numpy integers do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or float, finite and in the range of floats. Booleans do not count."""
    return (is_integer(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def counted(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int. Raise `DataError` unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}", parameter=name)
    return int(value)


def finite(name: str, value: object) -> float:
    """Return `value` as a float. Raise `DataError` unless it is a finite number."""
    number = plain(value)
    if not is_real(number):
        raise DataError(f"{name} must be a finite number, not {value!r}", parameter=name)
    return float(number)


def positive(name: str, value: object, error: type[FLError] = DataError) -> float:
    """Return `value` as a float. Raise `error` unless it is a finite number above zero."""
    number = plain(value)
    if not is_real(number) or number <= 0:
        raise error(f"{name} must be above 0 and finite, not {value!r}", parameter=name)
    return float(number)


def not_negative(name: str, value: float) -> float:
    """Return `value` as a float. Raise `DataError` unless it is a finite number of at least zero."""
    if not 0 <= value < np.inf:
        raise DataError(f"{name} must be a finite number, zero or above, not {value!r}", parameter=name)
    return float(value)


def checked_seed(seed: object) -> int:
    """Return `seed` as an int. Raise `DataError` unless it is from 0 to 2^32 - 1, as `RandomState` needs."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < _SEEDS:
        raise DataError(f"seed must be a whole number from 0 to 2^32 - 1, not {seed!r}", parameter="seed")
    return int(seed)


# --- parameters of models ---


def check_sizes(**values: int) -> None:
    """Raise `TrainingError` for a value that is not an integer of at least 1."""
    for name, value in values.items():
        if not _is_size(value):
            raise TrainingError(f"{name} must be a whole number of 1 or more, not {value!r}", parameter=name)


def check_booleans(**values: bool) -> None:
    """Raise `TrainingError` for a value that is not a boolean; a text such as "no" would count as true."""
    for name, value in values.items():
        if type(value) is not bool:
            raise TrainingError(f"{name} must be true or false, not {value!r}", parameter=name)


def check_probabilities(**values: float) -> None:
    """Raise `TrainingError` for a value that is not a number from 0 to below 1."""
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise TrainingError(f"{name} must be a number from 0 to below 1, not {value!r}", parameter=name)


def layer_widths(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Return a list or tuple of widths as a tuple. Raise `TrainingError` unless all are integers above 0."""
    if not isinstance(values, (list, tuple)) or not all(map(_is_size, values)):
        raise TrainingError(
            f"{name} must be a list of whole numbers such as [100, 100], not {values!r}", parameter=name
        )
    return tuple(values)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


# --- names ---


def unknown_name(
    what: str, name: object, known: Iterable[str], error: type[FLError] = TrainingError, *, parameter: str
) -> FLError:
    """Return (do not raise) the error that there is no `what`, such as "model", called `name`. Its message
    suggests the closest of the names in `known` and lists all of them. `parameter` is stored in the error."""
    names = tuple(known)
    near = get_close_matches(str(name), names, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(names) or "none"
    return error(f"there is no {what} {name!r}{meant} Available: {listed}", parameter=parameter)


# --- arrays of metrics ---


def series(name: str, values: ArrayLike, *, finite: bool = True) -> Floats:
    """Return `values`, a list of numbers, as a float64 array. Raise `FLError` if it is empty, not
    one-dimensional, or has NaN or infinite values; `finite=False` accepts infinite values."""
    numbers = numeric_array(name, values)
    if not numbers.size:
        raise FLError(f"there are no {name}: give at least one", parameter=name)
    if numbers.ndim != 1:
        raise FLError(f"{name} must be a list of numbers, not an array of shape {numbers.shape}")
    return _double(name, numbers, finite=finite)


def vector(name: str, model: ArrayLike) -> Floats:
    """Return `model` as a float64 vector. Raise `FLError` if it is empty, not flat, or not all finite."""
    numbers = numeric_array(name, model)
    if numbers.ndim != 1 or not numbers.size:
        raise FLError(f"{name} must be one flat vector with at least one element, not shape {numbers.shape}")
    return _double(f"elements of {name}", numbers, finite=True)


def numeric_array(name: str, values: ArrayLike) -> Array:
    """Return `values` as an array. Raise `FLError` unless they are numbers in rows of equal length."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise FLError(f"{name} must all have the same length") from None
    if numbers.dtype.kind not in "biuf":
        raise FLError(f"{name} must be numbers, not {numbers.dtype}")
    return numbers


def number(name: str, value: float) -> float:
    """Return `value` as a float. Raise `FLError` unless it is finite."""
    if not np.isfinite(value):
        raise FLError(f"{name} is {value}: give a finite number")
    return float(value)


def same_length(first_name: str, first: Sized, second_name: str, second: Sized) -> None:
    """Raise `FLError` unless `first` and `second` have the same length. Names are for the message."""
    if len(first) != len(second):
        raise FLError(
            f"{len(first)} {first_name} and {len(second)} {second_name}: give one of each, in the same order"
        )


def _double(name: str, numbers: Array, *, finite: bool) -> Floats:
    """Return `numbers` copied to float64. Raise `FLError` for NaN and, if `finite`, for infinite values."""
    found = numbers.astype(np.float64)
    bad = ~np.isfinite(found) if finite else np.isnan(found)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise FLError(
            f"{int(bad.sum())} of {len(found)} {name} are {'not finite' if finite else 'NaN'}, the first "
            f"at index {first}: leave them out, or find out what diverged"
        )
    return found
