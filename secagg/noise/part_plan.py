"""The plan of one part (a vector of a sum) with noise: calibrated noise, encoding, and privacy cost."""

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
    """A part (a vector of a sum) with noise that meets `goal` if the assumptions in `promise` hold.

    `scale`     the number of grid points per unit of the part's values.
    `variance`  the promised minimum variance of the total's noise, in grid points squared.
    `norm2`     the largest squared L2 norm of one client's rounded vector, in grid points. Clients enforce it
                rounded down to a whole number, so the privacy cost may be a little lower.
    `stddevs`   for how many standard deviations of the total's noise the bits leave room.

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
        """The number of elements that a client sends: `size`, or the next power of two with an `L2` bound."""
        return self.part("part").width

    @property
    def least_roster(self) -> int:
        """The fewest clients that a sum may ask. With fewer, the total is more likely to wrap around, as each
        client adds more noise, or no honest client may be left."""
        return SumSpec(parts=(self.part("part"),), promise=self.promise).least_roster

    # --- how much noise ---

    @property
    def granularity(self) -> float:
        """The distance between adjacent grid points, in the unit of the part's values."""
        return 1 / self.scale

    @property
    def sigma_central(self) -> float:
        """The standard deviation of noise that the total has at least, in the unit of the part's values."""
        return math.sqrt(self.variance) / self.scale

    @property
    def sigma_local(self) -> float:
        """The standard deviation of all noise that one client adds, in the unit of the part's values."""
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
        """The standard deviation of the total's noise if no client drops out, in the unit of the values."""
        clients = self.promise.clients
        return math.sqrt(clients * self.variance * self.promise.left(self.promise.clients)) / self.scale

    @property
    def noise_norm(self) -> float:
        """The approximate L2 norm of the promised noise in a decoded total, in the unit of the values."""
        return self.sigma_central * math.sqrt(self.size)

    # --- what it costs ---

    @property
    def sensitivity(self) -> float:
        """The largest L2 norm of one client's rounded vector, in the unit of the part's values."""
        return math.sqrt(self.norm2) / self.scale

    @cached_property
    def tau(self) -> float:
        return promised_tau(self.promise, self.promise.clients, self.variance)

    @cached_property
    def rho(self) -> float:
        """The privacy cost of this part in one sum, as a zCDP rho. It is what `sum_rho` counts, or slightly
        more. `epsilon` may be lower than rho implies: some of the Renyi cost may not depend on the order, but
        rho counts it as if it grew with the order."""
        return part_rho(*self._moved, self.variance, self.width, self.tau)

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of all `goal.sums` sums together, at the goal's delta. Needs the extra "dp". Raises
        `ParameterError` if the goal has no delta."""
        delta, orders, sums = self.goal.delta, self.goal.orders, self.goal.sums
        if delta is None:
            raise ParameterError("epsilon means nothing without delta")
        from secagg.noise.rho_and_epsilon import epsilon

        costs = renyi_costs(*self._moved, self.variance, self.width, self.tau)
        return min(epsilon([cost] * sums, delta=delta, orders=orders) for cost in costs)

    @property
    def _moved(self) -> tuple[float, float]:
        """The largest (squared L2 norm, L1 norm) of the difference of adjacent inputs, in grid points."""
        adjacency = self.goal.adjacency
        norm1 = most_norm1(self.norm2, self.width)
        return self.norm2 * adjacency.norm2_factor(self.bound), norm1 * adjacency.norm1_factor


def least_component(promise: NoiseAssumptions) -> Fraction:
    """Return the variance of a client's smallest noise component, as a fraction of the variance that the
    noise in the total has to have."""
    return min(promise.components(promise.clients))
