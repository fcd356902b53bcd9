"""Projections of models to a low-dimensional subspace, for penalties on the projected model, with torch.

`protocols.learner.SubspaceDescription` describes the matrix P of a projection, which all clients share: a
dense matrix with few rows, or random signs followed by selected coordinates of a Walsh-Hadamard transform.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl.errors import TrainingError
from fl.flat_model import FlatModel
from protocols.learner import SubspaceDescription

_SQUARE: Final = 5  # bits: transforms are computed as products with matrices of 2^5 rows


class Projection(ABC):
    """Multiplies vectors by a projection matrix P or its transpose. Takes one vector, or several as rows."""

    @abstractmethod
    def project(self, vectors: Tensor) -> Tensor:
        """Return P x, with the projection matrix P, for one vector x or for each row x of `vectors`."""

    @abstractmethod
    def lift(self, points: Tensor) -> Tensor:
        """Return P' y (P': transposed projection matrix) for one vector y, or each row y of `points`."""


def projection_of(space: SubspaceDescription | None, flat: FlatModel) -> Projection | None:
    """Return the projection to `space` on the device and in the precision of `flat`, or None if `space` is
    None. Raises `TrainingError` if `space` is for models with another number of parameters."""
    if space is None:
        return None
    if space.dim != flat.dim:
        raise TrainingError(f"a subspace of {space.dim} dimensions does not fit {flat.dim} parameters")
    return _made(space, flat.device, flat.dtype)


@lru_cache(maxsize=2)
def _made(space: SubspaceDescription, device: torch.device, dtype: torch.dtype) -> Projection:
    mixing, matrix = space.mixing(), space.matrix()
    if mixing is not None:
        return HadamardProjection(space.dim, *mixing, device=device, dtype=dtype)
    if matrix is None:
        return BlockwiseProjection(space, device, dtype)
    return DenseProjection(_tensor(matrix, device, dtype))


def _tensor(matrix: NDArray[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the matrix as a tensor, uncopied if possible, without torch's warning about read-only memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(matrix).to(device, dtype)


class DenseProjection(Projection):
    """A projection by a matrix that is held in memory as a whole."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def project(self, vectors: Tensor) -> Tensor:
        return torch.matmul(vectors, self._matrix.T)

    def lift(self, points: Tensor) -> Tensor:
        return torch.matmul(points, self._matrix)


class BlockwiseProjection(Projection):
    """A projection by a matrix too large for memory: its rows are generated at every use, which is slow."""

    def __init__(self, space: SubspaceDescription, device: torch.device, dtype: torch.dtype) -> None:
        self._space, self._device, self._dtype = space, device, dtype

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        for start, rows in self._space.blocks():
            yield start, torch.from_numpy(rows).to(self._device, self._dtype)

    def project(self, vectors: Tensor) -> Tensor:
        return torch.cat([torch.matmul(vectors, rows.T) for _, rows in self._blocks()], dim=-1)

    def lift(self, points: Tensor) -> Tensor:
        found = points.new_zeros(*points.shape[:-1], self._space.dim)
        for start, rows in self._blocks():
            found.add_(torch.matmul(points[..., start : start + len(rows)], rows))
        return found


class HadamardProjection(Projection):
    """A projection: vectors times random signs, then some coordinates of their Walsh-Hadamard transform.

    The vector is reshaped to a matrix: the higher bits of an index give the row, the lower bits the column.
    The full transform would transform all columns, then all rows. Here all columns are transformed, but of
    the transformed rows only the kept coordinates are computed, each as a sum with signs over one row.
    """

    def __init__(
        self,
        dim: int,
        signs: NDArray[np.int8],
        chosen: NDArray[np.int64],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        bits = (dim - 1).bit_length()
        self._dim, self._columns = dim, 1 << (bits - bits // 2)
        self._rows = 1 << (bits // 2)
        self._signs = torch.tensor(signs, device=device, dtype=dtype).div_(math.sqrt(dim))
        self._chosen = torch.tensor(chosen // self._columns, device=device)
        # One row for each chosen coordinate: the signs of the sum that computes it.
        row_signs = _signs_of(chosen % self._columns, np.arange(self._columns))
        self._row_signs = torch.tensor(row_signs, device=device, dtype=dtype)
        widths = [min(_SQUARE, bits // 2 - k) for k in range(0, bits // 2, _SQUARE)]
        self._squares = [_hadamard(each).to(device, dtype) for each in widths]

    def project(self, vectors: Tensor) -> Tensor:
        wide = vectors.new_zeros(*vectors.shape[:-1], self._rows * self._columns)
        wide[..., : self._dim] = vectors * self._signs
        rows = self._transformed(wide, vectors.shape[:-1]).index_select(-2, self._chosen)
        return rows.mul_(self._row_signs).sum(dim=-1)

    def lift(self, points: Tensor) -> Tensor:
        wide = points.new_zeros(*points.shape[:-1], self._rows, self._columns)
        wide.index_add_(-2, self._chosen, points.unsqueeze(-1) * self._row_signs)
        flat = self._transformed(wide, points.shape[:-1]).reshape(*points.shape[:-1], -1)
        return flat[..., : self._dim] * self._signs

    def _transformed(self, wide: Tensor, stack: torch.Size) -> Tensor:
        """Return `wide` in the shape (*stack, rows, columns), with Walsh-Hadamard transformed columns."""
        rest = self._rows
        for square in self._squares:
            rest //= len(square)
            wide = torch.matmul(square, wide.reshape(-1, len(square), rest * self._columns))
        return wide.reshape(*stack, self._rows, self._columns)


def _hadamard(bits: int) -> Tensor:
    numbers = np.arange(1 << bits)
    return torch.from_numpy(_signs_of(numbers, numbers).astype(np.float64))


def _signs_of(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return a matrix: entry (i, j) is -1 if `left[i] & right[j]` has an odd number of one bits, else 1."""
    common = left[:, None] & right[None, :]
    for shift in (16, 8, 4, 2, 1):
        common = common ^ (common >> shift)
    return (1 - 2 * (common & 1)).astype(np.int8)
