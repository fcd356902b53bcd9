"""Quantiles of the clients' values, read from a histogram that is a sum and may have noise.

Each client adds one count to the bin of its own value, and the total is the histogram of all values. With
noise, bins may be negative and the running sum over the bins may fall. `read_quantile` returns the right edge
of the bin at which the running sum is closest to the wanted part of all, as in "Differentially Private
Federated Quantiles with the Distributed Discrete Gaussian Mechanism".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDING: Final = 1e-12
# A tail size this close to a whole number, relatively, is rounded: 0.07 * 100 is not 7 in floats.
NEARLY: Final = 1e-9


def one_hot(value: float, edges: ArrayLike) -> NDArray[np.uint64]:
    """Return a client's histogram: one count in the bin of `value`. Values beyond the first or the last edge
    are counted in the first or the last bin."""
    counts = np.zeros(len(_borders(edges)) - 1, np.uint64)
    counts[bin_of(value, edges)] = 1
    return counts


def bin_of(value: float, edges: ArrayLike) -> int:
    """Return the index of the bin with or nearest to `value`. Raises `ValueError` if it is not finite."""
    borders = _borders(edges)
    if not np.isfinite(value):
        raise ValueError("a value must be a finite number")
    return int(np.clip(np.searchsorted(borders, value, side="right") - 1, 0, len(borders) - 2))


def read_quantile(
    histogram: ArrayLike, edges: ArrayLike, part: float, *, count: float | None = None
) -> float:
    """Return a quantile: the right edge of the bin up to which the counts sum most nearly to part * count.
    `part` is from 0 to 1. `count` is the number of clients if it is public, by default the histogram's sum,
    noise included. Of equally close bins, the first is taken. Raises `ValueError` for invalid input."""
    borders = _borders(edges)
    heights, total = _checked(histogram, borders, part, count)
    return float(borders[1 + _closest(heights, total, part)])


def read_percentile(histogram: ArrayLike, edges: ArrayLike, part: float) -> float:
    """Return the right edge of the first bin where the running sum reaches `part` (from 0 to 1) of the total.
    With noise, the running sum may fall. It is then replaced by the mean of the largest value so far and the
    least value from there on, which never falls. Without noise, the percentile is in that bin; with
    `read_quantile` it may be in another. Raises `ValueError` for invalid input."""
    borders = _borders(edges)
    heights, total = _checked(histogram, borders, part, None)
    running = heights.cumsum() / total
    highest = np.maximum.accumulate(running)
    lowest = np.minimum.accumulate(running[::-1])[::-1]
    reached = np.flatnonzero((highest + lowest) / 2 >= part * (1 - _ROUNDING))
    return float(borders[1 + int(reached[0])] if len(reached) else borders[-1])


class Boundary(NamedTuple):
    """The index of the bin in which the tail of the largest values begins, and the fraction of this bin's
    values that is in the tail."""

    bin: int
    share: float


def read_boundary(
    histogram: ArrayLike, edges: ArrayLike, part: float, *, count: float | None = None
) -> Boundary:
    """Return the bin where the tail begins, and which fraction of its values is in the tail. The tail is the
    fraction `part` of all `count` values, the largest ones. With noise, several bins may fit: the search
    begins at the quantile 1 - `part`. Raises `ValueError` for invalid input."""
    borders = _borders(edges)
    heights, total = _checked(histogram, borders, part, count)
    wanted = tail_size(total, part)
    above = np.append(heights[::-1].cumsum()[::-1], 0.0)  # above[k] is the sum of bins k, k + 1, ...
    place = _closest(heights, total, 1 - part)
    while above[place + 1] > wanted:
        place += 1
    while place > 0 and max(above[place], above[place + 1]) < wanted:
        place -= 1
    if heights[place] <= 0:
        return Boundary(place, 0.0)
    return Boundary(place, float(np.clip((wanted - above[place + 1]) / heights[place], 0.0, 1.0)))


def _closest(heights: NDArray[Any], total: float, part: float) -> int:
    return int(np.argmin(np.abs(heights.cumsum() / total - part)))


def _checked(
    histogram: ArrayLike, borders: NDArray[Any], part: float, count: float | None
) -> tuple[NDArray[Any], float]:
    """Return the bins' counts, and `count` (by default their sum). Raises `ValueError` for invalid input."""
    heights = np.asarray(histogram, np.float64)
    if heights.shape != (len(borders) - 1,):
        raise ValueError(f"{len(borders)} edges need a histogram of {len(borders) - 1} bins")
    if not 0 <= part <= 1:
        raise ValueError("a part of all lies from 0 to 1")
    if not np.isfinite(heights).all() or (count is not None and not np.isfinite(count)):
        raise ValueError("a histogram and its count must be finite numbers")
    total = heights.sum() if count is None else count
    if total <= 0:
        raise ValueError("the histogram holds too little to read a quantile from")
    return heights, float(total)


def _borders(edges: ArrayLike) -> NDArray[Any]:
    borders = np.asarray(edges, np.float64)
    if borders.ndim != 1 or len(borders) < 2 or not np.isfinite(borders).all():
        raise ValueError("edges must be at least two finite numbers")
    if not (np.diff(borders) > 0).all():
        raise ValueError("edges must be in ascending order")
    return borders


def tail_size(count: float, theta: float) -> float:
    """Return theta * count, a tail's size (maybe fractional). Raises `ValueError` unless 0 < theta <= 1."""
    if not 0 < theta <= 1:
        raise ValueError("theta is a part of all, above 0 and at most 1")
    size = theta * count
    return float(round(size)) if 0 < abs(size - round(size)) < NEARLY * size else size
