"""The terms under which a server opens a session. Clients have policies; these must satisfy them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from secagg.errors import ParameterError
from secagg.messages import MAX_SUMS
from secagg.thresholds import MAX_COMPLETE, Trust, dropouts_allowed


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Checked on construction; the fields mean what they mean in a `Policy`.

    `dropout`  the part of the cohort that may be missing in a sum; the threshold is chosen accordingly.
    """

    trust: Trust
    sums: int
    corrupt: int
    dropout: Fraction | float
    min_cohort: int
    max_cohort: int
    min_contributors: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        for name in ("sums", "corrupt", "min_cohort", "max_cohort", "min_contributors"):
            check_whole(name, getattr(self, name))
        if not 1 <= self.sums <= MAX_SUMS:
            raise ParameterError(f"sums must be from 1 to {MAX_SUMS}")
        sizes = (self.corrupt + 2, self.min_contributors, self.min_cohort, self.max_cohort, MAX_COMPLETE)
        if list(sizes) != sorted(sizes):
            raise ParameterError(
                f"corrupt + 2 <= min_contributors <= min_cohort <= max_cohort <= {MAX_COMPLETE} must hold"
            )
        dropouts_allowed(self.max_cohort, self.dropout)  # raises on a fraction outside 0 to 1


def check_whole(name: str, value: object) -> None:
    """Refuse what only looks like a count: a fraction, a NaN, a truth value."""
    if type(value) is not int or value < 0:
        raise ParameterError(f"{name} must be a whole number of at least 0")
