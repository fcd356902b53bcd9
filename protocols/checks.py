"""Checks of algorithms' parameters, which raise errors that say what to set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from secagg.errors import ParameterError

# Beyond these limits, squares and inverses of numbers can be infinite or zero in float64.
SMALLEST: Final = 2.0**-500
LARGEST: Final = 2.0**500
_SHOWN: Final = 60


class CheckedBound:
    """A descriptor that returns its object's attribute `name`, after `bound` has checked it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, holder: object, _kind: type | None = None) -> float:
        value: float | None = getattr(holder, self._name)
        assert value is not None
        return value


class MissingBound(ParameterError):
    """Raised if a required parameter is not set. The attribute `parameter` is its name."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(f"{name} must be set: {meaning}", parameter=name)
        self.name: Final = name


class MissingBounds(ParameterError):
    """Raised if required parameters are not set. `missing` has a `MissingBound` for each."""

    def __init__(self, missing: Sequence[MissingBound]) -> None:
        alone = missing[0].name if len(missing) == 1 else None
        super().__init__("; ".join(map(str, missing)), parameter=alone)
        self.missing: Final = tuple(missing)


def whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise `ParameterError` unless `value` is an int from `least` on, and up to `most` if that is given."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"from {least}" if most is None else f"from {least} to {most}"
        raise ParameterError(f"{name} must be a whole number {limits}, not {shown(value)}", parameter=name)


def real(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Raise `ParameterError` unless `value` is a finite number from `least` to `most`."""
    if not _is_finite(value) or not least <= value <= most:  # type: ignore[operator]
        bounded = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
        limits = f" {bounded}" if least > -math.inf else ""
        raise ParameterError(f"{name} must be a number{limits}, not {shown(value)}", parameter=name)


def positive(name: str, value: object) -> None:
    """Raise `ParameterError` unless `value` is a number above zero, from 2^-500 to 2^500."""
    if not _is_finite(value) or value <= 0:  # type: ignore[operator]
        raise ParameterError(f"{name} must be a number above 0, not {shown(value)}", parameter=name)
    real(name, value, SMALLEST, LARGEST)


def truth(name: str, value: object) -> None:
    """Raise `ParameterError` unless `value` is a bool: a string such as "no" would count as true."""
    if type(value) is not bool:
        raise ParameterError(f"{name} must be true or false, not {shown(value)}", parameter=name)


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise `ParameterError` unless `value` is one of the words in `known`."""
    if value not in known:
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {shown(value)}", parameter=name)


def either(name: str, value: str, first: str, second: str) -> None:
    """Raise `ParameterError` unless `value` is `first` or `second`."""
    if value not in (first, second):
        raise ParameterError(f'{name} must be "{first}" or "{second}", not {shown(value)}', parameter=name)


def bound(name: str, value: object, meaning: str) -> None:
    """Raise `ParameterError` if `value` is not a positive number, and `MissingBound` if it is None. Bounds
    have no defaults, because they depend on the data. `meaning` says in the message what to set."""
    if value is None:
        raise MissingBound(name, meaning)
    positive(name, value)


def shown(value: object) -> str:
    """Return the repr of `value` for an error message, shortened to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
