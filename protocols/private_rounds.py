"""A budget for rounds of which every sum has noise, split between a histogram and all else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocols import checks
from secagg.errors import ParameterError
from secagg.noise.goal import Goal
from secagg.noise.levels import calibrate_counts
from secagg.noise.plan import Plan
from secagg.noise.promise import Promise


@dataclass(frozen=True, kw_only=True)
class PrivateRounds:
    """Differential privacy for whole clients, from the first round to the last.

    `promise`  for whom noise is planned: clients, drop-outs, colluders.
    `goal`     what all rounds may cost one client together. Its own `sums` stay 1.
    `rounds`   how many rounds share the goal.
    `ratio`    the part of the budget that the histogram gets; with 1, nothing else has noise.
    """

    promise: Promise
    goal: Goal
    rounds: int
    ratio: float = 0.25

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds, 1)
        checks.positive("ratio", self.ratio)
        checks.real("ratio", self.ratio, 0, 1)
        if self.goal.sums != 1:
            raise ParameterError(
                "set rounds, and leave the sums of the goal at 1: they follow from the rounds"
            )

    def check_clients(self, clients: int) -> None:
        """Raise unless noise is planned for as many clients as there may be."""
        if self.promise.clients < clients:
            raise ParameterError(
                f"noise is promised for {self.promise.clients} clients, but there may be {clients}: "
                f"set the promise's clients to {clients}"
            )

    @property
    def whole(self) -> Goal:
        """What one kind of sum may cost that is asked once in every round, if there is no other."""
        return replace(self.goal, sums=self.rounds)

    @property
    def rest(self) -> Goal | None:
        """What the histogram leaves for all else in a round, if anything."""
        return self.whole.part(1 - self.ratio) if self.ratio < 1 else None

    def histogram(self, bins: int) -> Plan:
        """Noise for a histogram to which everyone adds one count."""
        goal = self.whole.part(self.ratio)
        return calibrate_counts(promise=self.promise, goal=goal, bins=bins, limit=1, total=1)
