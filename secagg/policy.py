"""The policy of a client: what it requires of a session, according to its own configuration only."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from secagg.argument_checks import one_of
from secagg.client_budget import Budget
from secagg.errors import ParameterError
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_SUMS
from secagg.noise.zcdp_cost import Adjacency, charge
from secagg.session_params import SECURITY_BITS, check_bits, check_whole, largest_cohort
from secagg.trust_levels import Trust

_NO_WHOLE_NUMBERS: Final = ("trust", "max_rho", "adjacency", "key_agreement")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The least protection under which a client takes part in a session with this level of `trust`.

    `corrupt`            the most clients that may collude with the server: of the whole registry under
                         `malicious_server` (the server picks the cohort), of the cohort otherwise.
    `min_cohort`, `max_cohort`  the least and the largest number of clients in a session.
    `min_contributors`   the least number of clients in a released total.
    `max_sums`           the most sums of one session.
    `unnoised_sums`      the most sums without noise that this identity answers in its lifetime.
    `max_rho`            the most that all sums with noise may cost this identity in its lifetime, as the
                         total rho of zero-concentrated differential privacy. None means no limit. If a part
                         of a sum has no noise, the sum is counted under `unnoised_sums` instead; set that to
                         0 for a budget that covers all sums.
    `adjacency`          the `Adjacency` that rho refers to. It must stay the same for the whole lifetime,
                         because costs under `replace` cannot be added to costs under the others.
    `max_query_bytes`    the most bytes in the payload of a query that the client accepts.
    `min_difference`     if above 0, the client compares a sum with all earlier sums of the same kind. It
                         refuses the sum if its set of clients differs from an earlier set by at least one
                         client, but by fewer than this number.
    `security_bits`      on a ring, the random order lets colluders break privacy in one sum with probability
                         below 2^-`security_bits`; in L sums with different drop-outs, L times that.
    `key_agreement`      X25519 alone, or with ML-KEM-768; another one is refused.

    A cohort of more than 1024 clients needs a ring, which needs a `curious_server`. Raises `ParameterError`
    if a value is out of range, or if a total could reveal one honest client's input.

    >>> Policy(
    ...     trust="curious_server", corrupt=1, min_cohort=3, max_cohort=50, min_contributors=3,
    ...     max_sums=4, unnoised_sums=100,
    ... ).trust
    <Trust.CURIOUS: 'curious_server'>
    """

    trust: Trust
    corrupt: int
    min_cohort: int
    max_cohort: int
    min_contributors: int
    max_sums: int
    unnoised_sums: int
    max_rho: float | None = None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    max_query_bytes: int = 1 << 28
    min_difference: int = 0
    security_bits: int = SECURITY_BITS
    key_agreement: KeyAgreement = KeyAgreement.X25519

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        object.__setattr__(self, "key_agreement", KeyAgreement.parse(self.key_agreement))
        for column in fields(self):
            if column.name not in _NO_WHOLE_NUMBERS:
                check_whole(column.name, getattr(self, column.name))
        if not self.corrupt + 2 <= self.min_contributors <= self.min_cohort:
            raise ParameterError(
                "min_contributors must be at least corrupt + 2, or a total may show one honest "
                "client's input, and at most min_cohort"
            )
        most = largest_cohort(self.trust)
        if not self.min_cohort <= self.max_cohort <= most:
            raise ParameterError(f"max_cohort must be from min_cohort to {most} under {self.trust}")
        if not 1 <= self.max_sums <= MAX_SUMS:
            raise ParameterError(f"max_sums must be from 1 to {MAX_SUMS}")
        check_bits("security_bits", self.security_bits)
        if self.max_rho is not None and not _is_amount(self.max_rho):
            raise ParameterError("max_rho must be a number of at least 0, or None for no limit")
        object.__setattr__(self, "adjacency", one_of(Adjacency, self.adjacency, "adjacency"))

    @cached_property
    def budget(self) -> Budget:
        """The limits `unnoised_sums` and `max_rho` in the form that `Memory.remember_answer` takes."""
        limit = None if self.max_rho is None else charge(self.max_rho)
        return Budget(unnoised_sums=self.unnoised_sums, charge=limit)


def _is_amount(value: object) -> bool:
    """Return whether `value` is a finite number of at least 0. A bool is not a number here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
