"""Parameters of algorithms, checked once, with errors that say what to set."""

from __future__ import annotations

import math

from secagg.errors import ParameterError


def whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"from {least}" if most is None else f"from {least} to {most}"
        raise ParameterError(f"{name} must be a whole number {limits}, not {value!r}")


def real(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Refuse what is no finite number from `least` to `most`."""
    if not _is_finite(value) or not least <= value <= most:  # type: ignore[operator]
        limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ParameterError(f"{name} must be a number {limits}, not {value!r}")


def positive(name: str, value: object) -> None:
    """Refuse what is no finite number above zero."""
    if not _is_finite(value) or value <= 0:  # type: ignore[operator]
        raise ParameterError(f"{name} must be a number above 0, not {value!r}")


def bound(name: str, value: object, meaning: str) -> None:
    """Refuse a bound that is missing or useless. Bounds have no defaults: nobody else knows the data."""
    if value is None:
        raise ParameterError(f"{name} must be set: {meaning}")
    positive(name, value)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float comes near
        return False
