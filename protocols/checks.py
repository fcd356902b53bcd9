"""Dataclass fields for the parameters of algorithms, and checks that raise errors which say what to set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from secagg.errors import ParameterError

# Beyond these limits, squares and inverses of numbers can be infinite or zero in float64.
SMALLEST: Final = 2.0**-500
LARGEST: Final = 2.0**500
_SHOWN: Final = 60
_MEANING: Final = "meaning"
_INDEX_RANGES: Final = "index_ranges"
# Descriptions of parameters that many algorithms have.
BITS_MEANING: Final = "of every number of a vector on the wire"
CAP_MEANING: Final = "samples beyond which a client counts no more"

T = TypeVar("T")


def parameter(default: T, meaning: str, *, index_ranges: bool = False) -> T:
    """Return a dataclass field for a parameter of an algorithm, which `meaning` describes to users. With
    `index_ranges`, its value selects index ranges of the model, for which scenarios may name layers."""
    return field(default=default, metadata={_MEANING: meaning, _INDEX_RANGES: index_ranges})


def meanings_of(kind: object) -> Mapping[str, str]:
    """Return what each parameter of a dataclass means, by name. Base classes supply missing texts."""
    found: dict[str, str] = {}
    for name, each in _declared(kind):
        if each.metadata.get(_MEANING):
            found.setdefault(name, each.metadata[_MEANING])
    return MappingProxyType(found)


def index_range_parameters(kind: object) -> tuple[str, ...]:
    """Return the names of the parameters of a dataclass that select ranges of the model's vector."""
    if not is_dataclass(kind):
        return ()
    return tuple(each.name for each in fields(kind) if each.metadata.get(_INDEX_RANGES))


def _declared(kind: object) -> list[tuple[str, Field[Any]]]:
    """Return the (name, field) pairs of a dataclass, followed by those of its base classes."""
    bases = kind.__mro__ if isinstance(kind, type) else ()
    return [pair for each in bases for pair in vars(each).get("__dataclass_fields__", {}).items()]


class CheckedBound:
    """A descriptor that returns the parameter `name` as a float, never None. `bound` must have checked it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, holder: object, _kind: type | None = None) -> float:
        value: float | None = getattr(holder, self._name)
        assert value is not None
        return value


class MissingBound(ParameterError):
    """Raised if a required parameter is not set. `parameter` is its name."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(f"{name} must be set: {meaning}", parameter=name)
        self.name: Final = name


class MissingBounds(ParameterError):
    """Raised if required parameters are not set. `missing` has one error for each."""

    def __init__(self, missing: Sequence[MissingBound]) -> None:
        alone = missing[0].name if len(missing) == 1 else None
        super().__init__("; ".join(map(str, missing)), parameter=alone)
        self.missing: Final = tuple(missing)


def whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise `ParameterError` unless `value` is an int from `least` to `most`."""
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
    """Raise `ParameterError` unless `value` is a number above zero, from `SMALLEST` to `LARGEST`."""
    if not _is_finite(value) or value <= 0:  # type: ignore[operator]
        raise ParameterError(f"{name} must be a number above 0, not {shown(value)}", parameter=name)
    real(name, value, SMALLEST, LARGEST)


def truth(name: str, value: object) -> None:
    """Raise `ParameterError` unless `value` is a bool. A string such as "no" would count as true."""
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
