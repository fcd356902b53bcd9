"""The parameters of a session, in one object. Each client compares them with its own `Policy`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from secagg.errors import ParameterError
from secagg.graph_parameters import MAX_BITS, GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_COHORT, MAX_SUMS
from secagg.trust_levels import MAX_COMPLETE, Trust, dropouts_allowed

SECURITY_BITS: Final = 40
LIVENESS_BITS: Final = 30


_WHOLE: Final = (
    "sums", "min_cohort", "max_cohort", "min_contributors", "min_neighbours", "min_difference",
)  # fmt: skip


class _NotGiven(int):
    """The type of a default that means "not given". It can be told from a plain 0 that a caller passes."""


_NOT_GIVEN: Final = _NotGiven()


@dataclass(frozen=True, kw_only=True)
class SessionParams:
    """The parameters of a session. The constructor checks each field, and `check` whether they go together.
    Both raise `ParameterError`.

    `trust`           whether the server is only curious, or may break the protocol.
    `corrupt`         the most clients that may collude with the server.
    `sums`            the most sums of the session.
    `dropout`         the fraction of the cohort that may have dropped out by the last sum; the threshold is
                      chosen accordingly (`graph_parameters.dropout_over` computes it from a rate per sum).
    `graph`           complete, a ring (only for a `curious_server`), or whichever suits the cohort's size.
    `min_contributors`  the fewest clients in a total; by default `corrupt` + 2, the smallest safe number.
    `min_cohort`, `max_cohort`  the fewest and the most clients that may join; by default `min_contributors`,
                      and the most that trust and graph admit.
    `min_neighbours`  the least number of neighbours on a ring; set it to have more than safety needs.
    `security_bits`   b: on a ring, the random order lets colluders break privacy with a chance below 2^-b.
    `name_members`    whether clients on a ring are told the ids of all others, and not of neighbours only.
                      Clients that compare the clients of successive sums need them (4 bytes per client).
    `key_agreement`   X25519 alone, or with ML-KEM-768, against an adversary with a quantum computer.
    `min_difference`  that of the clients' policies, or the largest of them. The server asks for no sum, and
                      names no survivors, that such clients refuse. A ring must then name its members.
    `liveness_bits`   b: on a ring, the expected drop-outs make a sum fail with a chance below 2^-b.

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
    key_agreement: KeyAgreement = KeyAgreement.X25519
    name_members: bool = False
    min_difference: int = 0

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("trust", Trust.parse(self.trust))
        set_field("graph", GraphChoice.parse(self.graph))
        set_field("key_agreement", KeyAgreement.parse(self.key_agreement))
        check_whole("corrupt", self.corrupt)
        if self.min_contributors is _NOT_GIVEN:
            set_field("min_contributors", self.corrupt + 2)
        if self.min_cohort is _NOT_GIVEN:
            set_field("min_cohort", self.min_contributors)
        if self.max_cohort is _NOT_GIVEN:
            set_field("max_cohort", self._most)
        for name in _WHOLE:
            check_whole(name, getattr(self, name))
        check_bits("security_bits", self.security_bits)
        check_bits("liveness_bits", self.liveness_bits)
        if not isinstance(self.name_members, bool):
            raise ParameterError("name_members must be true or false", parameter="name_members")

    @property
    def _most(self) -> int:
        return MAX_COMPLETE if self.graph is GraphChoice.COMPLETE else largest_cohort(self.trust)

    def check(self) -> None:
        """Raise `ParameterError` if sums, graph, cohort sizes or drop-out are invalid."""
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
    """Return the most clients of a session. More than 1024 need a ring, and a ring needs a curious server."""
    return MAX_COHORT if trust is Trust.CURIOUS else MAX_COMPLETE


def check_bits(name: str, value: int) -> None:
    """Raise `ParameterError` unless `value` (for the probability 2^-`value`) is an int from 1 to 1024."""
    check_whole(name, value)
    if not 1 <= value <= MAX_BITS:
        raise ParameterError(f"{name} must be from 1 to {MAX_BITS}", parameter=name)


def check_whole(name: str, value: object) -> None:
    """Raise `ParameterError` unless `value` is an int of at least 0. Floats and bools are refused."""
    if type(value) is not int or value < 0:
        raise ParameterError(f"{name} must be a whole number of at least 0", parameter=name)
