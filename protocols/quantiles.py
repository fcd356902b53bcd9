"""Quantiles from a histogram that is a sum, and may be noisy.

Everybody adds one count to the bin of its own value; the total is a histogram of all. With noise, bins may
be negative and their running sum need not rise. What is read off is the right edge of the bin at which
the running sum comes closest to the wanted part of all, as in "Differentially Private Federated Quantiles
with the Distributed Discrete Gaussian Mechanism".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def one_hot(value: float, edges: ArrayLike) -> NDArray[np.uint64]:
    """A client's histogram: one count. Values beyond the outer edges fall into the outer bins."""
    borders = _borders(edges)
    if not np.isfinite(value):
        raise ValueError("a value must be a finite number")
    counts = np.zeros(len(borders) - 1, np.uint64)
    counts[np.clip(np.searchsorted(borders, value, side="right") - 1, 0, len(counts) - 1)] = 1
    return counts


def read_quantile(
    histogram: ArrayLike, edges: ArrayLike, part: float, *, count: float | None = None
) -> float:
    """The value below which `part` of all lie, as well as the histogram tells.

    `count` is the number of clients where that is public; otherwise the histogram's own sum, noise included.
    Of bins that are equally close, the first one counts.
    """
    borders, heights = _borders(edges), np.asarray(histogram, np.float64)
    if heights.shape != (len(borders) - 1,):
        raise ValueError(f"{len(borders)} edges need a histogram of {len(borders) - 1} bins")
    if not 0 <= part <= 1:
        raise ValueError("a part of all lies from 0 to 1")
    if not np.isfinite(heights).all() or (count is not None and not np.isfinite(count)):
        raise ValueError("a histogram and its count must be finite numbers")
    total = heights.sum() if count is None else count
    if total <= 0:
        raise ValueError("the histogram holds too little to read a quantile from")
    return float(borders[1 + int(np.argmin(np.abs(heights.cumsum() / total - part)))])


def _borders(edges: ArrayLike) -> NDArray[Any]:
    borders = np.asarray(edges, np.float64)
    if borders.ndim != 1 or len(borders) < 2 or not np.isfinite(borders).all():
        raise ValueError("edges must be at least two finite numbers")
    if not (np.diff(borders) > 0).all():
        raise ValueError("edges must be in ascending order")
    return borders
