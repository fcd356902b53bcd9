"""The CPU time of a machine, split into primitives and the code around them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.costs import AROUND, PRIMITIVES, Cost
from benchmarks.meter import Phase, Place, Recorder, Stopwatch, cpu_seconds
from secagg.trust_levels import Trust

_ROUNDS: Final = 3


@dataclass(frozen=True)
class Entry:
    """CPU seconds and calls of one cost: once per session, and with every sum."""

    setup: float
    each_sum: float
    setup_calls: int = 0
    sum_calls: float = 0.0

    def amortised(self, sums: int) -> float:
        """Return the cost per sum, with this sum's part of the set-up."""
        return self.setup / sums + self.each_sum


@dataclass(frozen=True)
class Balance:
    """The costs of one machine under one trust level."""

    trust: Trust
    role: str
    sums: int
    entries: Mapping[Cost, Entry]

    @property
    def setup(self) -> float:
        return sum(entry.setup for entry in self.entries.values())

    @property
    def each_sum(self) -> float:
        return sum(entry.each_sum for entry in self.entries.values())

    @property
    def primitives(self) -> float:
        return sum(self.entries[cost].amortised(self.sums) for cost in PRIMITIVES)

    @property
    def around(self) -> float:
        return sum(self.entries[cost].amortised(self.sums) for cost in AROUND)

    @property
    def ratio(self) -> float:
        """The time around the primitives, relative to the time in them."""
        return self.around / self.primitives

    @property
    def holds(self) -> bool:
        return self.ratio <= 1


class Replays:
    """The recorded primitives, timed right before and after the phase they belong to: clocks drift."""

    def __init__(self, recorder: Recorder, sums: int) -> None:
        self._replays = recorder.replays
        self._sums = sums
        self._samples: defaultdict[tuple[Place, Cost], list[float]] = defaultdict(list)

    def time(self, phase: Phase) -> None:
        """Time a few rounds of everything that was called in `phase`."""
        for place, costs in self._replays.items():
            if place[1] is phase:
                for cost, calls in costs.items():
                    self._samples[place, cost] += [cpu_seconds(calls) for _ in range(_ROUNDS)]

    def balance(
        self, trust: Trust, role: str, owner: int, watch: Stopwatch, like: Collection[int]
    ) -> Balance:
        """Split the time of the typical machine among `like`; those of `owner` were recorded."""
        setup = median(watch.seconds[each, Phase.SETUP] for each in like)
        each_sum = median(watch.seconds[each, Phase.SUM] for each in like) / self._sums
        entries: dict[Cost, Entry] = {c: self._entry(owner, c) for c in Cost if c is not Cost.REST}
        rest = Entry(
            setup - sum(entry.setup for entry in entries.values()),
            each_sum - sum(entry.each_sum for entry in entries.values()),
        )
        return Balance(trust, role, self._sums, {**entries, Cost.REST: rest})

    def _entry(self, owner: int, cost: Cost) -> Entry:
        setup, each_sum = (owner, Phase.SETUP), (owner, Phase.SUM)
        return Entry(
            self._typical(setup, cost),
            self._typical(each_sum, cost) / self._sums,
            len(self._replays[setup][cost]),
            len(self._replays[each_sum][cost]) / self._sums,
        )

    def _typical(self, place: Place, cost: Cost) -> float:
        samples = self._samples[place, cost]
        return median(samples) if samples else 0.0
