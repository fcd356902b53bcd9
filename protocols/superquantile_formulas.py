"""Formulas of clients' weights in the superquantile of losses, the mean of the largest theta n of n losses.

The superquantile is the largest weighted mean of all losses if the weights pi add up to 1 and each is at most
1 / (theta n). The largest losses get this weight; the loss at the boundary gets the rest. The share of a
client is its weight times theta n, which is from 0 to 1. The shares of all clients add up to theta n.

Smoothed weights maximise the weighted mean minus a penalty on their distance from uniform weights, so that a
small change of a loss changes them little. The smoothing `nu` is in units of the loss:

    quadratic   the penalty nu n / 2 |pi - 1/n|^2,  the shares clip(theta (1 + (loss - level) / nu), 0, 1)
    entropic    the penalty nu KL(pi, uniform),     the shares min(theta exp((loss - level) / nu), 1)

The level is the number at which the shares add up to theta n. A client that receives the level can compute
its own share. Near the uniform weights the two penalties are the same.

"Federated Learning with Superquantile Aggregation for Heterogeneous Data", "Superquantiles at Work: Machine
Learning Applications and Efficient Subgradient Computation". In the package sqwash, the quadratic penalty has
the factor nu / (2 n) instead of nu n / 2, so its nu is n^2 times the nu used here.

The server reads the threshold at which the tail begins from a histogram of m losses, and broadcasts it. From
the threshold and its own loss, each client computes its share, by one of these rules:

    share       Clients above the boundary bin have the share 1, those below it 0, and those in it
                (theta m - above) / in_bin, so that the shares add up to theta m. With one loss in the bin,
                these are the exact weights of the superquantile.
    indicator   Clients whose loss is the quantile or more have the share 1, all others 0.
    quadratic,  The smoothed weights of the superquantile. The level is computed from the histogram, as if all
    entropic    losses were in the middle of their bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.histogram_quantiles import NEARLY, bin_of, one_hot, read_boundary, read_quantile, tail_size
from protocols.serialisation import Vector
from secagg.errors import ParameterError


def quadratic_share(losses: ArrayLike, level: float, theta: float, nu: float) -> Vector:
    """Return the quadratic rule's share of each client: theta (1 + (loss - level) / nu), within [0, 1]."""
    return np.clip(theta * (1 + _above(losses, level, nu)), 0.0, 1.0)


def entropic_share(losses: ArrayLike, level: float, theta: float, nu: float) -> Vector:
    """Return the entropic rule's share of each client: theta exp((loss - level) / nu), limited to at most 1.
    The limit is applied to (loss - level) / nu before the exponential, so that this does not overflow."""
    exponent = np.minimum(_above(losses, level, nu), -np.log(theta))
    return np.asarray(np.minimum(theta * np.exp(exponent), 1.0))


def _above(losses: ArrayLike, level: float, nu: float) -> Vector:
    """Return (losses - level) / nu. An overflow to infinity is harmless: shares are limited to [0, 1]."""
    with np.errstate(over="ignore"):
        return np.asarray((np.asarray(losses, np.float64) - level) / nu)


def quadratic_level(losses: ArrayLike, theta: float, nu: float, counts: ArrayLike | None = None) -> float:
    """Return the level at which the shares theta (1 + (loss - level) / nu), limited to [0, 1], of all losses
    add up to `theta` times their number. `counts` says how often each loss occurs; once by default. The sum
    of the shares is a piecewise linear function of the level, with corners where one share reaches 0 or 1.
    Raises `ValueError` for invalid arguments."""
    values, often = _counted(losses, counts)
    _check_smoothing(theta, nu)
    target = theta * often.sum()
    corners = np.unique(np.concatenate([values + nu, values - nu * (1 - theta) / theta]))

    def filled(level: float) -> float:
        return float(often @ quadratic_share(values, level, theta, nu))

    # The sum is at least the target at `low`, and at most the target at `high`.
    low, high = 0, len(corners) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if filled(corners[middle]) >= target else (low, middle)
    over, under = filled(corners[low]) - target, target - filled(corners[high])
    if over <= 0 or over + under <= 0:
        return float(corners[low])
    return float(corners[low] + (corners[high] - corners[low]) * over / (over + under))


def entropic_level(losses: ArrayLike, theta: float, nu: float, counts: ArrayLike | None = None) -> float:
    """Return the level at which the shares theta exp((loss - level) / nu), limited to 1, of all losses add up
    to `theta` times their number. `counts` says how often each loss occurs; once by default. If it were known
    how many losses have the share 1, the level would follow. So 0, 1, ... are tried, until no other share
    exceeds 1. Raises `ValueError` for invalid arguments."""
    values, often = _counted(losses, counts)
    _check_smoothing(theta, nu)
    order = np.argsort(-values, kind="stable")
    values, often = values[order], often[order]
    rest = np.logaddexp.accumulate((values / nu + np.log(often))[::-1])[::-1]  # of this and smaller losses
    target, full = theta * often.sum(), often.cumsum()
    with np.errstate(invalid="ignore", divide="ignore"):  # values after the first that fits are not used
        levels = nu * (rest - np.log((target - (full - often)) / theta))
        fits = (values <= levels - nu * np.log(theta)) | (full >= target * (1 - NEARLY))
    return float(levels[np.argmax(fits)])


def _losses(losses: ArrayLike) -> Vector:
    values = np.asarray(losses, np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError("losses must be at least one finite number")
    return values


def _counted(losses: ArrayLike, counts: ArrayLike | None) -> tuple[Vector, Vector]:
    """Return the losses with counts above 0 and these counts. Raises `ValueError` if there are none."""
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


class TailRule(StrEnum):
    """How a client's weight follows from its loss: "indicator" is 1 from the tail's threshold on, else 0;
    "share" is the same, but a fraction in the threshold's histogram bin; the others change smoothly."""

    SHARE = "share"
    INDICATOR = "indicator"
    QUADRATIC = "quadratic"
    ENTROPIC = "entropic"

    @classmethod
    def parse(cls, name: str) -> TailRule:
        checks.one_of("rule", name, tuple(cls))
        return cls(name)


@dataclass(frozen=True)
class TailThreshold:
    """Where the tail of the largest losses begins. From it and its own loss, a client computes its weight.

    `level`  for the rule "share", the lower edge of the histogram bin in which the tail begins; for
             "indicator", the quantile of the losses; for others, the level in the formula of the weight.
    `share`  for the rule "share" only, the weight (0 to 1) of clients whose loss is in that bin.
    """

    level: float
    share: float = 1.0


WHOLE_COHORT: Final = TailThreshold(0.0)  # all clients are in the tail


@dataclass(frozen=True, kw_only=True)
class LossTail:
    """The settings and computations for the tail: the fraction `theta` of clients with the largest losses.

    `loss_bound`, `bins`  upper end of the histogram, to which losses are clipped, and number of equal bins.
    `rule`, `nu`          how a client's weight follows from its loss, and the smoothing in units of the loss.
    """

    theta: float
    loss_bound: float | None
    bins: int
    rule: TailRule
    nu: float | None = None

    def __post_init__(self) -> None:
        checks.positive("theta", self.theta)
        checks.real("theta", self.theta, 0, 1)
        checks.bound("loss_bound", self.loss_bound, "the largest loss that is told apart, such as 5.0")
        checks.whole("bins", self.bins, 2, 1 << 20)
        if self.is_smooth:
            checks.bound("nu", self.nu, "over which range of losses shares go from 0 to 1, such as 0.1")
        elif self.nu is not None:
            raise ParameterError(
                f"the rule {self.rule} has no smoothing: leave nu unset, or set another rule", parameter="nu"
            )

    @property
    def is_smooth(self) -> bool:
        return self.rule in (TailRule.QUADRATIC, TailRule.ENTROPIC)

    @property
    def is_all(self) -> bool:
        """Whether the tail is the whole cohort (theta = 1), so that losses are not needed."""
        return self.theta == 1

    most = checks.CheckedBound("loss_bound")
    smoothing = checks.CheckedBound("nu")

    @cached_property
    def edges(self) -> Vector:
        return np.linspace(0.0, self.most, self.bins + 1)

    # --- a client's side ---

    def histogram(self, loss: float) -> NDArray[np.uint64]:
        """Return a histogram with one count, in the bin of `loss` (finite, clipped to the bins' range)."""
        return one_hot(self._clipped(loss), self.edges)

    def share(self, loss: float, cut: TailThreshold) -> float:
        """Return the relative weight of a client with this loss, from 0 to 1 for any threshold `cut`."""
        if self.is_all:
            return 1.0
        own = self._clipped(loss)
        match self.rule:
            case TailRule.SHARE:
                above = bin_of(own, self.edges) - bin_of(cut.level, self.edges)
                return min(max(cut.share, 0.0), 1.0) if above == 0 else float(above > 0)
            case TailRule.INDICATOR:
                return float(own >= cut.level)
            case TailRule.QUADRATIC:
                return float(quadratic_share(own, cut.level, self.theta, self.smoothing))
            case TailRule.ENTROPIC:
                return float(entropic_share(own, cut.level, self.theta, self.smoothing))
        assert_never(self.rule)

    def _clipped(self, loss: float) -> float:
        return min(max(loss, 0.0), self.most)

    # --- the server's side ---

    def cut(self, heights: ArrayLike, count: float | None) -> TailThreshold:
        """Return the threshold of the tail, read from the summed histogram `heights`. `count` is the number
        of clients, or None for the sum of `heights`; the rules "quadratic" and "entropic" ignore it. Raises
        `ValueError` if `heights` have too few counts to find a tail, which noise can cause."""
        match self.rule:
            case TailRule.SHARE:
                place, share = read_boundary(heights, self.edges, self.theta, count=count)
                return TailThreshold(float(self.edges[place]), share)
            case TailRule.INDICATOR:
                return TailThreshold(read_quantile(heights, self.edges, 1 - self.theta, count=count))
            case TailRule.QUADRATIC:
                return TailThreshold(quadratic_level(self._middles, self.theta, self.smoothing, heights))
            case TailRule.ENTROPIC:
                return TailThreshold(entropic_level(self._middles, self.theta, self.smoothing, heights))
        assert_never(self.rule)

    @property
    def _middles(self) -> Vector:
        return np.asarray((self.edges[1:] + self.edges[:-1]) / 2)
