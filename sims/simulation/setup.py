"""Makes everything that a simulation runs with: clients, their data, the algorithm and the channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from fl.crowd import Crowd
from fl.federation import Federation
from protocols.algorithm import AnyAlgorithm
from protocols.run import Run
from secagg.errors import ParameterError
from secagg.hashing import digest
from secagg.ledger import ServerLedger
from sims.coordination.sum_settings import CohortSampler
from sims.records.sum_records import SumLogger, no_sum_logger
from sims.runtime import DropoutLaw, ObservedChannel, SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.client_memories import ClientMemories
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from sims.runtime.processes import processes_sum
from sims.runtime.ray import RayChannel, RayPlace, ray_sum
from sims.scenario import federated_data
from sims.scenario.federated_data import all_draws, draw_cohort, participation_limit
from sims.scenario.settings import CHANNEL_KINDS, Settings, insecure_seed
from sims.scenario.training_task import DataFacts, TrainingTask, make_crowd
from sims.simulation.attacked_data import corrupt
from sims.simulation.learners import clients_of, make_learners, make_tamper
from sims.simulation.private_error_histogram import PeriodicErrorHistogram, histogram_algorithm

# (part of the run, "training" or "tail"; its algorithm) -> the logger of its sums.
MakeLog: TypeAlias = Callable[[str, AnyAlgorithm], SumLogger]


# Called once per channel, because a ledger records one session at a time.
OpenLedger: TypeAlias = Callable[[], ServerLedger | None]


def no_ledger() -> None:
    return None


def no_log(_part: str, _algorithm: AnyAlgorithm) -> SumLogger:
    return no_sum_logger


@dataclass(frozen=True)
class ClientBudget:
    """What a client spends in a run at most, for all that it is asked.

    `max_rho`        the zCDP rho of all sums with noise; None if no sum has noise.
    `also_unnoised`  whether there are also sums without noise, which no budget covers.
    """

    max_rho: float | None
    also_unnoised: bool

    @classmethod
    def of(cls, *algorithms: AnyAlgorithm | None) -> ClientBudget:
        """Return the budget that clients need for these algorithms together."""
        found = [each for each in algorithms if each is not None and each.table is not None]
        rho = math.fsum(each.rho_of_noise for each in found)
        return cls(rho or None, also_unnoised=any(each.budget is None for each in found))


@dataclass(frozen=True, eq=False)
class SimulationSetup:
    """The objects that a simulation uses: data, learners, algorithm, channels and runs."""

    settings: Settings
    federation: Federation
    corrupt: frozenset[int]  # the clients that attack
    crowd: Crowd  # learners of all clients, without attacks; those of the channel may attack
    strangers: Crowd | None  # the clients that never train, or None
    algorithm: AnyAlgorithm
    channel: ObservedChannel
    watched: Mapping[int, SimulatedParticipant]  # participants of the training
    run: Run[Any]
    budget: ClientBudget  # of each client, for all channels
    tail: PeriodicErrorHistogram | None = None  # requests a private histogram of errors

    @classmethod
    def of(
        cls,
        settings: Settings,
        root: Path,
        *,
        make_log: MakeLog = no_log,
        open_ledger: OpenLedger = no_ledger,
        barred: set[int] | None = None,
    ) -> SimulationSetup:
        """Make all objects of a simulation, before its first round. `root` contains the directories of data
        sets. `make_log(part, algorithm)` returns the logger of the sums of one part of the run: "training",
        or "tail" (error histogram). `open_ledger()` opens the ledger for one channel, or returns None. All
        channels add clients that lied to `barred`, and invite none of them."""
        federation, who = corrupt(settings, federated_data.federation(settings, root))
        task = TrainingTask.of(settings, DataFacts.of(settings, federation))
        crowd = make_crowd(settings, task.module, task.training, federation.clients)
        strangers = None
        if federation.held_out:
            strangers = make_crowd(settings, task.module, task.training, federation.held_out)
        algorithm = task.algorithm
        learners = make_learners(settings, crowd, who)
        barred = set() if barred is None else barred
        if settings.tail is not None and federation.classes is None:
            raise ParameterError(
                "tail: it counts errors, and in a regression there are none: leave out [tail]"
            )
        with ExitStack() as opened:
            histogram = histogram_algorithm(settings, dim=crowd.dim, clients=len(crowd))
            budget = ClientBudget.of(algorithm, histogram)
            channels = _ChannelFactory(
                settings, federation, learners, who, make_log, open_ledger, barred, opened, budget
            )
            channel = channels.training(algorithm)
            watched = channel.participants if isinstance(channel, SessionChannel) else {}
            tail = None
            if histogram is not None:
                tail = PeriodicErrorHistogram.of(settings, histogram, channels.tail(histogram))
            made = cls(
                settings, federation, who, crowd, strangers, algorithm, channel, watched,
                Run(algorithm, channel, algorithm.start(task.initial)), budget, tail,
            )  # fmt: skip
            opened.pop_all()
        return made

    @property
    def channels(self) -> dict[str, ObservedChannel]:
        """Return the channels by part of the run: "training" and, if it exists, "tail" (error histogram)."""
        return {"training": self.channel} | ({} if self.tail is None else {"tail": self.tail.channel})

    @property
    def cluster(self) -> Mapping[str, Any] | None:
        """Facts on the cluster that hosts the clients; None if they are on this machine alone."""
        return self.channel.cluster if isinstance(self.channel, RayChannel) else None

    def close(self) -> None:
        """Close all channels, also if closing one of them raises an error."""
        with ExitStack() as closing:
            for channel in reversed(self.channels.values()):
                closing.callback(channel.close)


@dataclass(frozen=True, eq=False)
class _ChannelFactory:
    """Makes the channels of the training and of the error histogram (tail), to the same clients."""

    settings: Settings
    federation: Federation
    learners: Mapping[int, Any]
    who: frozenset[int]
    make_log: MakeLog
    open_ledger: OpenLedger
    barred: set[int]
    opened: ExitStack  # closes the channels if not all of them can be made
    budget: ClientBudget
    memories: ClientMemories = field(default_factory=ClientMemories)

    def training(self, algorithm: AnyAlgorithm) -> ObservedChannel:
        sampler = _sampler(self.settings, tuple(self.learners))
        return self._made("training", algorithm, sample_cohort=sampler, each_round=self._each_round)

    def tail(self, algorithm: AnyAlgorithm) -> ObservedChannel:
        """Return the channel of the error histogram. It asks all clients, in a new session each time."""
        return self._made("tail", algorithm, sample_cohort=None, each_round=True)

    @property
    def _each_round(self) -> bool:
        """Return whether every round needs a new session: with drop-outs, so that clients can return; in a
        seeded run with noise, so that a repeated round has the same noise, which depends on the session."""
        given = self.settings
        return given.dropout.happens or (given.seeded and given.privacy is not None)

    def _made(self, part: str, algorithm: AnyAlgorithm, **more: Any) -> ObservedChannel:
        given = self.settings.channel
        setting = Setting(
            trust=given.trust,
            corrupt=given.corrupt,
            dropout=given.dropout,
            graph=given.graph,
            key_agreement=given.key_agreement,
            min_difference=given.min_difference,
            sums=algorithm.most_sums if more["each_round"] else given.sums,
            dropout_law=_dropout_law(self.settings, part),
            insecure_seed=_seed(self.settings, part),
            tamper=make_tamper(self.settings, self.who),
            log=self.make_log(part, algorithm),
            ledger=self.open_ledger(),
            barred=self.barred,
            max_rho=self.budget.max_rho,
            also_unnoised=self.budget.also_unnoised,
            memories=self.memories,
            **more,
        )
        channel = _CHANNELS[given.kind](self, algorithm, setting)
        self.opened.callback(channel.close)
        return channel


class ChannelClients(Protocol):
    """What channels are made from: learners; for worker processes, settings, data and attackers (`who`)."""

    @property
    def settings(self) -> Settings: ...
    @property
    def federation(self) -> Federation: ...
    @property
    def learners(self) -> Mapping[int, Any]: ...
    @property
    def who(self) -> frozenset[int]: ...


MakeChannel: TypeAlias = Callable[[ChannelClients, AnyAlgorithm, Setting], ObservedChannel]


def _plain(given: ChannelClients, algorithm: AnyAlgorithm, setting: Setting) -> ObservedChannel:
    return insecure_plain_sum(algorithm, given.learners, setting)


def _secure(given: ChannelClients, algorithm: AnyAlgorithm, setting: Setting) -> ObservedChannel:
    return secure_sum(algorithm, given.learners, setting)


def _processes(given: ChannelClients, algorithm: AnyAlgorithm, setting: Setting) -> ObservedChannel:
    return processes_sum(
        algorithm,
        given.learners,
        setting,
        clients=clients_of(given.settings, given.federation, given.who),
        workers=given.settings.channel.workers,
    )


def _ray(given: ChannelClients, algorithm: AnyAlgorithm, setting: Setting) -> ObservedChannel:
    channel = given.settings.channel
    return ray_sum(
        algorithm,
        given.learners,
        setting,
        clients=clients_of(given.settings, given.federation, given.who),
        secure=not channel.is_plain,
        actors=channel.workers,
        place=RayPlace(**channel.ray.model_dump(exclude={"kind"})),
    )


_CHANNELS: Final[dict[str, MakeChannel]] = {
    "plain": _plain,
    "secure": _secure,
    "processes": _processes,
    "ray": _ray,
}
assert _CHANNELS.keys() == set(CHANNEL_KINDS)  # scenarios check the names without importing this module


def register_channel(name: str, make: MakeChannel) -> None:
    """Add a kind of channel that scenarios can name. Raise `ParameterError` if the name is taken."""
    if name in _CHANNELS:
        raise ParameterError(f"there is a channel {name!r} already", parameter="name")
    _CHANNELS[name] = make
    CHANNEL_KINDS.append(name)


def _seed(settings: Settings, part: str) -> bytes | None:
    """Return the seed of keys, rounding and noise for a part of the run; None if the run is not seeded."""
    if not settings.seeded:
        return None
    seed = insecure_seed(settings.seed)
    return seed if part == "training" else digest("insecure conversation", seed, part.encode())


def _dropout_law(settings: Settings, part: str) -> DropoutLaw | None:
    if not settings.dropout.happens:
        return None
    return DropoutLaw(seed=f"{part} {settings.seed}".encode(), **settings.dropout.model_dump())


def _sampler(settings: Settings, clients: Sequence[int]) -> CohortSampler | None:
    """Return a function: round number -> ids of randomly drawn clients; None if all clients take part. Raise
    `ParameterError` if clients may take part too seldom for the rounds of the run."""
    per_round, limit = settings.cohort.per_round, participation_limit(settings)
    if limit is not None:
        return partial(_drawn, all_draws(settings, limit, clients))
    if per_round is None or per_round >= len(clients):
        return None
    return partial(draw_cohort, settings, clients)


def _drawn(draws: Sequence[tuple[int, ...]], number: int) -> tuple[int, ...]:
    """Return the clients of round `number`: none after the last round of the run."""
    return draws[number] if number < len(draws) else ()
