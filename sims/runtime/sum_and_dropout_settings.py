"""The settings for sums over simulated clients: threat model, drop-outs, sampling and privacy budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeAlias

from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from secagg.errors import ParameterError
from secagg.hashing import digest
from secagg.local_session import Stage
from secagg.messages import MAX_SUMS
from secagg.noise.zcdp_cost import Adjacency
from secagg.sum_spec import Total
from sims.coordination.sum_settings import SumSettings
from sims.runtime.client_memories import ClientMemories
from sims.runtime.residue_tampering import Tamper

# (member, stage, round, sum within the round or -1 in set-up) -> whether the client drops out there.
DropoutSchedule: TypeAlias = Callable[[int, Stage, int, int], bool]

# (kind, values by client and part, contributors, total); called for every released total.
OnTotal: TypeAlias = Callable[[str, Mapping[int, Mapping[str, ArrayLike]], tuple[int, ...], Total], None]

_MANY: Final = 1 << 62


def no_dropouts(_member: int, _stage: Stage, _round: int, _sum: int) -> bool:
    """Return False: no client drops out. This function is the default value of `Setting.dropouts`."""
    return False


@dataclass(frozen=True, kw_only=True)
class Setting(SumSettings):
    """The settings of a channel to simulated clients: those of `SumSettings`, and how clients behave.

    `dropouts`          function that says who drops out, and at which stage. It must return the same value
                        whenever it is called with the same arguments.
    `dropout_law`       probabilities of further drop-outs.
    `max_rho`           privacy budget of each client for all sums with noise. A client with a budget refuses
                        sums without noise. By default, the algorithm's budget; without noise, it has none.
    `also_unnoised`     whether clients with a budget nevertheless answer sums without noise.
    `memories`          what clients remember and have spent. Channels to the same clients share them, so that
                        a client has one budget; by default, they begin with this channel.
    `adjacency`         which data sets count as neighbours in the definition of rho.
    `tamper`            functions, by client id, that replace the values of clients that attack the sums.
    `insecure_seed`     makes rounding, keys and noise repeatable. Nothing is secret then.
    `insecure_replay`   deletes the record of what clients have answered, so that a round can be repeated. A
                        server that repeats a round without one client learns the answer of that client.
    `on_total`          called with every released total and the answers of the clients in this process. It
                        is for observers: with real clients, nobody sees both.

    Raise `ParameterError` for an invalid value.

    >>> Setting(trust="malicious_server", corrupt=2, dropout=0.1).unnoised_sums > 10**9
    True
    """

    dropouts: DropoutSchedule = no_dropouts
    dropout_law: DropoutLaw | None = None
    max_rho: float | None = None
    also_unnoised: bool = False
    memories: ClientMemories | None = field(default=None, hash=False, compare=False)
    adjacency: Adjacency = Adjacency.ZERO_OUT
    tamper: Mapping[int, Tamper] = field(default_factory=dict, hash=False)
    insecure_seed: bytes | None = None
    insecure_replay: bool = False
    on_total: OnTotal | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.insecure_seed is not None and not isinstance(self.insecure_seed, bytes):
            raise ParameterError("insecure_seed must be bytes")

    def of_server(self) -> SumSettings:
        """Return the settings that a server knows, without those of the clients' behaviour."""
        return SumSettings(**{each.name: getattr(self, each.name) for each in fields(SumSettings)})

    @property
    def unnoised_sums(self) -> int:
        """Return how many sums without noise a client may answer: all of them or, because of its privacy
        budget, none."""
        return _MANY if self.max_rho is None or self.also_unnoised else 0


_BITS: Final = 64


@dataclass(frozen=True, kw_only=True)
class DropoutLaw:
    """The probabilities that a client drops out: before it sends its input to the first sum of a round
    (`training`), to a later sum of the same vector (`group`) or of a new one (`between`), and after it
    (`reveal`). `seed` determines who. Raise `ParameterError` if a probability is not from 0 to below 1."""

    seed: bytes
    training: float = 0.0  # before masking in the first sum of a round
    between: float = 0.0  # before masking in a later sum that begins a group (`secagg.sum_group_rules`)
    group: float = 0.0  # before masking in any other sum; this ends the group
    reveal: float = 0.0  # after masking in any sum

    def __post_init__(self) -> None:
        for name in ("training", "between", "group", "reveal"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"the probability to drop out ({name}) must be from 0 to below 1")

    def missing(self, member: int, stage: Stage, number: int, index: int, *, later: bool) -> bool:
        """Return whether the client drops out at this stage of sum `index` of round `number`. `later` says
        whether the round had an earlier sum of the same vector. No client drops out in set-up."""
        if stage in (Stage.ADVERTISE, Stage.SHARE, Stage.DEPOSIT):
            return False
        if stage is not Stage.MASK:
            return self._happens(self.reveal, "reveal", member, number, index)
        probability = self.training if index == 0 else self.group if later else self.between
        return self._happens(probability, "mask", member, number, index)

    def _happens(self, probability: float, what: str, member: int, number: int, index: int) -> bool:
        """Return True with this probability. The seed and the arguments determine the return value."""
        if not probability:
            return False
        position = b"".join(each.to_bytes(8, "big") for each in (member, number, index))
        drawn = digest("simulated drop-out", self.seed, what.encode(), position)
        return int.from_bytes(drawn[: _BITS // 8], "big") < probability * (1 << _BITS)


def with_budget(setting: Setting, algorithm: AnyAlgorithm) -> Setting:
    """Return the setting with the algorithm's privacy budget, unless the setting has its own budget. Raise
    `ParameterError` if the algorithm's budget is for another adjacency than that of the setting."""
    budget = algorithm.budget
    if budget is None or setting.max_rho is not None:
        return setting
    if budget.goal.adjacency is not setting.adjacency:
        raise ParameterError(
            f"the goal of the noise refers to {budget.goal.adjacency}, but the setting to "
            f"{setting.adjacency}: set its adjacency"
        )
    return replace(setting, max_rho=algorithm.max_rho)


def check_cohort(algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting) -> None:
    """Raise `ParameterError` if the algorithm cannot run with these learners (by id) or this setting."""
    if not isinstance(learners, Mapping):
        raise ParameterError("learners must be a mapping from the ids of clients to their learners")
    if len(learners) < setting.corrupt + 2:
        raise ParameterError(
            f"{len(learners)} clients with {setting.corrupt} colluders: a total could show one honest input; "
            f"at least {setting.corrupt + 2} are needed"
        )
    if algorithm.needs_all_clients and setting.sample_cohort is not None:
        raise ParameterError(
            f"{type(algorithm).__name__} needs all clients in every round, so sample_cohort must be None"
        )
    if setting.sample_cohort is not None and getattr(algorithm, "population", 0) is None:
        raise ParameterError(
            f"with sample_cohort, set the population of {type(algorithm).__name__}: {len(learners)}"
        )
    if setting.sample_cohort is None and len(learners) > algorithm.clients:
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
