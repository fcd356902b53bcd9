"""The parameters of a session, built once and handed down whole. A client's `Policy` must accept them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from secagg.errors import ParameterError
from secagg.graph_parameters import MAX_BITS, GraphChoice
from secagg.messages import MAX_COHORT, MAX_SUMS
from secagg.trust_levels import MAX_COMPLETE, Trust, dropouts_allowed

SECURITY_BITS: Final = 40
LIVENESS_BITS: Final = 30


class _NotGiven(int):
    """A size that was not given. An explicit 0 is refused, so it cannot stand for this."""


_NOT_GIVEN: Final = _NotGiven()


@dataclass(frozen=True, kw_only=True)
class SessionParams:
    """What a session is planned for. The fields that a `Policy` has too mean the same there.

    `corrupt`         most clients that may collude with the server.
    `sums`            most sums of the session.
    `dropout`         the part of the cohort that may be missing by the session's last sum; the threshold
                      is chosen accordingly (`finder.dropout_over` turns a rate per sum into this).
    `graph`           complete, a ring, or the one that suits the size of the cohort; a ring needs a
                      `curious_server`.
    `min_contributors`, `min_cohort`  by default the least that is safe, `corrupt` + 2.
    `max_cohort`      by default the largest cohort that trust and graph admit.
    `min_neighbours`  least neighbours on a ring, where more are wanted than safety needs.
    `security_bits`   on a ring, the chance that its random order helps the colluders is below 2^-this.
    `liveness_bits`   on a ring, the chance that the expected drop-outs stop a sum is below 2^-this.

    Construction checks every field by itself, `check` whether they go together. Both raise `ParameterError`.

    >>> SessionParams(trust="curious_server", corrupt=1).min_contributors
    3
    """

    trust: Trust
    corrupt: int
    sums: int = 1
    dropout: Fraction | float = Fraction(0)
    graph: GraphChoice = GraphChoice.AUTO
    min_cohort: int = _NOT_GIVEN
    max_cohort: int = _NOT_GIVEN
    min_contributors: int = _NOT_GIVEN
    min_neighbours: int = 2
    security_bits: int = SECURITY_BITS
    liveness_bits: int = LIVENESS_BITS

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("trust", Trust.parse(self.trust))
        set_field("graph", GraphChoice.parse(self.graph))
        check_whole("corrupt", self.corrupt)
        if self.min_contributors is _NOT_GIVEN:
            set_field("min_contributors", self.corrupt + 2)
        if self.min_cohort is _NOT_GIVEN:
            set_field("min_cohort", self.min_contributors)
        if self.max_cohort is _NOT_GIVEN:
            set_field("max_cohort", self._most)
        for name in ("sums", "min_cohort", "max_cohort", "min_contributors", "min_neighbours"):
            check_whole(name, getattr(self, name))
        check_bits("security_bits", self.security_bits)
        check_bits("liveness_bits", self.liveness_bits)

    @property
    def _most(self) -> int:
        return MAX_COMPLETE if self.graph is GraphChoice.COMPLETE else largest_cohort(self.trust)

    def check(self) -> None:
        """Raise `ParameterError` where no session could have these parameters."""
        if not 1 <= self.sums <= MAX_SUMS:
            raise ParameterError(f"sums must be from 1 to {MAX_SUMS}", parameter="sums")
        if self.graph is GraphChoice.RING:
            check_ring_trust(self.trust)
        sizes = (self.corrupt + 2, self.min_contributors, self.min_cohort, self.max_cohort, self._most)
        if list(sizes) != sorted(sizes):
            raise ParameterError(
                f"corrupt + 2 <= min_contributors <= min_cohort <= max_cohort <= {self._most} must hold"
            )
        dropouts_allowed(self.max_cohort, self.dropout)  # raises on a fraction outside 0 to 1


def check_ring_trust(trust: Trust) -> None:
    if trust is not Trust.CURIOUS:
        raise ParameterError("a ring needs a curious_server: a malicious one could surround a client")


def largest_cohort(trust: Trust) -> int:
    """Return the most clients of a session. Beyond a complete graph there is only the ring."""
    return MAX_COHORT if trust is Trust.CURIOUS else MAX_COMPLETE


def check_bits(name: str, value: int) -> None:
    """Raise `ParameterError` unless 2^-`value` is a probability in the range that is supported."""
    check_whole(name, value)
    if not 1 <= value <= MAX_BITS:
        raise ParameterError(f"{name} must be from 1 to {MAX_BITS}", parameter=name)


def check_whole(name: str, value: object) -> None:
    """Raise `ParameterError` for what only looks like a count: a fraction, a NaN, a truth value."""
    if type(value) is not int or value < 0:
        raise ParameterError(f"{name} must be a whole number of at least 0", parameter=name)
