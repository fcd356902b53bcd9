"""The superquantile of losses, the mean over a tail that is a part `theta` of all, and whom it weighs how.

It is the largest weighted mean whose weights add up to 1 and are at most 1 / (theta n) each. The best weights
are found greedily, the largest losses first; whoever stands at the boundary gets what is left. Every weight
is a share, from 0 to 1, of that largest one, and the shares add up to theta n.

Smoothed weights pay for their distance from the uniform ones, so that a small change of a loss changes them
little. The smoothing `nu` is in units of the loss:

    quadratic   the penalty nu n / 2 |pi - 1/n|^2,  the shares clip(theta (1 + (loss - level) / nu), 0, 1)
    entropic    the penalty nu KL(pi, uniform),     the shares min(theta exp((loss - level) / nu), 1)

with the level at which the shares add up. So a client that hears the level knows its own share. Near the
uniform weights the two penalties are the same.

"Federated Learning with Superquantile Aggregation for Heterogeneous Data", "Superquantiles at Work: Machine
Learning Applications and Efficient Subgradient Computation". The package sqwash has nu / (2 n) where the
quadratic penalty has nu n / 2 here: its smoothing coefficient is n^2 times ours.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from protocols.record import Vector

# A tail of so nearly a whole number of clients has that number: 0.07 * 100 is not 7 in floats.
_NEARLY: Final = 1e-9


def tail_weights(losses: ArrayLike, theta: float) -> Vector:
    """The weights whose weighted mean is the superquantile. Of equal losses, the first ones count first."""
    values = _losses(losses)
    size = tail_size(len(values), theta)
    weights = np.zeros(len(values))
    weights[np.argsort(-values, kind="stable")] = np.clip(size - np.arange(len(values)), 0, 1) / size
    return weights


def superquantile(losses: ArrayLike, theta: float) -> float:
    """The mean of the largest losses, as many as a part `theta` of all."""
    return float(tail_weights(losses, theta) @ _losses(losses))


def tail_size(count: float, theta: float) -> float:
    """How many clients are in the tail; in general, no whole number."""
    if not 0 < theta <= 1:
        raise ValueError("theta is a part of all, above 0 and at most 1")
    size = theta * count
    return float(round(size)) if 0 < abs(size - round(size)) < _NEARLY * size else size


# --- smoothed -----------------------------------------------------------------------------------------


def quadratic_weights(losses: ArrayLike, theta: float, nu: float) -> Vector:
    """The weights that are smoothed by a quadratic penalty."""
    values = _losses(losses)
    shares = quadratic_share(values, quadratic_level(values, theta, nu), theta, nu)
    return shares / tail_size(len(values), theta)


def entropic_weights(losses: ArrayLike, theta: float, nu: float) -> Vector:
    """The weights that are smoothed by their divergence from the uniform ones."""
    values = _losses(losses)
    shares = entropic_share(values, entropic_level(values, theta, nu), theta, nu)
    return shares / tail_size(len(values), theta)


def quadratic_share(losses: ArrayLike, level: float, theta: float, nu: float) -> Vector:
    """The shares of clients with these losses."""
    return np.clip(theta * (1 + _above(losses, level, nu)), 0.0, 1.0)


def entropic_share(losses: ArrayLike, level: float, theta: float, nu: float) -> Vector:
    """The shares of clients with these losses. An exponent beyond which the share is 1 is not computed."""
    exponent = np.minimum(_above(losses, level, nu), -np.log(theta))
    return np.asarray(np.minimum(theta * np.exp(exponent), 1.0))


def _above(losses: ArrayLike, level: float, nu: float) -> Vector:
    """How far losses are above a level. A level may be anything; beyond all floats, a share is 0 or 1."""
    with np.errstate(over="ignore"):
        return np.asarray((np.asarray(losses, np.float64) - level) / nu)


def quadratic_level(losses: ArrayLike, theta: float, nu: float, counts: ArrayLike | None = None) -> float:
    """Where the shares add up to a part `theta` of all; `counts` says how often each loss occurs.

    Between points where one client's share reaches 0 or 1, the sum of the shares falls in a straight line.
    """
    values, often = _counted(losses, counts)
    _check_smoothing(theta, nu)
    target = theta * often.sum()
    corners = np.unique(np.concatenate([values + nu, values - nu * (1 - theta) / theta]))

    def filled(level: float) -> float:
        return float(often @ quadratic_share(values, level, theta, nu))

    low, high = 0, len(corners) - 1  # the sum reaches the target at `low`, and never beyond `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if filled(corners[middle]) >= target else (low, middle)
    over, under = filled(corners[low]) - target, target - filled(corners[high])
    if over <= 0 or over + under <= 0:
        return float(corners[low])
    return float(corners[low] + (corners[high] - corners[low]) * over / (over + under))


def entropic_level(losses: ArrayLike, theta: float, nu: float, counts: ArrayLike | None = None) -> float:
    """Where the shares add up to a part `theta` of all; `counts` says how often each loss occurs.

    Once it is known who has the share 1, the level of all others follows. They are tried from none on; the
    largest loss of the others must not exceed what has the share 1 itself.
    """
    values, often = _counted(losses, counts)
    _check_smoothing(theta, nu)
    order = np.argsort(-values, kind="stable")
    values, often = values[order], often[order]
    rest = np.logaddexp.accumulate((values / nu + np.log(often))[::-1])[::-1]  # of all from here on
    target, full = theta * often.sum(), often.cumsum()
    with np.errstate(invalid="ignore", divide="ignore"):  # beyond the first that fits, anything may be
        levels = nu * (rest - np.log((target - (full - often)) / theta))
        fits = (values <= levels - nu * np.log(theta)) | (full >= target * (1 - _NEARLY))
    return float(levels[np.argmax(fits)])


def _losses(losses: ArrayLike) -> Vector:
    values = np.asarray(losses, np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError("losses must be at least one finite number")
    return values


def _counted(losses: ArrayLike, counts: ArrayLike | None) -> tuple[Vector, Vector]:
    """Losses that occur, and how often. What a noisy histogram counts below zero does not occur."""
    values = _losses(losses)
    often = np.ones(len(values)) if counts is None else np.asarray(counts, np.float64)
    if often.shape != values.shape or not np.isfinite(often).all():
        raise ValueError("there must be a finite count for every loss")
    there = often > 0
    if not there.any():
        raise ValueError("there are no losses at all")
    return values[there], often[there]


def _check_smoothing(theta: float, nu: float) -> None:
    tail_size(1, theta)
    if not 0 < nu < np.inf:
        raise ValueError("nu must be a number above 0")
