"""The numbers of a figure, checked before they are drawn."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from papers.plots.labels import FigureError

Numbers: TypeAlias = NDArray[Any]


def line_of(name: str, values: ArrayLike, *, gaps: bool = False) -> Numbers:
    """Return a list of at least one finite number; with `gaps`, NaN leaves a gap in the plot."""
    numbers = _floats(name, values)
    if numbers.ndim != 1 or not numbers.size:
        raise FigureError(f"{name}: give a list with at least one number, not shape {numbers.shape}")
    return _present(name, numbers, gaps=gaps)


def runs_of(name: str, values: ArrayLike, length: int) -> Numbers:
    """Return one run of that many numbers, or several, one per row. Non-finite numbers leave a gap."""
    numbers = np.atleast_2d(_floats(name, values))
    if numbers.ndim != 2 or not len(numbers) or numbers.shape[1] != length:
        raise FigureError(f"{name}: give one row of {length} numbers for each run, not shape {numbers.shape}")
    return _present(name, np.where(np.isfinite(numbers), numbers, np.nan), gaps=True)


def table_of(name: str, values: ArrayLike, rows: int, columns: int) -> Numbers:
    """Return rows of numbers; NaN leaves a gap."""
    numbers = _floats(name, values)
    if numbers.shape != (rows, columns):
        raise FigureError(f"{name}: give {rows} rows of {columns} numbers, not shape {numbers.shape}")
    return _present(name, numbers, gaps=True)


def same_length(name: str, first: Numbers, second: Numbers) -> None:
    if len(first) != len(second):
        raise FigureError(f"{name}: {len(first)} and {len(second)} numbers do not go together")


def _floats(name: str, values: ArrayLike) -> Numbers:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise FigureError(f"{name}: give numbers, in rows of the same length") from None


def _present(name: str, numbers: Numbers, *, gaps: bool) -> Numbers:
    if np.isinf(numbers).any() or not (gaps or np.isfinite(numbers).all()):
        raise FigureError(f"{name}: not all numbers are finite: leave the others out")
    if not np.isfinite(numbers).any():
        raise FigureError(f"{name}: there is no number to draw: leave it out")
    return numbers
