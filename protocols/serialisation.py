"""Serialises frozen dataclasses ("records") to bytes: queries on the wire, states and memories on disk.

A record becomes a list of its fields in the order of their declaration. The declared types may be whole
numbers, finite floats, strings, bytes, bools, vectors, optional values, tuples, and other records. Equal
records always give equal bytes, so their digests are equal. Bytes that do not fit the declaration exactly are
refused, and so are values that could not be read again.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import msgpack
import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg.errors import LocalError

Vector: TypeAlias = NDArray[np.float64]
T = TypeVar("T")

_WIRE_VECTOR: Final = "<f8"
_WHOLE: Final = 1 << 63  # signed 64-bit integers are below this


class RecordError(LocalError):
    """Raised if bytes are not the expected record (frozen dataclass), or if a value cannot be serialised."""


def as_vector(values: ArrayLike) -> Vector:
    """Return `values` as a new, read-only float64 vector.

    >>> as_vector([1, 2]).dtype
    dtype('float64')
    """
    vector = np.array(values, np.float64)
    vector.setflags(write=False)
    return vector


def pack(record: object) -> bytes:
    """Return a record (a frozen dataclass) as bytes. Raises `RecordError` for a wrong type, NaN or overflow.

    >>> from protocols.algorithm import ModelState
    >>> len(pack(ModelState(as_vector([1.0, 2.0]))))
    19
    """
    kind = type(record)
    data: bytes = msgpack.packb(_plain(kind, record, kind.__name__))
    return data


def unpack(kind: type[T], data: bytes) -> T:
    """Return the record of type `kind` in `data`. Raises `RecordError`, or what `kind`'s constructor raises.

    >>> from protocols.algorithm import ModelState
    >>> unpack(ModelState, pack(ModelState(as_vector([1.0, 2.0])))).model
    array([1., 2.])
    """
    try:
        plain = msgpack.unpackb(data, use_list=True, raw=False, strict_map_key=True)
    except (TypeError, ValueError, RecursionError, msgpack.UnpackException):
        raise RecordError(f"bytes that are no {kind.__name__}") from None
    record: T = _typed(kind, plain, kind.__name__)
    return record


def vectors_of(record: object) -> dict[str, Vector]:
    """Return all vectors in a record, also in nested records, by paths such as "state.model"."""
    return {where: leaf for where, leaf in _leaves(record) if isinstance(leaf, np.ndarray)}


def is_finite(record: object) -> bool:
    """Return whether all numbers of a record are finite. Records with other numbers cannot be serialised."""
    return all(np.isfinite(leaf).all() for _, leaf in _leaves(record) if isinstance(leaf, np.ndarray | float))


def largest_of(record: object) -> float:
    """Return the largest absolute value among the floats and vectors of a record; 0 if it has none."""
    numbers = (leaf for _, leaf in _leaves(record) if isinstance(leaf, np.ndarray | float))
    return max((float(np.max(np.abs(each), initial=0.0)) for each in numbers), default=0.0)


def _leaves(value: object, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for all values in a record, at any depth, except tuples and dataclasses."""
    if isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{where}[{index}]")
    elif is_dataclass(value):
        for name in (field.name for field in fields(value)):
            yield from _leaves(getattr(value, name), f"{where}.{name}" if where else name)
    else:
        yield where, value


# --- to bytes ---


def _plain(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        if type(value) is not hint:
            raise RecordError(f"{where} must be a {hint.__name__}")
        hints: Mapping[str, Any] = _hints(typing.cast(Any, hint))
        return [_plain(each, getattr(value, name), f"{where}.{name}") for name, each in hints.items()]
    if origin is np.ndarray:
        _check_vector(value, where)
        return value.astype(_WIRE_VECTOR).tobytes()
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _plain(_other_than_none(arguments), value, where)
    if origin is tuple:
        kinds = _elements(arguments, value, tuple, where)
        return [_plain(each, element, where) for each, element in zip(kinds, value, strict=True)]
    return _number(value, where) if hint is float else _simple(hint, value, where)


def _number(value: Any, where: str) -> float:
    """Return `value`, a float or int, as a float. Raises `RecordError` for other types and if not finite."""
    if isinstance(value, float) or type(value) is int:
        with suppress(OverflowError):  # a whole number may be too large
            number = float(value)
            if math.isfinite(number):
                return number
    raise RecordError(f"{where} must be a finite float")


# --- from bytes ---


def _typed(hint: Any, plain: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint, plain, where)
    if origin is np.ndarray:
        return _vector(plain, where)
    if origin in (typing.Union, types.UnionType):
        return None if plain is None else _typed(_other_than_none(arguments), plain, where)
    if origin is tuple:
        hints = _elements(arguments, plain, list, where)
        return tuple(_typed(each, element, where) for each, element in zip(hints, plain, strict=True))
    return _simple(hint, plain, where)


def _record(kind: type, plain: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(plain, list) or len(plain) != len(hints):
        raise RecordError(f"{where} must have the fields {', '.join(hints) or '(none)'}")
    values = {
        name: _typed(hint, value, f"{where}.{name}")
        for (name, hint), value in zip(hints.items(), plain, strict=True)
    }
    return kind(**values)


def _vector(plain: Any, where: str) -> Vector:
    if not isinstance(plain, bytes) or len(plain) % 8:
        raise RecordError(f"{where} must be a vector")
    vector = np.frombuffer(plain, _WIRE_VECTOR).astype(np.float64)
    _check_vector(vector, where)
    vector.setflags(write=False)
    return vector


# --- both ways ---


def _simple(hint: Any, value: Any, where: str) -> Any:
    """Return `value` if its type is exactly `hint` (a bool is not an int). Raises `RecordError` otherwise,
    and for a number that is not finite or does not fit in 64 bits."""
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise RecordError(f"{where} must be a {hint.__name__}, and finite")
    if hint is int and not -_WHOLE <= value < _WHOLE:
        raise RecordError(f"{where} must be a whole number of at most 63 bits")
    return value


def _elements(arguments: tuple[Any, ...], value: Any, kind: type, where: str) -> tuple[Any, ...]:
    """Return the declared type of each element of `value`, from the `arguments` of a tuple's type. Raises
    `RecordError` if `value` is no `kind` (tuple or list), or has a wrong length."""
    if not isinstance(value, kind):
        raise RecordError(f"{where} must be a {kind.__name__}")
    length = len(typing.cast(Any, value))
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * length
    if length != len(arguments):
        raise RecordError(f"{where} must have {len(arguments)} elements")
    return arguments


def _check_vector(value: Any, where: str) -> None:
    fits = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float64
    if not fits or not np.isfinite(value).all():
        raise RecordError(f"{where} must be a vector of finite float64")


def _other_than_none(arguments: tuple[Any, ...]) -> Any:
    (hint,) = (each for each in arguments if each is not types.NoneType)
    return hint


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
