"""The plan of one part: its calibrated noise, its encoding, and its privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import ParameterError
from secagg.noise.privacy_goal import Goal
from secagg.noise.zcdp_cost import most_norm1, part_rho, promised_tau, renyi_costs
from secagg.sum_spec import Bound, Part, SumSpec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A part with noise that meets `goal` if the assumptions in `promise` hold.

    `scale`     the number of grid points per unit of the part.
    `variance`  the promised minimum variance of the total's noise, in grid points squared.
    `norm2`     the largest squared norm of one client's vector in grid points. Clients enforce the whole
                number below it, which may cost a little less.
    `stddevs`   the standard deviations of noise in the total for which the bits leave room.

    `calibrate_vector`, `calibrate_counts` and `calibrate_elements` return a plan. `part` returns its `Part`.
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
        """The number of elements that are sent. A rotated vector is padded to a power of two."""
        return self.part("part").width

    @property
    def least_roster(self) -> int:
        """The fewest clients to ask. With fewer, the total could wrap, or no honest client could be left."""
        return SumSpec(parts=(self.part("part"),), promise=self.promise).least_roster

    # --- how much noise ---

    @property
    def granularity(self) -> float:
        """The distance of two grid points, in units of the part."""
        return 1 / self.scale

    @property
    def sigma_central(self) -> float:
        """The standard deviation of the promised noise in the total, in units of the part."""
        return math.sqrt(self.variance) / self.scale

    @property
    def sigma_local(self) -> float:
        """The standard deviation of all noise that one client adds, in units of the part."""
        return self.sigma_over_granularity / self.scale

    @property
    def sigma_over_granularity(self) -> float:
        return math.sqrt(self.variance * sum(self.promise.components(self.promise.clients)))

    @property
    def least_sigma_over_granularity(self) -> float:
        """The standard deviation of the smallest noise component that a client adds, in grid points."""
        return math.sqrt(self.variance * least_component(self.promise))

    @property
    def sigma_released(self) -> float:
        """The standard deviation of the total's noise if no client drops out, in units of the part."""
        clients = self.promise.clients
        return math.sqrt(clients * self.variance * self.promise.left(self.promise.clients)) / self.scale

    @property
    def noise_norm(self) -> float:
        """The approximate L2 norm of the promised noise in a total without padding, in units of the part."""
        return self.sigma_central * math.sqrt(self.size)

    # --- what it costs ---

    @property
    def sensitivity(self) -> float:
        """The largest norm of one client's rounded vector, in units of the part."""
        return math.sqrt(self.norm2) / self.scale

    @cached_property
    def tau(self) -> float:
        return promised_tau(self.promise, self.promise.clients, self.variance)

    @cached_property
    def rho(self) -> float:
        """The cost of one sum as rho of zCDP: what `sum_rho` counts for this part, or a little more.

        If tau is not negligible, `epsilon` may be less than this rho implies: a rho has to count the cost of
        tau at every Renyi order a as a times that cost.
        """
        return part_rho(*self._moved, self.variance, self.width, self.tau)

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of all `goal.sums` sums, composed, at the goal's delta. Needs the extra "dp"."""
        delta, orders, sums = self.goal.delta, self.goal.orders, self.goal.sums
        if delta is None:
            raise ParameterError("epsilon means nothing without delta")
        from secagg.noise.conversion import epsilon

        costs = renyi_costs(*self._moved, self.variance, self.width, self.tau)
        return min(epsilon([cost] * sums, delta=delta, orders=orders) for cost in costs)

    @property
    def _moved(self) -> tuple[float, float]:
        """The largest (squared L2 norm, L1 norm) of the difference of adjacent inputs, in grid points."""
        adjacency = self.goal.adjacency
        norm1 = most_norm1(self.norm2, self.width)
        return self.norm2 * adjacency.norm2_factor(self.bound), norm1 * adjacency.norm1_factor


def least_component(promise: NoiseAssumptions) -> Fraction:
    """Return the variance of a client's smallest noise component, as a fraction of the target variance."""
    return min(promise.components(promise.clients))
