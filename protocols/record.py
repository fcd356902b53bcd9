"""Frozen dataclasses as bytes and back: queries on the wire, states and memories on disk.

A record is a list of its fields in the order of their declaration, each of the type that is declared for it:
whole numbers, finite floats, text, bytes, truth values, vectors, optional values, tuples of one type, and
records within records. The same record always gives the same bytes, which is what a digest needs. Nothing is
built from bytes that do not fit the declaration exactly.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
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
_WHOLE: Final = 1 << 63  # msgpack carries no larger ones


class RecordError(LocalError):
    """Bytes that are not the record they should be, or a value that no record can hold."""


def as_vector(values: ArrayLike) -> Vector:
    """`values` as a vector of its own that nobody can change any more."""
    vector = np.array(values, np.float64)
    vector.setflags(write=False)
    return vector


def pack(record: object) -> bytes:
    """The bytes of a record."""
    data: bytes = msgpack.packb(_plain(record))
    return data


def unpack(kind: type[T], data: bytes) -> T:
    """The record of type `kind` that has these bytes."""
    try:
        plain = msgpack.unpackb(data, use_list=True, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        raise RecordError(f"bytes that are no {kind.__name__}") from None
    record: T = _typed(kind, plain, kind.__name__)
    return record


def vectors_of(record: object) -> dict[str, Vector]:
    """The fields of a record that are vectors, by name."""
    return {name: value for name, value in _values(record).items() if isinstance(value, np.ndarray)}


def _values(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return [_plain(each) for each in _values(value).values()]
    match value:
        case np.ndarray():
            _check_vector(value, "a vector")
            return value.astype(_WIRE_VECTOR).tobytes()
        case tuple():
            return [_plain(each) for each in value]
        case bool() | None | str() | bytes():
            return value
        case int() if -_WHOLE <= value < _WHOLE:
            return value
        case float() if math.isfinite(value):
            return value
    raise RecordError(
        f"a record cannot hold a {type(value).__name__} like this: vectors and numbers must be finite"
    )


def _typed(hint: Any, plain: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint, plain, where)
    if origin is np.ndarray:
        return _vector(plain, where)
    if origin in (typing.Union, types.UnionType):
        return None if plain is None else _typed(_other_than_none(arguments), plain, where)
    if origin is tuple:
        if not isinstance(plain, list):
            raise RecordError(f"{where} must be a list")
        return tuple(_typed(arguments[0], each, where) for each in plain)
    if type(plain) is not hint or (hint is float and not math.isfinite(plain)):
        raise RecordError(f"{where} must be a {hint.__name__}, and finite")
    return plain


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


def _check_vector(value: NDArray[Any], where: str) -> None:
    if value.ndim != 1 or value.dtype != np.float64 or not np.isfinite(value).all():
        raise RecordError(f"{where} must be a vector of finite float64")


def _other_than_none(arguments: tuple[Any, ...]) -> Any:
    (hint,) = (each for each in arguments if each is not types.NoneType)
    return hint


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
