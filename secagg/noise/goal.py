"""How much privacy is wanted, over how many sums."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from secagg.errors import ParameterError
from secagg.noise.accounting import Adjacency

# Beyond these, there is no privacy to speak of, or nothing but noise.
_LEAST: Final = 1e-9
_MOST: Final = 1e6
# So little follows from an epsilon only if the orders are too few for it.
_NO_RHO: Final = 1e-25


class Orders(StrEnum):
    """At which Renyi orders a bound is turned into epsilon. Each order gives a valid one; the least counts.

    `INTEGER`     2 to 128, and 256.
    `CONTINUOUS`  all real orders.
    """

    INTEGER = "integer"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What all sums together may cost: either `epsilon` at `delta`, or `rho`.

    `epsilon`, `delta`  (epsilon, delta)-differential privacy; needs the extra "dp".
    `rho`               zero-concentrated differential privacy.
    `sums`              how many sums share it in equal parts.
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    sums: int = 1
    adjacency: Adjacency = Adjacency.ZERO_OUT
    orders: Orders = Orders.CONTINUOUS

    def __post_init__(self) -> None:
        if (self.epsilon is None) is (self.rho is None):
            raise ParameterError("a goal is either epsilon or rho")
        if not _LEAST <= (self.epsilon or self.rho or 0) <= _MOST:
            raise ParameterError(f"epsilon and rho must be numbers from {_LEAST} to {_MOST}")
        if self.epsilon is not None and self.delta is None:
            raise ParameterError("epsilon means nothing without delta")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ParameterError("delta must be above 0 and below 1")
        if type(self.sums) is not int or self.sums < 1:
            raise ParameterError("sums must be a whole number from 1 on")

    @cached_property
    def rho_per_sum(self) -> float:
        rho = self.rho_beside(0.0)
        if rho * self.sums < _NO_RHO:
            raise ParameterError(
                f"no noise has an epsilon of {self.epsilon} at a delta of {self.delta}, "
                f"as far as {self.orders} orders can tell"
            )
        return rho

    def rho_beside(self, xi: float) -> float:
        """The rho that a sum may cost, if it costs `xi` at every order besides; zero if that is too much.

        As zCDP, xi is a part of rho. As epsilon, it is a part of epsilon, which is less.
        """
        if self.epsilon is None:
            assert self.rho is not None
            return max(0.0, self.rho / self.sums - xi)
        left = self.epsilon - self.sums * xi
        if left < _LEAST:
            return 0.0
        from secagg.noise.conversion import rho_for

        assert self.delta is not None
        return rho_for(left, delta=self.delta, orders=self.orders) / self.sums

    def part(self, share: float) -> Goal:
        """A share of it, as rho: for one of several parts of a sum."""
        return Goal(
            rho=self.rho_per_sum * self.sums * share, delta=self.delta, sums=self.sums,
            adjacency=self.adjacency, orders=self.orders,
        )  # fmt: skip
