"""Which clients are in the tail of the losses, as read off a histogram, and how much each of them counts.

The server finds from the histogram where the tail begins, a cut, and tells everybody. From the cut and its
own loss, each client knows its share: 1 in the tail, 0 outside, and something between at the boundary.

    share       Above the boundary bin, clients count 1, below it 0, and in it (theta m - above) / in_bin:
                together, exactly as many as there should be. With one loss in the bin, these are the exact
                weights of the superquantile.
    indicator   Clients whose loss is the quantile or more count 1, all others 0.
    quadratic,  The smoothed weights of the superquantile, with a level that is found from the histogram as
    entropic    if all losses were in the middle of their bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.quantiles import bin_of, one_hot, read_boundary, read_quantile
from protocols.record import Vector
from protocols.superquantile import entropic_level, entropic_share, quadratic_level, quadratic_share
from secagg.errors import ParameterError


class Rule(StrEnum):
    """How shares follow from losses."""

    SHARE = "share"
    INDICATOR = "indicator"
    QUADRATIC = "quadratic"
    ENTROPIC = "entropic"

    @classmethod
    def parse(cls, name: str) -> Rule:
        try:
            return cls(name)
        except ValueError:
            raise ParameterError(
                f"rule must be one of {', '.join(cls)}, not {name!r}", parameter="rule"
            ) from None


@dataclass(frozen=True)
class Cut:
    """Where the tail begins.

    `level`  the lower edge of the boundary bin; the quantile, or the level of smoothed weights.
    `share`  of clients in the boundary bin, where there is one.
    """

    level: float
    share: float = 1.0


NO_CUT: Final = Cut(0.0)  # everybody is in the tail


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The part `theta` of all clients with the largest losses.

    `loss_bound`, `bins`  a histogram of so many equal bins from 0 to the bound, to which losses are clipped.
    `rule`, `nu`          how shares follow from losses, and how smooth they are, in units of the loss.
    """

    theta: float
    loss_bound: float | None
    bins: int
    rule: Rule
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
                f"the rule {self.rule} has no smoothing: leave nu unset, or set another rule"
            )

    @property
    def is_smooth(self) -> bool:
        return self.rule in (Rule.QUADRATIC, Rule.ENTROPIC)

    @property
    def is_all(self) -> bool:
        """Whether nobody is outside, so that nobody's loss has to be known."""
        return self.theta == 1

    @property
    def most(self) -> float:
        assert self.loss_bound is not None  # checked above
        return self.loss_bound

    @property
    def smoothing(self) -> float:
        assert self.nu is not None  # checked above
        return self.nu

    @cached_property
    def edges(self) -> Vector:
        return np.linspace(0.0, self.most, self.bins + 1)

    # --- a client's side ---

    def histogram(self, loss: float) -> NDArray[np.uint64]:
        """One count, for a loss that is a finite number."""
        return one_hot(self._clipped(loss), self.edges)

    def share(self, loss: float, cut: Cut) -> float:
        """From 0 to 1, whatever a server says."""
        if self.is_all:
            return 1.0
        own = self._clipped(loss)
        match self.rule:
            case Rule.SHARE:
                above = bin_of(own, self.edges) - bin_of(cut.level, self.edges)
                return min(max(cut.share, 0.0), 1.0) if above == 0 else float(above > 0)
            case Rule.INDICATOR:
                return float(own >= cut.level)
            case Rule.QUADRATIC:
                return float(quadratic_share(own, cut.level, self.theta, self.smoothing))
            case Rule.ENTROPIC:
                return float(entropic_share(own, cut.level, self.theta, self.smoothing))

    def _clipped(self, loss: float) -> float:
        return min(max(loss, 0.0), self.most)

    # --- the server's side ---

    def cut(self, heights: ArrayLike, count: float | None) -> Cut:
        """From the total of all histograms; `count` is its sum where that is public.

        Raises `ValueError` where noise has left nothing to read.
        """
        match self.rule:
            case Rule.SHARE:
                place, share = read_boundary(heights, self.edges, self.theta, count=count)
                return Cut(float(self.edges[place]), share)
            case Rule.INDICATOR:
                return Cut(read_quantile(heights, self.edges, 1 - self.theta, count=count))
            case Rule.QUADRATIC:
                return Cut(quadratic_level(self._middles, self.theta, self.smoothing, heights))
            case Rule.ENTROPIC:
                return Cut(entropic_level(self._middles, self.theta, self.smoothing, heights))

    @property
    def _middles(self) -> Vector:
        return np.asarray((self.edges[1:] + self.edges[:-1]) / 2)
