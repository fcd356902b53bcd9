"""The privacy goal of a noise plan: the epsilon and delta, or the rho, that all sums together may cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from secagg import argument_checks as checks
from secagg.errors import ParameterError
from secagg.noise.zcdp_cost import Adjacency

# Limits of epsilon and rho. Below, a total would be only noise; above, there is no meaningful privacy.
_LEAST: Final = 1e-9
_MOST: Final = 1e6
_MOST_SUMS: Final = 1 << 32
# Delta must be far above the error of the noise samplers.
_LEAST_DELTA: Final = 1e-15
# Integer orders lose at most half of rho, unless epsilon is so small that its best order exceeds 256.
_LEAST_OF_CONTINUOUS: Final = 0.1


class Orders(StrEnum):
    """The Renyi orders at which a privacy cost is converted to epsilon. The least epsilon is then used.

    `INTEGER`     2 to 128, and 256.
    `CONTINUOUS`  all real orders.

    >>> [str(each) for each in Orders]
    ['integer', 'continuous']
    """

    INTEGER = "integer"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The most privacy that all sums together may cost: either `epsilon` at `delta`, or `rho`. Raises
    `ParameterError` unless exactly one of `epsilon` and `rho` is given, and all values are valid.

    `epsilon`, `delta`  (epsilon, delta)-differential privacy. It needs the extra "dp" installed.
    `rho`               zero-concentrated differential privacy (zCDP).
    `sums`              the number of sums. Each of them may cost an equal part.
    `adjacency`         which inputs must be hard to distinguish; a member of the enum, or its string.
    `orders`            the Renyi orders for the conversion of rho to epsilon; a member, or its string.

    >>> Goal(rho=0.5, sums=10).rho_per_sum
    0.05
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
        for name in ("epsilon", "rho"):
            if (loss := getattr(self, name)) is not None:
                object.__setattr__(self, name, checks.real(loss, name, _LEAST, _MOST))
        if self.epsilon is not None and self.delta is None:
            raise ParameterError("epsilon means nothing without delta")
        if self.delta is not None:
            object.__setattr__(self, "delta", checks.probability(self.delta, "delta"))
            if self.delta < _LEAST_DELTA:
                raise ParameterError(
                    f"delta must be at least {_LEAST_DELTA:g}: below, the error with which noise is drawn "
                    "would count"
                )
        object.__setattr__(self, "sums", checks.whole(self.sums, "sums", 1, _MOST_SUMS))
        object.__setattr__(self, "adjacency", checks.one_of(Adjacency, self.adjacency, "adjacency"))
        object.__setattr__(self, "orders", checks.one_of(Orders, self.orders, "orders"))

    @cached_property
    def rho_per_sum(self) -> float:
        rho = self.rho_beside(0.0)
        if self.epsilon is not None and self.orders is Orders.INTEGER:
            self._check_orders(rho)
        return rho

    def _check_orders(self, rho: float) -> None:
        """Raise `ParameterError` if `rho`, what a sum may cost by integer Renyi orders, is less than a tenth
        of what it may cost by continuous orders: it would require far more noise."""
        if rho < _LEAST_OF_CONTINUOUS * replace(self, orders=Orders.CONTINUOUS).rho_per_sum:
            raise ParameterError(
                f"orders up to 256 cannot express an epsilon as small as {self.epsilon:g} "
                f"at a delta of {self.delta:g}; use continuous orders"
            )

    def rho_beside(self, xi: float) -> float:
        """Return the rho that each sum may cost if it also costs `xi`, a Renyi divergence that is the same at
        all orders. So `xi` is first subtracted from the goal, once for each sum. 0 if nothing is left."""
        if self.epsilon is None:
            assert self.rho is not None
            return max(0.0, self.rho / self.sums - xi)
        left = self.epsilon - self.sums * xi
        if left < _LEAST:
            return 0.0
        from secagg.noise.rho_and_epsilon import rho_for

        assert self.delta is not None
        return rho_for(left, delta=self.delta, orders=self.orders) / self.sums

    def part(self, share: float) -> Goal:
        """Return the goal for one part (vector) of each sum: the fraction `share` of this goal's rho. Raises
        `ParameterError` unless 0 < `share` <= 1 and the resulting rho is at least 1e-9."""
        share = checks.share(share, "a share")
        rho = self.rho_per_sum * self.sums * share
        if rho < _LEAST:
            raise ParameterError(f"a share of {share:g} is too small: its rho would be below {_LEAST:g}")
        return replace(self, epsilon=None, rho=rho)
