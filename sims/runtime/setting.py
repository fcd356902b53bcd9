"""Under which conditions a simulated cohort works, whatever carries its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Final, TypeAlias

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from secagg.errors import ParameterError
from secagg.finder import GraphChoice
from secagg.hashing import digest
from secagg.ledger import ServerLedger
from secagg.local import Stage
from secagg.messages import MAX_SUMS
from secagg.noise.accounting import Adjacency
from secagg.params import SessionParams, check_whole
from secagg.thresholds import Trust, dropouts_allowed
from sims.records.sums import (
    SumLogger,
    no_sum_logger,
)
from sims.runtime.tampering import Tamper

# (member, stage, round, sum within the round or -1 in set-up): whether it is missing there.
DropoutSchedule: TypeAlias = Callable[[int, Stage, int, int], bool]
# Who is invited to a round.
CohortSampler: TypeAlias = Callable[[int], Sequence[int]]

_MANY: Final = 1 << 62


def no_dropouts(_member: int, _stage: Stage, _round: int, _sum: int) -> bool:
    """Return False: no client drops out."""
    return False


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a cohort is protected, and who of it comes.

    `trust`, `corrupt`, `dropout`  what the server may do, how many clients may collude with it, and which
                        part of the cohort may be missing by the end of a session.
    `graph`             who shares secrets with whom; by default, what the size of the cohort asks for.
    `sums`              most sums of one session; the next round then begins another.
    `each_round`        whether every round begins another. Then a round under a seed does not depend
                        on earlier rounds, so a resumed run repeats it exactly.
    `fate`              who goes missing, and where. It may be asked about the same stage more than once,
                        and must say the same.
    `law`               chances to go missing, beside that.
    `draw`              which clients are invited to a round; by default, all.
    `max_rho`           clients' budget for sums with noise, which leaves none without. By default it is what
                        the algorithm's noise is planned for; without noise, there is no limit.
    `adjacency`         the neighbouring data sets that rho refers to.
    `tamper`            what clients that do not keep to the protocol put into sums instead of their values.
    `log`               receives a record of every session and sum; only observers read it.
    `ledger`            where the server notes what it asks and releases; a plain channel has none to note.
    `insecure_seed`     makes rounding, keys and noise repeatable. With it, every value can be
                        computed.
    `insecure_replay`   lets clients forget what they have answered, so that a round can be repeated. A
                        server that repeats a round over other clients learns their difference.

    Raises `ParameterError` for an invalid value.

    >>> Setting(trust="malicious_server", corrupt=2, dropout=0.1).unnoised_sums > 10**9
    True
    """

    trust: Trust | str = Trust.CURIOUS
    corrupt: int = 0
    dropout: Fraction | float = Fraction(0)
    graph: GraphChoice | str = GraphChoice.AUTO
    sums: int = MAX_SUMS
    each_round: bool = False
    fate: DropoutSchedule = no_dropouts
    law: DropoutLaw | None = None
    draw: CohortSampler | None = None
    max_rho: float | None = None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    tamper: Mapping[int, Tamper] = field(default_factory=dict, hash=False)
    log: SumLogger = no_sum_logger
    ledger: ServerLedger | None = None
    insecure_seed: bytes | None = None
    insecure_replay: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        object.__setattr__(self, "graph", GraphChoice.parse(self.graph))
        check_whole("corrupt", self.corrupt)
        check_whole("sums", self.sums)
        if type(self.dropout) not in (int, float, Fraction):
            raise ParameterError("dropout must be a number from 0 to below 1")
        dropouts_allowed(2, self.dropout)  # raises on a fraction outside 0 to 1
        if self.insecure_seed is not None and not isinstance(self.insecure_seed, bytes):
            raise ParameterError("insecure_seed must be bytes")

    @cached_property
    def params(self) -> SessionParams:
        """What a session is planned for, without the sizes of its cohort."""
        return SessionParams(
            trust=Trust.parse(self.trust),
            corrupt=self.corrupt,
            sums=self.sums,
            dropout=self.dropout,
            graph=GraphChoice.parse(self.graph),
        )

    @property
    def unnoised_sums(self) -> int:
        """That a client answers in its life: none beside a budget, and else as many as a simulation asks."""
        return _MANY if self.max_rho is None else 0


_BITS: Final = 64


@dataclass(frozen=True, kw_only=True)
class DropoutLaw:
    """Chances that a client goes missing.

    `training`  from the sum that begins a round.
    `between`   from a later sum of a round that is in no group with an earlier one.
    `group`     between two sums of one group, which closes that group.
    `reveal`    after masking, and before revealing.

    Raises `ParameterError` for a chance that is not from 0 to below 1.
    """

    seed: bytes
    training: float = 0.0
    between: float = 0.0
    group: float = 0.0
    reveal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("training", "between", "group", "reveal"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"the chance to drop out ({name}) must be from 0 to below 1")

    def missing(self, member: int, stage: Stage, number: int, index: int, *, later: bool) -> bool:
        """Whether it is missing from this stage of sum `index` of round `number`.

        `later` says that an earlier sum of the round was of the same group. No client is missing from set-up.
        """
        if stage in (Stage.ADVERTISE, Stage.SHARE):
            return False
        if stage is not Stage.MASK:
            return self._happens(self.reveal, "reveal", member, number, index)
        chance = self.training if index == 0 else self.group if later else self.between
        return self._happens(chance, "mask", member, number, index)

    def _happens(self, chance: float, what: str, member: int, number: int, index: int) -> bool:
        if not chance:
            return False
        place = b"".join(each.to_bytes(8, "big") for each in (member, number, index))
        drawn = digest("simulated drop-out", self.seed, what.encode(), place)
        return int.from_bytes(drawn[: _BITS // 8], "big") < chance * (1 << _BITS)


def with_budget(setting: Setting, algorithm: AnyAlgorithm) -> Setting:
    """The setting in which clients spend no more than what the algorithm's noise is planned for."""
    budget = algorithm.budget
    if budget is None or setting.max_rho is not None:
        return setting
    if budget.goal.adjacency is not setting.adjacency:
        raise ParameterError(
            f"the goal of the noise is about {budget.goal.adjacency}, but the setting about "
            f"{setting.adjacency}: set its adjacency"
        )
    return replace(setting, max_rho=algorithm.max_rho)


def check_cohort(algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting) -> None:
    if not isinstance(learners, Mapping):
        raise ParameterError("learners must be a mapping from the ids of clients to their learners")
    if len(learners) < setting.corrupt + 2:
        raise ParameterError(
            f"{len(learners)} clients with {setting.corrupt} colluders: a total could show one honest input; "
            f"at least {setting.corrupt + 2} are needed"
        )
    if algorithm.needs_all_clients and setting.draw is not None:
        raise ParameterError(
            f"{type(algorithm).__name__} needs all clients in every round, not a draw of them"
        )
    if setting.draw is not None and getattr(algorithm, "population", 0) is None:
        raise ParameterError(
            f"with a draw, set the population of {type(algorithm).__name__}: {len(learners)}"
        )
    if setting.draw is None and len(learners) > algorithm.clients:
        raise ParameterError(
            f"the algorithm's sums are for at most {algorithm.clients} clients, but there are {len(learners)}"
        )
    if unknown := set(setting.tamper) - set(learners):
        raise ParameterError(f"clients that do not exist cannot tamper: {sorted(unknown)}")
    if not algorithm.most_sums <= setting.sums <= MAX_SUMS:
        raise ParameterError(
            f"a session has up to {setting.sums} sums, of {MAX_SUMS} that are possible, but a round of the "
            f"algorithm may need {algorithm.most_sums}"
        )
