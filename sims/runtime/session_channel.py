"""A channel to simulated clients: a coordinator, and the clients' side of every session it opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm, NoMemory
from protocols.learner import Learner
from protocols.rounds import Query, RoundInfo
from protocols.run import SumChannel
from secagg.client_budget import Spend
from secagg.client_memory import AnswerEntry
from secagg.differencing_rules import SetLog
from secagg.events import Asked, ClientEvent
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Absent, AnswerOrDecline, Listener, Prepare, Stage
from secagg.policy import Policy
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.coordination.client_runtime import ClientRuntime
from sims.coordination.coordinator import Coordinator
from sims.coordination.transport import SessionPlan, SumSession
from sims.records.sum_records import SumRecord
from sims.runtime.client_memories import ClientMemories
from sims.runtime.client_state import SimulatedMemory, restore_clients, save_clients
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from sims.runtime.sum_and_dropout_settings import Setting, check_cohort, with_budget

T = TypeVar("T")


class ObservedChannel(SumChannel, Protocol):
    """Asks simulated clients for sums. Observers can read the state of clients; the simulated server cannot.

    `asked`       records of all sums so far.
    `bytes_up`    the bytes that all clients have sent so far, by stage.
    `bytes_down`  the bytes that all clients have received so far, by stage.
    `memories`    returns by client id what clients keep from completed rounds, such as personal models.
    `save`        returns the state of every client by id, between two rounds, in a format of this channel.
    `restore`     sets these states before the first round; `sessions` is the number of earlier sessions.
    `take_lost`   charges clients for a sum that they may have answered after their state was saved.
    `spends`      returns the privacy cost that every client has recorded, by client id.
    `sessions`    the number of sessions so far.
    """

    @property
    def asked(self) -> list[SumRecord]: ...
    @property
    def bytes_up(self) -> Counter[Stage]: ...
    @property
    def bytes_down(self) -> Counter[Stage]: ...
    @property
    def sessions(self) -> int: ...
    def memories(self) -> dict[int, Any]: ...
    def spends(self) -> dict[int, Spend]: ...
    def save(self) -> dict[int, bytes]: ...
    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None: ...
    def take_lost(self, answer: AnswerEntry) -> None: ...
    def close(self) -> None: ...


class PreparedAnswer(Protocol):
    """The outcome of a computation for one client. `result` returns its value or raises its exception."""

    def result(self) -> Any: ...


# Calls one function for each client, all in one batch, and returns the outcomes: see `fl.crowd.Crowd`.
Together: TypeAlias = Callable[[Mapping[int, Callable[[], Any]]], Mapping[int, PreparedAnswer]]


def in_batch(jobs: Mapping[int, Callable[[], T]], together: Together | None) -> dict[int, Callable[[], T]]:
    """Run one function per client (`jobs`, by id) in one batch, and return functions that return or raise
    what they did. If the learners cannot compute in batches (`together` is None), return the `jobs`."""
    if together is None:
        return dict(jobs)
    return {member: done.result for member, done in together(jobs).items()}


def may_train_at_end(algorithm: AnyAlgorithm) -> bool:
    """Return whether clients may train when a round ends: those that keep nothing do not."""
    return algorithm.memory_type is not NoMemory


@dataclass(frozen=True)
class SimulatedSessionPlan(SessionPlan):
    """What a session with simulated clients is made from: the server's plan, and the clients' side of it,
    namely memories, and functions for answers, drop-outs and events."""

    setting: Setting
    memories: Mapping[int, SimulatedMemory]
    answer: AnswerOrDecline
    prepare: Prepare
    absent: Absent
    listener: Listener
    left: AbstractSet[int]  # clients gone for the rest of the round; grows during the session

    @property
    def policy(self) -> Policy:
        """Return the limits that every client of the session enforces against the server."""
        setting, least = self.setting, self.setting.corrupt + 2
        return Policy(
            trust=Trust.parse(setting.trust),
            corrupt=setting.corrupt,
            min_cohort=least,
            max_cohort=len(self.members),
            min_contributors=least,
            max_sums=setting.sums,
            unnoised_sums=setting.unnoised_sums,
            max_rho=setting.max_rho,
            adjacency=setting.adjacency,
            min_difference=setting.min_difference,
            key_agreement=KeyAgreement.parse(setting.key_agreement),
        )


SessionFactory: TypeAlias = Callable[[SimulatedSessionPlan], SumSession]


class SessionChannel:
    """Asks simulated clients for sums, in sessions of any kind that `make_session` makes. Implements
    `ObservedChannel` and, for its coordinator, `Transport`; these describe its methods. `learners` has the
    object that trains for each client, by id. If it has a method `together`, as `fl.crowd.Crowd` has, that
    method computes the answers of all clients in one batch, which is faster. The algorithm learns only what
    `ask` returns."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        learners: Mapping[int, Learner],
        setting: Setting,
        make_session: SessionFactory,
    ) -> None:
        check_cohort(algorithm, learners, setting)
        self._algorithm = algorithm
        self._setting = with_budget(setting, algorithm)
        self._make_session = make_session
        self._together: Together | None = getattr(learners, "together", None)
        self._prepared: Mapping[int, PreparedAnswer] = {}
        self._participants = {
            member: SimulatedParticipant(algorithm, learner, trust=setting.trust, member=member)
            for member, learner in learners.items()
        }
        self.runtimes = {member: ClientRuntime(each) for member, each in self._participants.items()}
        self._shared = ClientMemories() if setting.memories is None else setting.memories
        self._memories = self._shared.of(learners)
        self._left: set[int] = set()  # clients that `dropout_law` removed, until the next round
        self.coordinator = Coordinator(algorithm, self, self._setting.of_server())

    # --- called by a run ---

    def begin(self, round_info: RoundInfo) -> None:
        """Begin a round, in a new session if needed. Raise `SumFailed` if too few clients join, and
        `ParameterError` if `Setting.sample_cohort` returns clients that cannot be invited."""
        self._take_turn()
        if self._setting.insecure_replay:
            self._forget(round_info)
        self._left.clear()
        self._left.update(self._unreachable())
        if self._algorithm.table is None:
            self._open_alone(self.coordinator.invited(round_info), round_info)
        self.coordinator.begin(round_info)

    def ask(self, query: Query) -> Total:
        """Return the total of the answers to a query. Raise `SumFailed` if no total is released."""
        return self.coordinator.ask(query)

    def finish(self, round_info: RoundInfo) -> None:
        """Report the round's outcome to all clients. End the session if the round failed, or if `dropout_law`
        made a client drop out."""
        self.coordinator.finish(round_info)

    def close(self) -> None:
        self.coordinator.end_session()

    # --- called by the coordinator ---

    @property
    def needs_new_session(self) -> bool:
        return bool(self._left)

    def clients(self) -> tuple[int, ...]:
        return tuple(self.runtimes)

    def session(self, plan: SessionPlan) -> SumSession:
        """Return a session with the simulated clients in `plan.members`, which is not open yet."""
        if self._setting.insecure_replay:
            self._memories.update({member: SimulatedMemory() for member in self._memories})
        return self._make_session(
            SimulatedSessionPlan(
                **vars(plan),
                setting=self._setting,
                memories={member: self._memories[member] for member in plan.members},
                answer=self._answer,
                prepare=self._prepare,
                absent=self._absent,
                listener=self._on_event,
                left=self._left,
            )
        )

    def announce(self, round_info: RoundInfo) -> None:
        """Report to all clients which rounds before `round_info.number` were completed."""
        jobs = {member: partial(each.announce, round_info) for member, each in self.runtimes.items()}
        for done in in_batch(jobs, self._together if may_train_at_end(self._algorithm) else None).values():
            done()

    def _take_turn(self) -> None:
        """Use the memories of the clients, of which another channel may have had the turn."""
        self._shared.take_turn(self)

    def yield_turn(self) -> None:
        """End the session, because another channel asks the same clients."""
        self.coordinator.end_session()
        self.refresh()

    def refresh(self) -> None:
        """Copy the states of clients to this process. Here, they are in it."""

    def _open_alone(self, members: tuple[int, ...], round_info: RoundInfo) -> None:
        """Have clients begin a round of an algorithm without sums."""
        for member in members:
            self.participants[member].open(round_info)

    def _unreachable(self) -> AbstractSet[int]:
        """Return the clients that take no part in a round because nothing hosts them."""
        return frozenset()

    def _forget(self, round_info: RoundInfo) -> None:
        """Make clients forget this round and later ones, so that these can be repeated, in a new session if
        the round has begun before."""
        for participant in self.participants.values():
            participant.insecure_rewind(round_info.number)
        self.coordinator.history = SetLog(all_clients=self._algorithm.needs_all_clients)
        if round_info.number <= self.coordinator.round_info.number:
            self.coordinator.end_session()

    # --- for observers ---

    @property
    def participants(self) -> dict[int, SimulatedParticipant]:
        """The clients' side of the run, by id: for clients that run elsewhere, copies."""
        return self._participants

    @property
    def asked(self) -> list[SumRecord]:
        return self.coordinator.asked

    @property
    def bytes_up(self) -> Counter[Stage]:
        return self.coordinator.bytes_up

    @property
    def bytes_down(self) -> Counter[Stage]:
        return self.coordinator.bytes_down

    @property
    def sessions(self) -> int:
        return self.coordinator.sessions

    def memories(self) -> dict[int, Any]:
        return {member: each.memory for member, each in self.participants.items()}

    def spends(self) -> dict[int, Spend]:
        self._shared.refresh()
        return {member: each.spend for member, each in self._memories.items()}

    def save(self) -> dict[int, bytes]:
        """Return each client's state by id, and what all share under `SHARED`. Call only between rounds."""
        self._shared.refresh()
        return save_clients(self.participants, self._memories, self._setting.tamper)

    def take_lost(self, answer: AnswerEntry) -> None:
        """Charge the clients that were drawn for a sum its privacy cost. They may have answered it after
        their state was saved."""
        self._shared.refresh()
        drawn = self._setting.sample_cohort
        for member in self._memories if drawn is None else drawn(answer.round_number):
            self._memories[member].take_lost(answer)

    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None:
        """Restore all clients from a result of `save`, before the first round. `sessions` is the number of
        earlier sessions. Raise `RecordError` if `saved` is invalid."""
        restore_clients(saved, self.participants, self._memories, self._setting.tamper)
        history = SetLog(all_clients=self._algorithm.needs_all_clients)
        for memory in self._memories.values():  # The server knew every set that a client confirmed.
            for sequence, members in memory.sets.entries():
                history.add(sequence, members)
                history.released.add(sequence)
        self.coordinator.restore(sessions, history)

    # --- called by a session ---

    def _prepare(self, asked: Mapping[int, Asked]) -> None:
        """Compute the answers to `asked` (queries by client id) in one batch and keep them for `_answer`. Do
        nothing if the learners cannot compute in batches."""
        self._prepared = {}
        if self._together is not None:
            jobs = {member: partial(self.runtimes[member].answer, each) for member, each in asked.items()}
            self._prepared = self._together(jobs)

    def _answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        if member not in self._prepared:
            return self.runtimes[member].answer(asked)
        values: Mapping[str, ArrayLike] | None = self._prepared[member].result()
        return values

    def _absent(self, member: int, stage: Stage, _sum_index: int) -> bool:
        self.coordinator.enter_stage(stage)
        if self._leaves(member, stage):
            self._left.add(member)
        return self._missing(member, stage)

    def _missing(self, member: int, stage: Stage) -> bool:
        """Return whether the client is absent from this stage: it drops out now, or left the round before."""
        if member in self._left or self._leaves(member, stage):
            return True
        now = self.coordinator
        return self._setting.dropouts(member, stage, now.round_info.number, now.sum_number)

    def _leaves(self, member: int, stage: Stage) -> bool:
        """Return whether `Setting.dropout_law` makes the client leave the round at this stage."""
        now, law = self.coordinator, self._setting.dropout_law
        return law is not None and law.missing(
            member, stage, now.round_info.number, now.sum_number, later=now.is_later
        )

    def _on_event(self, member: int, event: ClientEvent) -> None:
        self.runtimes[member].on_event(event)
