"""Privacy budgets: the largest privacy loss of one client in a whole run, and its division among sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from protocols import checks
from protocols.parameter_fields import parameter
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.noise.elementwise_calibration import calibrate_counts
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal
from secagg.noise.vector_calibration import calibrate_vector


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """A budget for client-level differential privacy over all rounds of a run.

    `promise`  assumptions for which noise is calibrated: numbers of clients, drop-outs and colluders.
    `goal`     largest total privacy loss of one client over all sums of all rounds. `goal.sums` must be 1.
    `rounds`   number of rounds that share the goal.
    """

    promise: NoiseAssumptions
    goal: Goal
    rounds: int

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds, 1)
        if self.goal.sums != 1:
            raise ParameterError(
                "set rounds, and leave the sums of the goal at 1: they follow from rounds", parameter="goal"
            )
        self.check()

    def check(self) -> None:
        """Raise `ParameterError` if a parameter that a subclass adds is invalid. Here, nothing is checked."""

    def check_clients(self, clients: int) -> None:
        """Raise `ParameterError` if noise is calibrated for fewer than `clients` clients."""
        if self.promise.clients < clients:
            raise ParameterError(
                f"noise is promised for {self.promise.clients} clients, but there may be {clients}: "
                f"set the promise's clients to {clients}"
            )

    def per_sum(self, sums: int = 1) -> Goal:
        """Return the privacy goal of one sum if a round has `sums` sums with equal parts of the budget."""
        return replace(self.goal, sums=self.rounds * sums)


@dataclass(frozen=True, kw_only=True)
class HistogramBudget(PrivacyBudget):
    """The budget of rounds with a histogram and other sums. The histogram gets the fraction `ratio` of it."""

    ratio: float = parameter(
        0.25, "the part of the budget that the histogram gets; with 1, nothing else has noise"
    )

    def check(self) -> None:
        checks.positive("ratio", self.ratio)
        checks.real("ratio", self.ratio, 0, 1)

    @property
    def whole(self) -> Goal:
        """The privacy goal of a sum that gets the whole budget because it is the only one in every round."""
        return self.per_sum()

    @property
    def rest(self) -> Goal | None:
        """The privacy goal that a round's other sums share; None if the histogram gets the whole budget."""
        return self.whole.part(1 - self.ratio) if self.ratio < 1 else None

    def histogram(self, bins: int) -> Plan:
        """Return the calibrated noise for a histogram of `bins` bins to which each client adds one count."""
        goal = self.whole.part(self.ratio)
        return calibrate_counts(promise=self.promise, goal=goal, bins=bins, limit=1, total=1)


@dataclass(frozen=True, kw_only=True)
class PublicStepBudget(PrivacyBudget):
    """The privacy budget of an iterative robust aggregation. Clients' weights, which would give the length of
    a step, are not summed, so the length is public: `step`, if all clients pull in one direction."""

    step: float | None = parameter(
        None,
        "how far the point moves if all clients pull in one direction. A median settles if this is no "
        "more than its nu (its delta); with a smaller nu, it goes on moving by up to a step",
    )

    def check(self) -> None:
        checks.bound(
            "step",
            self.step,
            "how far a private step goes if all clients pull one way, such as 0.1 (a key of [privacy])",
        )

    length = checks.CheckedBound("step")

    def plan(self, *, sums: int, size: int, norm: float, bits: int) -> Plan:
        """Return the calibrated noise for each of `sums` sums per round, of vectors of `size` elements with
        norms up to `norm` and `bits` bits per element."""
        return _plan(self.promise, self.per_sum(sums), size, norm, bits)


@cache
def _plan(promise: NoiseAssumptions, goal: Goal, size: int, norm: float, bits: int) -> Plan:
    return calibrate_vector(promise=promise, goal=goal, size=size, clip=norm, bits=bits)
