"""A budget for rounds of which every sum has noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocols import checks
from secagg.errors import ParameterError
from secagg.noise.goal import Goal
from secagg.noise.promise import Promise


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy for whole clients, from the first round to the last.

    `promise`  for whom noise is planned: clients, drop-outs, colluders.
    `goal`     what all sums of all rounds may cost one client together. Its own `sums` stay 1.
    `rounds`   how many rounds share the goal.
    """

    promise: Promise
    goal: Goal
    rounds: int

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds, 1)
        if self.goal.sums != 1:
            raise ParameterError("set rounds, and leave the sums of the goal at 1: they follow from that")
        self.check()

    def check(self) -> None:
        """Raise `ParameterError` for what else is wrong."""

    def check_clients(self, clients: int) -> None:
        """Raise unless noise is planned for as many clients as there may be."""
        if self.promise.clients < clients:
            raise ParameterError(
                f"noise is promised for {self.promise.clients} clients, but there may be {clients}: "
                f"set the promise's clients to {clients}"
            )

    def per_sum(self, sums: int = 1) -> Goal:
        """What each of `sums` sums of a round may cost, as a goal that all rounds share."""
        return replace(self.goal, sums=self.rounds * sums)
