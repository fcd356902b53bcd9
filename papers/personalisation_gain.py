"""The gain of personalisation for each client, compared with the common model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, number, same_length, series
from fl.errors import FLError
from fl.metrics.clients import percentile

# Errors are ratios of counts of samples: any two that differ do so by more than this.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Gains:
    """The error of the common model minus that of the personal one, over clients.

    `hurt`, `helped`, `same`  shares of clients; they add up to one.
    `worst`, `best`           of any client.
    `low`, `high`             the 10th and the 90th percentile.
    """

    hurt: float
    helped: float
    same: float
    mean: float
    worst: float
    low: float
    median: float
    high: float
    best: float


def gains(common: ArrayLike, personal: ArrayLike) -> Floats:
    """Return by how much each client's error falls with its personal model; negative if it rises."""
    before = series("errors of the common model", common)
    after = series("errors of personal models", personal)
    same_length("errors of the common model", before, "errors of personal models", after)
    return before - after


def hurt_share(common: ArrayLike, personal: ArrayLike, *, margin: float = 0.0) -> float:
    """Return the share of clients whose error rises by more than `margin`."""
    gain, least = gains(common, personal), _margin(margin)
    return float(np.mean(gain < -least))


def summarised_gains(common: ArrayLike, personal: ArrayLike, *, margin: float = 0.0) -> Gains:
    """Summarise gains. A change of at most `margin` either way counts as the same."""
    gain, least = gains(common, personal), _margin(margin)
    hurt, helped = float(np.mean(gain < -least)), float(np.mean(gain > least))
    return Gains(
        hurt=hurt,
        helped=helped,
        same=float(np.mean(np.abs(gain) <= least)),
        mean=float(gain.mean()),
        worst=float(gain.min()),
        low=percentile(gain, 10),
        median=percentile(gain, 50),
        high=percentile(gain, 90),
        best=float(gain.max()),
    )


def _margin(margin: float) -> float:
    if number("margin", margin) < 0:
        raise FLError(f"a margin of {margin}: give 0, or how much a client's error may rise before it counts")
    return margin + _ROUNDING
