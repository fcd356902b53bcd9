"""A budget for noise, split between a histogram and all else."""

from __future__ import annotations

from dataclasses import dataclass

from protocols import checks
from protocols.privacy import Privacy
from secagg.noise.goal import Goal
from secagg.noise.levels import calibrate_counts
from secagg.noise.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PrivateRounds(Privacy):
    """How private rounds with a histogram are.

    `ratio`  the part of the budget that the histogram gets; with 1, nothing else has noise.
    """

    ratio: float = 0.25

    def check(self) -> None:
        checks.positive("ratio", self.ratio)
        checks.real("ratio", self.ratio, 0, 1)

    @property
    def whole(self) -> Goal:
        """What one kind of sum may cost that is asked once in every round, if there is no other."""
        return self.per_sum()

    @property
    def rest(self) -> Goal | None:
        """What the histogram leaves for all else in a round, if anything."""
        return self.whole.part(1 - self.ratio) if self.ratio < 1 else None

    def histogram(self, bins: int) -> Plan:
        """Noise for a histogram to which everyone adds one count."""
        goal = self.whole.part(self.ratio)
        return calibrate_counts(promise=self.promise, goal=goal, bins=bins, limit=1, total=1)
