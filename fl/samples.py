"""Samples: inputs, and what a model should make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)  # it is private
class Samples:
    """Inputs `x`, one to a row, and targets `y`: whole numbers for classes, floats for a regression.

    Inputs are floats, or whole numbers where they stand for symbols such as characters.
    """

    x: Array
    y: Array

    def __post_init__(self) -> None:
        if self.x.ndim < 1 or self.y.ndim < 1 or len(self.x) != len(self.y):
            raise DataError(f"{self.x.shape} inputs and {self.y.shape} targets: one target for every input")
        for name, values in (("inputs", self.x), ("targets", self.y)):
            if values.dtype.kind not in "fiu":
                raise DataError(f"{name} must be numbers, not {values.dtype}")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
                raise DataError(
                    f"{len(rows)} of {len(values)} {name} are not finite, the first in row {rows[0]}: "
                    "drop those rows, or fill them in"
                )

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Samples({len(self)} of shape {self.x.shape[1:]})"

    def take(self, indices: Array) -> Samples:
        """Those at `indices`, in that order."""
        return Samples(self.x[indices], self.y[indices])

    @staticmethod
    def join(parts: Iterable[Samples]) -> Samples:
        """All samples of `parts`, one after another."""
        parts = tuple(parts)
        if not parts:
            raise DataError("there are no samples to join")
        return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
