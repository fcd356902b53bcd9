"""Ranges of indices of a model's flat vector, for example of the parameters that are personal.

Algorithms do not know layers. If an algorithm treats some parameters differently, its caller passes their
indices as a string of ranges in Python's slice notation, such as "0:320, -650:". Code that knows the model,
such as a simulation, translates names of layers to ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from protocols.checks import MissingBound, shown
from protocols.serialisation import Vector
from secagg.errors import ParameterError

_RANGE: Final = re.compile(r"\s*(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*")
_MOST_RANGES: Final = 10_000


@dataclass(frozen=True)
class IndexRanges:
    """A set of indices of a vector of `dim` numbers, as sorted ranges (start, stop) with gaps between them.

    The constructor raises `ParameterError` for empty, unordered or adjacent ranges.

    >>> places = IndexRanges.parse("1:3, -1:", 6)
    >>> places.size, places.text, places.rest.text
    (3, '1:3, 5:6', '0:1, 3:5')
    >>> places.take(np.arange(6.0))
    array([1., 2., 5.])
    """

    dim: int
    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        last = -1
        for start, stop in self.ranges:
            if not last < start < stop <= self.dim:
                raise ParameterError(
                    f"ranges must be in order, apart, and within 0 to {self.dim}: {start}:{stop} is not",
                    parameter="ranges",
                )
            last = stop

    @classmethod
    def of(cls, dim: int, ranges: Sequence[tuple[int, int]]) -> IndexRanges:
        """Return the set of indices in `ranges`, which may be unordered, empty, adjacent or overlapping."""
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(each for each in ranges if each[0] < each[1]):
            if joined and start <= joined[-1][1]:
                first, last = joined.pop()
                start, stop = first, max(stop, last)
            joined.append((start, stop))
        return cls(dim, tuple(joined))

    @classmethod
    def parse(cls, text: str, dim: int) -> IndexRanges:
        """Parse ranges in slice notation, separated by commas; "" means no indices. Raises `ParameterError`
        for any other text, and for a range that selects nothing in a vector of `dim` numbers."""
        pieces = text.split(",", _MOST_RANGES) if text.strip() else []
        return cls.of(dim, [_range(piece, dim) for piece in pieces])

    @cached_property
    def size(self) -> int:
        """The number of indices in the set."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def text(self) -> str:
        """The ranges as text that `parse` accepts, such as "1:3, 5:6"."""
        return ", ".join(f"{start}:{stop}" for start, stop in self.ranges)

    @cached_property
    def rest(self) -> IndexRanges:
        """The set of all indices from 0 to dim - 1 that are not in this set."""
        edges = [0, *(edge for pair in self.ranges for edge in pair), self.dim]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return IndexRanges(self.dim, tuple((start, stop) for start, stop in pairs if start < stop))

    def mask(self) -> Vector:
        """Return a vector with 1 at these indices and 0 at all others, for the `only` of `Learner.train`."""
        mask = np.zeros(self.dim)
        for start, stop in self.ranges:
            mask[start:stop] = 1.0
        return mask

    def take(self, vector: Vector) -> Vector:
        """Return a copy of the values of `vector` at these indices. Wrong lengths raise `ParameterError`."""
        self.check(vector)
        pieces = [vector[start:stop] for start, stop in self.ranges]
        return np.concatenate(pieces) if pieces else np.empty(0, vector.dtype)

    def put(self, vector: Vector, values: Vector) -> Vector:
        """Return a copy of `vector` with `values` at these indices. Wrong lengths raise `ParameterError`."""
        self.check(vector)
        if len(values) != self.size:
            raise ParameterError(f"there are {self.size} places, not {len(values)}")
        changed, begin = np.array(vector, np.float64), 0
        for start, stop in self.ranges:
            changed[start:stop] = values[begin : begin + stop - start]
            begin += stop - start
        return changed

    def join(self, values: Vector, others: Vector) -> Vector:
        """Return the vector with `values` at these indices and `others` at all other indices."""
        return self.put(self.rest.put(np.zeros(self.dim), others), values)

    def check(self, vector: Vector) -> None:
        """Raise `ParameterError` unless `vector` has `dim` numbers."""
        if len(vector) != self.dim:
            raise ParameterError(f"a vector of {self.dim} numbers is meant, not one of {len(vector)}")


def _range(piece: str, dim: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(piece)
    if found is None:
        raise ParameterError(
            f'{shown(piece.strip())} is no range: write places of the model as "0:320, -650:", or name a '
            "layer in a scenario, where the model is known"
        )
    first, last = (None if edge is None else int(edge) for edge in found.groups())
    start, stop, _ = slice(first, last).indices(dim)
    if start >= stop:
        raise ParameterError(f"of {dim} parameters, {piece.strip()} has none")
    return start, stop


def parse_index_ranges(name: str, text: object, dim: int, meaning: str) -> IndexRanges:
    """Return the indices that `text`, the value of the parameter `name`, selects. Raises `ParameterError`, or
    `MissingBound` for None, if it is invalid; `meaning` says in the message what to set."""
    if text is None:
        raise MissingBound(name, meaning)
    if not isinstance(text, str):
        raise ParameterError(f"{name} must be a text, not {shown(text)}: {meaning}", parameter=name)
    try:
        return IndexRanges.parse(text, dim)
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}", parameter=name) from None
