"""The terms under which a server opens a session. Clients have policies; these must satisfy them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.errors import ParameterError
from secagg.finder import MAX_BITS, GraphChoice
from secagg.messages import MAX_COHORT, MAX_SUMS
from secagg.thresholds import MAX_COMPLETE, Trust, dropouts_allowed

SECURITY_BITS: Final = 40
LIVENESS_BITS: Final = 30


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Checked on construction; the fields mean what they mean in a `Policy`.

    `dropout`         the part of the cohort that may be missing by the session's last sum; the threshold
                      is chosen accordingly (`finder.dropout_over` turns a rate per sum into this).
    `graph`           complete, a ring, or whichever suits the cohort that comes; a ring needs a
                      `curious_server`.
    `min_neighbours`  least neighbours on a ring, where more are wanted than safety needs.
    `liveness_bits`   on a ring, the chance that the expected drop-outs stop a sum is below 2^-this.
    """

    trust: Trust
    sums: int
    corrupt: int
    dropout: Fraction | float
    min_cohort: int
    max_cohort: int
    min_contributors: int
    graph: GraphChoice = GraphChoice.COMPLETE
    min_neighbours: int = 2
    security_bits: int = SECURITY_BITS
    liveness_bits: int = LIVENESS_BITS

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        object.__setattr__(self, "graph", GraphChoice.parse(self.graph))
        for name in ("sums", "corrupt", "min_cohort", "max_cohort", "min_contributors", "min_neighbours"):
            check_whole(name, getattr(self, name))
        check_bits("security_bits", self.security_bits)
        check_bits("liveness_bits", self.liveness_bits)
        if not 1 <= self.sums <= MAX_SUMS:
            raise ParameterError(f"sums must be from 1 to {MAX_SUMS}")
        if self.graph is GraphChoice.RING:
            check_ring_trust(self.trust)
        most = MAX_COMPLETE if self.graph is GraphChoice.COMPLETE else largest_cohort(self.trust)
        sizes = (self.corrupt + 2, self.min_contributors, self.min_cohort, self.max_cohort, most)
        if list(sizes) != sorted(sizes):
            raise ParameterError(
                f"corrupt + 2 <= min_contributors <= min_cohort <= max_cohort <= {most} must hold"
            )
        dropouts_allowed(self.max_cohort, self.dropout)  # raises on a fraction outside 0 to 1


def check_ring_trust(trust: Trust) -> None:
    if trust is not Trust.CURIOUS:
        raise ParameterError("a ring needs a curious_server: whoever draws it could surround a client")


def largest_cohort(trust: Trust) -> int:
    """The most clients of a session: beyond a complete graph there is only the ring."""
    return MAX_COHORT if trust is Trust.CURIOUS else MAX_COMPLETE


def check_bits(name: str, value: int) -> None:
    """Refuse a chance of failure that is no chance, or beyond what anyone would compute."""
    check_whole(name, value)
    if not 1 <= value <= MAX_BITS:
        raise ParameterError(f"{name} must be from 1 to {MAX_BITS}")


def check_whole(name: str, value: object) -> None:
    """Refuse what only looks like a count: a fraction, a NaN, a truth value."""
    if type(value) is not int or value < 0:
        raise ParameterError(f"{name} must be a whole number of at least 0")
