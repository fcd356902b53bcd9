"""A public random subspace: a matrix P of `size` rows and `dim` columns, generated from a public seed.

Every row has norm 1. P is not secret, but never sent: all parties generate it from the seed. Two kinds exist:

`dense`  independent Gaussian entries, each row scaled to norm 1. Every row is generated from its own seed,
         so rows can be generated separately: a matrix too large for the memory is generated again, block by
         block, whenever it is applied.
`fast`   random signs, a Walsh-Hadamard transform, and `size` of its coordinates, chosen at random. All
         entries are +-1 / sqrt(dim), and applying P takes memory for two models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocols import checks
from protocols.serialisation import Vector
from secagg.errors import ParameterError
from secagg.hashing import digest
from secagg.mask_keystream import KeyStream
from secagg.noise.hadamard_rotation import walsh_hadamard

Real: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[Any]

AUTO: Final = "auto"
DENSE: Final = "dense"
FAST: Final = "fast"
TRANSFORMS: Final = (AUTO, DENSE, FAST)

MOST_HELD: Final = 100_000_000  # entries of a matrix that is held: 400 MB. Beyond, `auto` is `fast`
_EXACT: Final = 1 << 24  # most entries of a matrix that is held in float64; larger ones are held in float32
_BLOCK: Final = 1 << 22  # entries that are generated or multiplied at once
_CHUNK: Final = 1 << 16  # normal deviates that are drawn at once
_UNIFORM: Final = 2.0**-53
_PRECISE: Final = 1e-13  # relative error at which `shift` stops


@dataclass(frozen=True, kw_only=True)
class Subspace:
    """A random projection matrix P with `size` rows of norm 1 and `dim` columns, from a public seed.

    `seed`         the public seed from which P is generated.
    `transform`    "dense" (Gaussian), "fast" (Walsh-Hadamard), or "auto": dense up to 1e8 entries.
    `orthonormal`  whether rows are made orthogonal to each other as well.

    The constructor raises `ParameterError` for invalid parameters.

    >>> space = Subspace(dim=100, size=4, seed=7)
    >>> space.project(np.ones(100)).shape, space.lift(np.ones(4)).shape
    ((4,), (100,))
    """

    dim: int
    size: int
    seed: int = 0
    transform: str = AUTO
    orthonormal: bool = False

    def __post_init__(self) -> None:
        checks.whole("dim", self.dim, 1)
        checks.whole("size", self.size, 1, self.dim)
        checks.whole("seed", self.seed, 0, (1 << 63) - 1)
        checks.truth("orthonormal", self.orthonormal)
        checks.one_of("transform", self.transform, TRANSFORMS)
        if self.orthonormal:
            self._check_orthonormal()

    def _check_orthonormal(self) -> None:
        if self.is_fast and self.dim != self.width:
            raise ParameterError(
                f"rows of the fast transform are orthogonal only where dim is a power of two, and it is "
                f"{self.dim}: unset orthonormal",
                parameter="orthonormal",
            )
        if not self.is_fast and self.entries > _EXACT:
            raise ParameterError(
                f"{self.entries} entries are too many to make rows orthogonal, at most {_EXACT}: unset "
                "orthonormal; rows of a random matrix that large are nearly so",
                parameter="orthonormal",
            )

    @property
    def entries(self) -> int:
        return self.dim * self.size

    @property
    def is_fast(self) -> bool:
        return self.transform == FAST or (self.transform == AUTO and self.entries > MOST_HELD)

    @property
    def width(self) -> int:
        """The power of two to which `dim` is padded for the fast transform."""
        return 1 << (self.dim - 1).bit_length()

    def matrix(self) -> Floats | None:
        """Return the matrix P, read-only, if it is dense and small enough for the memory, otherwise None."""
        return None if self.is_fast or self.entries > MOST_HELD else _held(self)

    def mixing(self) -> tuple[NDArray[np.int8], NDArray[np.int64]] | None:
        """Return a fast P's column signs, and which Hadamard coordinates are its rows; None if P is dense."""
        return _mixing(self) if self.is_fast else None

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """Yield blocks of rows of a dense matrix P, each as (index of the first row, rows)."""
        held, step = self.matrix(), max(1, _BLOCK // self.dim)
        for start in range(0, self.size, step):
            stop = min(self.size, start + step)
            yield start, _rows(self, start, stop) if held is None else held[start:stop]

    def project(self, vectors: Floats) -> Real:
        """Return P x for a vector x or each row x of an array. Raises `ParameterError` for a wrong length."""
        vectors = self._checked(vectors, self.dim)
        if self.is_fast:
            return _each(self._mixed, vectors, self.size)
        found = np.empty((*vectors.shape[:-1], self.size))
        for start, rows in self.blocks():
            found[..., start : start + len(rows)] = vectors @ rows.T
        return found

    def lift(self, points: Floats) -> Real:
        """Return transpose(P) y for a vector y or each row y. Raises `ParameterError` for a wrong length."""
        points = self._checked(points, self.size)
        if self.is_fast:
            return _each(self._unmixed, points, self.dim)
        found = np.zeros((*points.shape[:-1], self.dim))
        for start, rows in self.blocks():
            found += points[..., start : start + len(rows)] @ rows
        return found

    def shift(self, point: Floats) -> Vector:
        """Return the shortest x that minimises |P x - point|. P x is `point`, unless rows of P are linearly
        dependent (possible for the fast transform if `size` is near `dim`). Computed by conjugate gradients:
        few steps if the rows are nearly orthogonal. Raises `ParameterError` for a wrong length of `point`."""
        left = self._checked(point, self.size).copy()
        slope = self.lift(left)
        found, direction = np.zeros(self.dim), slope
        enough, square = _PRECISE**2 * float(left @ left), float(slope @ slope)
        for _ in range(2 * self.size):
            if min(float(left @ left), square) <= enough:
                break
            image = self.project(direction)
            step = square / float(image @ image)
            found += step * direction
            left -= step * image
            slope = self.lift(left)
            square, before = float(slope @ slope), square
            direction = slope + square / before * direction
        return found

    # --- the fast transform ---

    def _mixed(self, vector: Real) -> Real:
        signs, chosen = _mixing(self)
        wide = np.zeros(self.width)
        np.multiply(vector, signs, out=wide[: self.dim])
        walsh_hadamard(wide)
        return wide[chosen] / math.sqrt(self.dim)

    def _unmixed(self, point: Real) -> Real:
        signs, chosen = _mixing(self)
        wide = np.zeros(self.width)
        wide[chosen] = point
        walsh_hadamard(wide)
        return wide[: self.dim] * signs / math.sqrt(self.dim)

    def _checked(self, values: Floats, length: int) -> Real:
        array = np.asarray(values, np.float64)
        if array.ndim == 0 or array.shape[-1] != length:
            raise ParameterError(f"a vector of {length} numbers is needed, not one of shape {array.shape}")
        return array


def _each(apply: Any, stack: Real, length: int) -> Real:
    """Return the results of `apply`, `length` numbers each, for all vectors on the last axis of `stack`."""
    flat = stack.reshape(-1, stack.shape[-1])
    found = np.empty((len(flat), length))
    for row, vector in zip(found, flat, strict=True):
        row[:] = apply(vector)
    return found.reshape(*stack.shape[:-1], length)


# --- generation from the seed ---


@lru_cache(maxsize=2)
def _held(space: Subspace) -> Floats:
    """Return the dense matrix P, read-only, as float32 if it would take more than 128 MB as float64."""
    matrix: Floats = np.empty((space.size, space.dim), np.float64 if space.entries <= _EXACT else np.float32)
    for row in range(space.size):
        matrix[row] = _row(space, row)
    if space.orthonormal:
        matrix = _orthogonal(matrix)
    matrix.setflags(write=False)
    return matrix


def _rows(space: Subspace, start: int, stop: int) -> Real:
    return np.stack([_row(space, row) for row in range(start, stop)])


def _row(space: Subspace, row: int) -> Real:
    """Return a row of a dense P before rows are made orthogonal: Gaussian, from its own seed, of norm 1."""
    stream = KeyStream(_seed(space, b"row", row))
    found = np.empty(space.dim)
    for start in range(0, space.dim, _CHUNK):
        part = found[start : start + _CHUNK]
        half = (len(part) + 1) // 2
        words = (stream.words(2 * half) >> np.uint64(11)).astype(np.float64) * _UNIFORM
        radius = np.sqrt(-2 * np.log1p(-words[:half]))
        angle = 2 * np.pi * words[half:]
        part[:half] = radius * np.cos(angle)
        part[half:] = (radius * np.sin(angle))[: len(part) - half]
    return found / np.linalg.norm(found)


def _orthogonal(matrix: Real) -> Real:
    """Return the matrix of orthonormal rows that the Gram-Schmidt process makes of the rows of `matrix`."""
    columns, triangle = np.linalg.qr(matrix.T)
    return np.ascontiguousarray((columns * np.sign(np.diagonal(triangle))).T)


@lru_cache(maxsize=2)
def _mixing(space: Subspace) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Return the column signs of a fast P, and the coordinates of the Walsh-Hadamard transform it keeps."""
    words = KeyStream(_seed(space, b"signs")).words(space.width // 64 + 1)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: space.dim]
    signs = 1 - 2 * bits.astype(np.int8)
    chosen = _chosen(KeyStream(_seed(space, b"chosen")), space.size, space.width)
    for each in (signs, chosen):
        each.setflags(write=False)
    return signs, chosen


def _chosen(stream: KeyStream, count: int, width: int) -> NDArray[np.int64]:
    """Return `count` different numbers below `width`, a power of two, uniformly at random."""
    found = np.zeros(0, np.int64)
    while len(found) < count:
        drawn = (stream.words(2 * count) & np.uint64(width - 1)).astype(np.int64)
        both = np.concatenate([found, drawn])
        _, first = np.unique(both, return_index=True)
        found = both[np.sort(first)]
    return found[:count].copy()


def _seed(space: Subspace, *labels: bytes | int) -> bytes:
    fields = (each if isinstance(each, bytes) else each.to_bytes(8, "big") for each in (space.seed, *labels))
    return digest("subspace", *fields)
