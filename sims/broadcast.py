"""How long the queries of a sum are, which every client is sent."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any, Final

import numpy as np

from protocols.algorithm import Sum
from protocols.record import Vector, as_vector, vectors_of
from protocols.vocabulary import Turn, encode_query

# Beyond this, a vector only adds its own bytes: lengths take no more of them.
_ENOUGH: Final = 10_000
_NUMBER_BYTES: Final = 8
_EXAMPLES: Final[dict[object, object]] = {int: 0, float: 0.0, str: "", bool: False, bytes: b""}


def query_bytes(each: Sum, dim: int) -> list[int]:
    """The payload bytes of all queries of that kind in the first round."""
    lengths = []
    for number in range(each.spec.times):
        left_out = {name for name, times in each.seldom.items() if number >= times}
        lengths.append(_length(each, left_out, dim))
    return lengths


def _length(asked: Sum, left_out: set[str], dim: int) -> int:
    hints = typing.get_type_hints(asked.query)
    sizes = {each.name: asked.lengths.get(each.name, dim) for each in fields(asked.query)}
    values = {
        name: None if name in left_out else _example(hints[name], as_vector(np.zeros(min(size, _ENOUGH))))
        for name, size in sizes.items()
    }
    query = asked.query(**values)
    rest = sum(_NUMBER_BYTES * (sizes[name] - len(vector)) for name, vector in vectors_of(query).items())
    return len(encode_query(Turn(), query)) + rest


def _example(hint: Any, vector: Vector) -> object:
    if hint in _EXAMPLES:
        return _EXAMPLES[hint]
    return vector  # or an optional one
