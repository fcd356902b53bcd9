"""The settings of sums that the server of a simulation and that of a deployment have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.ledger import ServerLedger
from secagg.messages import MAX_SUMS
from secagg.session_params import SessionParams, check_whole
from secagg.trust_levels import Trust, dropouts_allowed
from sims.records.sum_records import SumLogger, no_sum_logger

# The number of a round -> the clients invited to it.
CohortSampler: TypeAlias = Callable[[int], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class SumSettings:
    """How sums are protected, and which clients take part in each round.

    `trust`             what the server may do: "curious_server" or "malicious_server".
    `corrupt`           how many clients may collude with the server.
    `dropout`           which fraction of the cohort may be missing by the end of a session.
    `graph`             which pairs of clients share secrets; by default, chosen by the size of the cohort.
    `key_agreement`     how clients agree on secrets: by X25519 alone, or also by ML-KEM-768.
    `min_difference`    that of the clients' policies: clients are left out and taken in by batches of this
                        size, so that no client refuses; 0 if they have none.
    `min_cohort`        fewest clients of a session, if `corrupt` does not need more.
    `sums`              most sums of one session; a round that needs more than are left begins a new one.
    `each_round`        whether every round begins a new session. Then a round of a seeded run does not depend
                        on earlier rounds, so a resumed run repeats it exactly.
    `sample_cohort`     function that returns the clients invited to a round; by default, all are.
    `log`               receives a record of every session and sum, for observers.
    `ledger`            where the server records what it asks and releases; a plain channel ignores it.
    `barred`            clients that are invited no more. A channel adds those that lied, and those that were
                        in a dispute. Channels to the same clients share this set.

    Raise `ParameterError` for an invalid value.

    >>> SumSettings(trust="malicious_server", corrupt=2, dropout=0.1).params.corrupt
    2
    """

    trust: Trust | str = Trust.CURIOUS
    corrupt: int = 0
    dropout: Fraction | float = Fraction(0)
    graph: GraphChoice | str = GraphChoice.AUTO
    key_agreement: KeyAgreement | str = KeyAgreement.X25519
    min_difference: int = 0
    min_cohort: int = 0
    sums: int = MAX_SUMS
    each_round: bool = False
    sample_cohort: CohortSampler | None = None
    log: SumLogger = no_sum_logger
    ledger: ServerLedger | None = None
    barred: set[int] = field(default_factory=set, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        object.__setattr__(self, "graph", GraphChoice.parse(self.graph))
        object.__setattr__(self, "key_agreement", KeyAgreement.parse(self.key_agreement))
        check_whole("corrupt", self.corrupt)
        check_whole("min_difference", self.min_difference)
        check_whole("min_cohort", self.min_cohort)
        check_whole("sums", self.sums)
        if type(self.dropout) not in (int, float, Fraction):
            raise ParameterError("dropout must be a number from 0 to below 1")
        dropouts_allowed(2, self.dropout)  # raises on a fraction outside 0 to 1

    @cached_property
    def params(self) -> SessionParams:
        """Return the protocol parameters that all sessions share. The size of a cohort is not one of them."""
        return SessionParams(
            trust=Trust.parse(self.trust),
            corrupt=self.corrupt,
            sums=self.sums,
            dropout=self.dropout,
            graph=GraphChoice.parse(self.graph),
            key_agreement=KeyAgreement.parse(self.key_agreement),
            min_difference=self.min_difference,
            name_members=self.min_difference > 0,
        )
