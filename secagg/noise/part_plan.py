"""The plan of one part: its calibrated noise, its encoding, and what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from secagg.errors import ParameterError
from secagg.noise.accounting import most_norm1, part_rho, promised_tau, renyi_costs
from secagg.noise.privacy_goal import Goal
from secagg.noise_assumptions import Noise, NoiseAssumptions
from secagg.sum_spec import Bound, Part, SumSpec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Noise that meets a goal under a promise. Sigmas and granularity are in units of the part.

    `scale`     grid points per unit.
    `variance`  the promised minimum variance of the total's noise, in grid points squared.
    `norm2`     the square of the largest norm of one client's grid points. Clients enforce the whole number
                below it, which may cost a little less.
    `stddevs`   standard deviations of the total that the ring has room for.

    `calibrate_vector`, `calibrate_counts` and `calibrate_elements` return it; `part` makes it a part of a
    sum.
    """

    promise: NoiseAssumptions
    goal: Goal
    bound: Bound
    size: int
    bits: int
    scale: float
    variance: Fraction
    norm2: float
    stddevs: float

    def __post_init__(self) -> None:
        self.part("part")  # raises what a spec would raise later

    def part(self, name: str) -> Part:
        noise = Noise(scale=self.scale, variance=self.variance)
        return Part(name=name, size=self.size, bits=self.bits, bound=self.bound, noise=noise)

    @cached_property
    def width(self) -> int:
        """The number of elements with noise. A rotated vector is padded."""
        return self.part("part").width

    @property
    def least_roster(self) -> int:
        """The fewest clients: with fewer, the total might wrap, or no honest client might be left."""
        return SumSpec(parts=(self.part("part"),), promise=self.promise).least_roster

    # --- how much noise ---

    @property
    def granularity(self) -> float:
        """The size of one grid point."""
        return 1 / self.scale

    @property
    def sigma_central(self) -> float:
        """The standard deviation of the promised noise in the total."""
        return math.sqrt(self.variance) / self.scale

    @property
    def sigma_local(self) -> float:
        """The standard deviation of all noise that one client adds."""
        return self.sigma_over_granularity / self.scale

    @property
    def sigma_over_granularity(self) -> float:
        return math.sqrt(self.variance * sum(self.promise.components(self.promise.clients)))

    @property
    def least_sigma_over_granularity(self) -> float:
        """The same for the smallest component that a client adds; equal unless noise is removable."""
        return math.sqrt(self.variance * least_component(self.promise))

    @property
    def sigma_released(self) -> float:
        """The standard deviation of the noise in the total if no client drops out."""
        clients = self.promise.clients
        return math.sqrt(clients * self.variance * self.promise.left(self.promise.clients)) / self.scale

    @property
    def noise_norm(self) -> float:
        """The approximate norm of the promised noise in a total, without the padding."""
        return self.sigma_central * math.sqrt(self.size)

    # --- what it costs ---

    @property
    def sensitivity(self) -> float:
        """The largest norm of one client's vector after rounding. Two vectors may be further apart."""
        return math.sqrt(self.norm2) / self.scale

    @cached_property
    def tau(self) -> float:
        return promised_tau(self.promise, self.promise.clients, self.variance)

    @cached_property
    def rho(self) -> float:
        """The zCDP of one sum: what `sum_rho` charges for this part, or a little more.

        If tau is not negligible, this is more than `epsilon` suggests: as zCDP, the cost of tau grows with
        the order.
        """
        return part_rho(*self._moved, self.variance, self.width, self.tau)

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of all sums at the delta of the goal; needs the extra "dp"."""
        delta, orders, sums = self.goal.delta, self.goal.orders, self.goal.sums
        if delta is None:
            raise ParameterError("epsilon means nothing without delta")
        from secagg.noise.conversion import epsilon

        costs = renyi_costs(*self._moved, self.variance, self.width, self.tau)
        return min(epsilon([cost] * sums, delta=delta, orders=orders) for cost in costs)

    @property
    def _moved(self) -> tuple[float, float]:
        """The largest distance of the totals of two adjacent inputs: squared L2 norm, and L1 norm."""
        adjacency = self.goal.adjacency
        norm1 = most_norm1(self.norm2, self.width)
        return self.norm2 * adjacency.norm2_factor(self.bound), norm1 * adjacency.norm1_factor


def least_component(promise: NoiseAssumptions) -> Fraction:
    """Return the smallest noise component that a client adds, as a part of the target."""
    return min(promise.components(promise.clients))
