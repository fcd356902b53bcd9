"""Samples: inputs, and what a model should make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError

Array: TypeAlias = NDArray[Any]


def array(name: str, values: object) -> Array:
    """Values as an array in this machine's own format: lists are made one, other byte orders are turned.

    Floats that are longer than double are cut to it, since nothing here computes with more.
    """
    try:
        made: Array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} are no array: give rows of one length ({error})") from error
    if made.dtype.kind == "f" and made.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore"):  # What becomes infinite is refused as such.
            return made.astype(np.float64)
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


@dataclass(frozen=True, eq=False, repr=False)  # it is private
class Samples:
    """Inputs `x`, one to a row, and targets `y`: whole numbers for classes, floats for a regression.

    Inputs are floats, or whole numbers where they stand for symbols such as characters.
    """

    x: Array
    y: Array

    def __post_init__(self) -> None:
        for name, kind in (("x", "inputs"), ("y", "targets")):
            object.__setattr__(self, name, array(kind, getattr(self, name)))
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
        shapes = {(part.x.shape[1:], part.y.shape[1:]) for part in parts}
        if len(shapes) > 1:
            shown = ", ".join(f"{x} with targets {y}" for x, y in sorted(shapes))
            raise DataError(f"samples of different shapes cannot be joined: {shown}; make them alike")
        return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
