"""Count sketches: a short table from which the large coordinates of a long vector can be read.

"Finding Frequent Items in Data Streams". Every row of the table throws each coordinate into one of its
columns, with a sign; a coordinate is read as the median over the rows of what is in its columns, with its
signs. In one row, that is off by e with E e^2 <= |v|^2 / columns, because what else fell into the column has
random signs; so

    P(|e| > t |v| / sqrt(columns)) <= 1 / t^2,

and the median is off by so much only if half of the rows are. Columns and signs follow from a public seed,
and the table is linear in the vector: the sum of the clients' sketches is the sketch of their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols import checks
from protocols.record import Vector
from secagg.hashing import digest
from secagg.masks import KeyStream

_BLOCK: Final = 1 << 16  # coordinates that are read at a time, so that all rows of them stay in the cache
_HALF: Final = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class CountSketch:
    """Of vectors of `dim` numbers: `rows` times `columns` of them. All who have the same `seed` agree.

    >>> sketch = CountSketch(dim=1000, rows=5, columns=100)
    >>> heavy = np.zeros(1000)
    >>> heavy[[3, 700]] = 5.0, -2.0
    >>> heaviest(sketch.estimate(sketch.of(heavy)), 2)
    array([  3, 700])
    """

    dim: int
    rows: int
    columns: int
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("rows", self.rows, 1, 1 << 10)
        checks.whole("columns", self.columns, 1, 1 << 31)
        checks.whole("seed", self.seed, 0, (1 << 63) - 1)

    @property
    def size(self) -> int:
        """Numbers of a sketch."""
        return self.rows * self.columns

    def of(self, vector: Vector) -> Vector:
        """The sketch of a vector, row after row."""
        rows = (
            np.bincount(places, weights=np.where(signs, -vector, vector), minlength=self.columns)
            for places, signs in zip(self._places, self._signs, strict=True)
        )
        return np.concatenate(list(rows))

    def estimate(self, sketch: Vector) -> Vector:
        """Every coordinate of the vector that was sketched, as far as can be told."""
        table, found = sketch.reshape(self.rows, self.columns), np.empty(self.dim)
        for block in self._blocks():
            read = np.take_along_axis(table, self._places[:, block], axis=1)
            np.negative(read, out=read, where=self._signs[:, block])
            found[block] = np.median(read, axis=0)
        return found

    def _blocks(self) -> Iterator[slice]:
        return (slice(start, start + _BLOCK) for start in range(0, self.dim, _BLOCK))

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The column of each coordinate in each row, and whether it is there with a minus."""
        shape = self.rows, self.dim
        places, signs = np.empty(shape, np.intp), np.empty(shape, np.bool_)
        for row in range(self.rows):
            fields = (each.to_bytes(8, "big") for each in (self.seed, row, self.columns))
            words = KeyStream(digest("count sketch", *fields)).words(self.dim)
            places[row] = (words >> _HALF) * np.uint64(self.columns) >> _HALF
            signs[row] = words & np.uint64(1)
        return places, signs

    @property
    def _places(self) -> NDArray[np.intp]:
        return self._drawn[0]

    @property
    def _signs(self) -> NDArray[np.bool_]:
        return self._drawn[1]


def heaviest(vector: Vector, count: int) -> NDArray[np.intp]:
    """Where the `count` largest coordinates are, by their size, in rising order; of equal ones, the first."""
    return np.sort(np.argsort(-np.abs(vector), kind="stable")[:count])
