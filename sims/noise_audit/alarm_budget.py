"""The false-alarm rate of a whole check, and how its tests share it.

A check consists of many tests. Each has a p-value: the probability, or an upper bound of it, that correct
noise gives a result at least as unlikely as the one seen. If a test looks at many numbers, such as one for
each pair of clients, its p-value is that of the most unlikely number times how many there are.

Correct noise raises an alarm in at most one of 100,000 checks: `ALARM`. Half of it is divided equally among
the tests, and half among the lower bounds on epsilon (Bonferroni's inequality, which holds although the
tests use the same samples). If a check covers several kinds of sums, each of them has an equal share.

Tests without chance, such as whether a decoded total is the inverse of its residues up to float errors, have
a p-value of 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALARM: Final = 1e-5  # the largest probability that a whole check is wrong about correct noise


@dataclass(frozen=True)
class NoiseTest:
    """The outcome of one test. `measured` and `expected` are None for tests that look at many numbers and
    keep only a p-value."""

    subject: str  # which samples: "noise of single clients", "inputs beyond the bound", ...
    name: str  # what they were tested for: "variance", "mean", ...
    p: float
    measured: float | None = None
    expected: float | None = None


def alarms(tests: Sequence[NoiseTest], *, kinds: int = 1) -> tuple[NoiseTest, ...]:
    """Return the tests that raise an alarm, if `tests` are all of one of `kinds` kinds of sums."""
    least = ALARM / 2 / kinds / max(1, len(tests))
    return tuple(each for each in tests if each.p < least)


def confidence(bounds: int, *, kinds: int = 1) -> float:
    """Return the confidence of each of `bounds` lower bounds on epsilon in a check of `kinds` kinds."""
    return 1 - ALARM / 2 / kinds / bounds
