"""Samples: model inputs and their targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError

Array: TypeAlias = NDArray[Any]


def array(name: str, values: object) -> Array:
    """Return `values` as an array in native byte order. Floats wider than 64 bits become float64.
    Raise `DataError` if the rows differ in length; its message calls the values `name`."""
    try:
        made: Array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} are not an array: give rows of equal length ({error})") from error
    if made.dtype.kind == "f" and made.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore"):  # Samples rejects infinite values.
            return made.astype(np.float64)
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


@dataclass(frozen=True, eq=False, repr=False)  # samples are private data
class Samples:
    """Inputs `x`, one per row, and targets `y`: class numbers, or floats in a regression. Integer inputs are
    symbols such as characters. Raises `DataError` for unequal lengths, other types, NaN or infinity."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        for name, kind in (("x", "inputs"), ("y", "targets")):
            object.__setattr__(self, name, array(kind, getattr(self, name)))
        if self.x.ndim < 1 or self.y.ndim < 1 or len(self.x) != len(self.y):
            raise DataError(
                f"{self.x.shape} inputs and {self.y.shape} targets: give one target for every input"
            )
        for name, values in (("inputs", self.x), ("targets", self.y)):
            if values.dtype.kind not in "fiu":
                raise DataError(f"{name} must be numbers, not {values.dtype}", parameter=name)
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
        """Return the samples at `indices`, in that order."""
        return Samples(self.x[indices], self.y[indices])

    @staticmethod
    def join(parts: Iterable[Samples]) -> Samples:
        """Return all `parts` joined, in order. Raises `DataError` if there are none or shapes differ."""
        parts = tuple(parts)
        if not parts:
            raise DataError("there are no samples to join")
        shapes = {(part.x.shape[1:], part.y.shape[1:]) for part in parts}
        if len(shapes) > 1:
            shown = ", ".join(f"{x} with targets {y}" for x, y in sorted(shapes))
            raise DataError(f"samples of different shapes cannot be joined: {shown}; make them alike")
        return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
