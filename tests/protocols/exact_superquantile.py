"""Exact weights of the superquantile of known losses, plain and smoothed: what histograms approximate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from protocols.histogram_quantiles import tail_size
from protocols.serialisation import Vector
from protocols.superquantile_formulas import (
    _losses,
    entropic_level,
    entropic_share,
    quadratic_level,
    quadratic_share,
)


def tail_weights(losses: ArrayLike, theta: float) -> Vector:
    """Return the weights whose weighted mean is the superquantile. Of equal losses, the first count first."""
    values = _losses(losses)
    size = tail_size(len(values), theta)
    weights = np.zeros(len(values))
    weights[np.argsort(-values, kind="stable")] = np.clip(size - np.arange(len(values)), 0, 1) / size
    return weights


def superquantile(losses: ArrayLike, theta: float) -> float:
    """Return the mean of the part `theta` of all losses that are the largest."""
    return float(tail_weights(losses, theta) @ _losses(losses))


def quadratic_weights(losses: ArrayLike, theta: float, nu: float) -> Vector:
    """Return the weights that are smoothed by a quadratic penalty."""
    values = _losses(losses)
    shares = quadratic_share(values, quadratic_level(values, theta, nu), theta, nu)
    return shares / tail_size(len(values), theta)


def entropic_weights(losses: ArrayLike, theta: float, nu: float) -> Vector:
    """Return the weights that are smoothed by their divergence from the uniform ones."""
    values = _losses(losses)
    shares = entropic_share(values, entropic_level(values, theta, nu), theta, nu)
    return shares / tail_size(len(values), theta)
