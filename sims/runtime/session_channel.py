"""A channel that runs rounds in sessions: it invites clients, asks for sums, and reports the outcomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypedDict

from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.query_encoding import encode_query
from protocols.rounds import Query, RoundInfo, UnacknowledgedAnswer
from secagg.client_budget import Spend
from secagg.client_memory import AnswerEntry
from secagg.differencing_rules import SetLog
from secagg.errors import ParameterError, SumFailed, TooFewClients
from secagg.events import Abandoned, Asked, ClientEvent, Confirmed
from secagg.local_session import Stage
from secagg.sum_spec import Table, Total
from sims.records.sum_records import (
    COUNTS,
    SET_UP,
    ByStage,
    Exclusion,
    SessionRecord,
    StageRecord,
    SumRecord,
    by_stage,
)
from sims.runtime.channel_interfaces import SessionFactory, SessionPlan, SumSession, SumStats, TrafficCounter
from sims.runtime.client_state import SimulatedMemory, restore_clients, save_clients
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from sims.runtime.sum_and_dropout_settings import Setting, check_cohort, with_budget


class PreparedAnswer(Protocol):
    """The outcome of a computation for one client. `result` returns its value or raises its exception."""

    def result(self) -> Any: ...


# Calls one function for each client, all in one batch, and returns the outcomes: see `fl.crowd.Crowd`.
Together: TypeAlias = Callable[[Mapping[int, Callable[[], Any]]], Mapping[int, PreparedAnswer]]


class SessionChannel:
    """Asks simulated clients for sums, in sessions of any kind that `make_session` makes. Implements
    `ObservedChannel`, which describes its methods. `learners` has the object that trains for each client, by
    id. If it has a method `together`, as `fl.crowd.Crowd` has, that method computes the answers of all
    clients in one batch, which is faster. The algorithm learns only what `ask` returns."""

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
        self.participants = {
            member: SimulatedParticipant(algorithm, learner, trust=setting.trust, member=member)
            for member, learner in learners.items()
        }
        self._memories = {member: SimulatedMemory() for member in learners}
        # Which clients confirmed which queries, in all sessions.
        self._history = SetLog(all_clients=algorithm.needs_all_clients)
        self._session: SumSession | None = None
        self._sessions = 0
        self._members: tuple[int, ...] = ()
        self._sums_left = 0
        self._round_info = RoundInfo()
        self._next_sum = 0  # index of the next sum of the round
        self._kind = ""  # of the current sum
        self._groups: set[str] = set()  # groups that had a sum in this round
        self._later = False  # whether the round had an earlier sum of the current group
        self._left: set[int] = set()  # clients that `dropout_law` removed, until the next round
        self._stage: Stage | None = None  # last reported to the log
        self._bytes_up: Counter[Stage] = Counter()  # of the sessions before this one
        self._bytes_down: Counter[Stage] = Counter()
        self.asked: list[SumRecord] = []
        self._answering: dict[int, int] = {}  # the last sum of this session that each client was asked
        self._confirmed: set[int] = set()  # clients that know that they are in the current sum
        self._unacknowledged: list[UnacknowledgedAnswer] = []

    # --- called by a run ---

    def begin(self, round_info: RoundInfo) -> None:
        """Begin a round, in a new session if needed. Raise `SumFailed` if too few clients join, and
        `ParameterError` if `Setting.sample_cohort` returns clients that cannot be invited."""
        again = self._setting.insecure_replay and self._forget(round_info)
        self._round_info, self._next_sum, self._groups = round_info, 0, set()
        self._left.clear()
        members = self._invited(round_info)
        if self._algorithm.table is None:
            for member in members:
                self.participants[member].open(round_info)
            return
        again = again or self._setting.each_round or members != self._members
        if again or self._sums_left < self._algorithm.most_sums:
            self._open(self._algorithm.table, members)

    def ask(self, query: Query) -> Total:
        """Return the total of the answers to a query. Raise `SumFailed` if no total is released."""
        if self._session is None:
            raise TooFewClients("there is no session")
        payload = encode_query(self._round_info.with_unacknowledged(self._unacknowledged), query)
        self._confirmed = set()
        self._sums_left -= 1
        total = self._sum(self._session, query.kind, payload)
        missed = sorted(set(self._session.contributors) - self._confirmed)
        self._unacknowledged += [
            UnacknowledgedAnswer(member, self._round_info.number, query.kind) for member in missed
        ]
        return total

    def _sum(self, session: SumSession, kind: str, payload: bytes) -> Total:
        """Ask the session for a sum, log the outcome, and return the total. Raise `SumFailed` if it fails."""
        meter, started = TrafficMeter(session), time.perf_counter()
        self._kind, self._stage, session.stats = kind, None, SumStats()
        self._note_group(kind)
        total, failure = None, None
        try:
            total = session.ask(kind, payload, round_number=self._round_info.number)
            return total
        except SumFailed as error:
            failure = str(error)
            raise
        finally:
            self._next_sum += 1
            stats = session.stats
            record = SumRecord(
                session=self._sessions - 1,
                round=self._round_info.number,
                kind=kind,
                count=None if total is None else total.count,
                failure=failure,
                seconds=time.perf_counter() - started,
                index=stats.index,
                invited=stats.invited,
                masked=stats.masked,
                revealed=stats.revealed,
                around=stats.around,
                refusals=tuple(stats.refusals),
                exclusions=self._bar(stats),
                **meter.counts(),
            )
            if total is not None or failure is not None:
                self.asked.append(record)
            self._setting.log.on_sum(record)

    def _bar(self, stats: SumStats) -> tuple[Exclusion, ...]:
        """Remember the clients that lied or were in a dispute, and return all exclusions in `stats`."""
        self._setting.barred.update(each.member for each in stats.exclusions if each.barred)
        return tuple(stats.exclusions)

    def _note_group(self, kind: str) -> None:
        assert self._algorithm.table is not None  # there is a session
        group = self._algorithm.table.group_of(kind)
        self._later = group in self._groups
        self._groups.add(group)

    def finish(self, round_info: RoundInfo) -> None:
        """Report the round's outcome to all clients. End the session if the round failed, or if `dropout_law`
        made a client drop out."""
        self._report(round_info.with_unacknowledged(self._unacknowledged))
        self._unacknowledged = []
        if self._left or not round_info.completed(self._round_info.number):
            self._end_session()

    def _report(self, round_info: RoundInfo) -> None:
        """Report to all clients which rounds before `round_info.number` were completed."""
        self._all(
            {member: partial(each.apply_history, round_info) for member, each in self.participants.items()}
        )

    def close(self) -> None:
        self._end_session()

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.end()
            self._bytes_up, self._bytes_down = self.bytes_up, self.bytes_down
            self._session, self._members, self._sums_left = None, (), 0

    @property
    def bytes_up(self) -> Counter[Stage]:
        return self._bytes_up + (Counter() if self._session is None else self._session.bytes_up)

    @property
    def bytes_down(self) -> Counter[Stage]:
        return self._bytes_down + (Counter() if self._session is None else self._session.bytes_down)

    # --- sessions ---

    def _forget(self, round_info: RoundInfo) -> bool:
        """Make clients forget this round and later ones, so that these can be repeated. Return whether this
        also needs a new session."""
        for participant in self.participants.values():
            participant.insecure_rewind(round_info.number)
        return round_info.number <= self._round_info.number and self._session is not None

    def _invited(self, round_info: RoundInfo) -> tuple[int, ...]:
        sample = self._setting.sample_cohort
        members = tuple(self.participants) if sample is None else tuple(map(int, sample(round_info.number)))
        if unknown := set(members) - set(self.participants):
            raise ParameterError(f"the draw invites clients that do not exist: {sorted(unknown)}")
        if len(set(members)) < len(members):
            raise ParameterError("the draw invites a client twice")
        if len(members) > self._algorithm.clients:
            raise ParameterError(
                f"the draw invites {len(members)} clients, and the algorithm's sums are for at most "
                f"{self._algorithm.clients}"
            )
        return tuple(sorted(set(members) - self._setting.barred))

    def _open(self, table: Table, members: tuple[int, ...]) -> None:
        self._end_session()
        if len(members) < self._setting.corrupt + 2:
            raise TooFewClients.only(len(members), "are invited", self._setting.corrupt + 2)
        if self._setting.insecure_replay:
            self._memories = {member: SimulatedMemory() for member in self._memories}
            self._history = SetLog(all_clients=self._algorithm.needs_all_clients)
        memories = {member: self._memories[member] for member in members}
        plan = SessionPlan(
            table,
            self._setting,
            members,
            memories,
            self._round_info.number if self._setting.each_round else self._sessions,
            self._answer,
            self._prepare,
            self._absent,
            self._on_event,
            self._history,
            self._left,
        )
        self._session = self._make_session(plan)
        self._answering = {}
        self._sessions += 1
        self._next_sum, self._kind, self._stage = SET_UP, "", None
        failure = None
        try:
            self._session.open()
        except SumFailed as error:
            failure = str(error)
            raise
        finally:
            self._next_sum = 0
            self._log_session(self._session, len(members), failure)
            if failure is not None:
                self._end_session()
        self._members, self._sums_left = members, self._setting.sums

    def _log_session(self, session: SumSession, members: int, failure: str | None) -> None:
        if session.is_plain:  # It has no set-up.
            return
        graph = session.graph
        self._setting.log.on_session(
            SessionRecord(
                session=self._sessions - 1,
                round=self._round_info.number,
                members=members,
                id=None if graph is None else graph.id,
                graph=None if graph is None else graph.kind,
                neighbours=None if graph is None else graph.neighbours,
                threshold=None if graph is None else graph.threshold,
                sums=self._setting.sums,
                seeds=0 if self._algorithm.table is None else self._algorithm.table.seeds,
                exchanged=() if graph is None else graph.exchanged,
                exclusions=self._bar(session.stats),
                failure=failure,
                **TrafficMeter(session, whole=True).counts(),
            )
        )

    # --- for observers ---

    @property
    def sessions(self) -> int:
        return self._sessions

    def memories(self) -> dict[int, Any]:
        return {member: each.memory for member, each in self.participants.items()}

    def spends(self) -> dict[int, Spend]:
        return {member: each.spend for member, each in self._memories.items()}

    def save(self) -> dict[int, bytes]:
        """Return each client's state by id, and what all share under `SHARED`. Call only between rounds."""
        return save_clients(self.participants, self._memories, self._setting.tamper)

    def take_lost(self, answer: AnswerEntry) -> None:
        """Charge all clients the privacy cost of a sum they may have answered after their state was saved."""
        for memory in self._memories.values():
            memory.take_lost(answer)

    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None:
        """Restore all clients from a result of `save`, before the first round. `sessions` is the number of
        earlier sessions. Raise `RecordError` if `saved` is invalid."""
        restore_clients(saved, self.participants, self._memories, self._setting.tamper)
        self._sessions = sessions
        for memory in self._memories.values():  # The server knew every set that a client confirmed.
            for sequence, members in memory.sets.entries():
                self._history.add(sequence, members)
                self._history.released.add(sequence)

    # --- called by a session ---

    def _prepare(self, asked: Mapping[int, Asked]) -> None:
        """Compute the answers to `asked` (queries by client id) in one batch and keep them for `_answer`. Do
        nothing if the learners cannot compute in batches."""
        self._prepared = {}
        if self._together is not None:
            jobs = {member: partial(self._compute, member, each) for member, each in asked.items()}
            self._prepared = self._together(jobs)

    def _answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        self._answering[member] = asked.sum_index
        if member not in self._prepared:
            return self._compute(member, asked)
        values: Mapping[str, ArrayLike] | None = self._prepared[member].result()
        return values

    def _compute(self, member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        return self.participants[member].answer(
            asked.kind, asked.payload, round_number=asked.round, invited=asked.invited
        )

    def _all(self, jobs: Mapping[int, Callable[[], None]]) -> None:
        """Call one function per client (`jobs`, by id), in one batch if the learners support it."""
        if self._together is not None:
            for done in self._together(jobs).values():
                done.result()
            return
        for job in jobs.values():
            job()

    def _absent(self, member: int, stage: Stage, _sum_index: int) -> bool:
        if stage is not self._stage:
            self._stage = stage
            self._setting.log.on_stage(
                StageRecord(self._round_info.number, self._next_sum, self._kind, stage)
            )
        if self._leaves(member, stage):
            self._left.add(member)
        return self._missing(member, stage)

    def _missing(self, member: int, stage: Stage) -> bool:
        """Return whether the client is absent from this stage: it drops out now, or left the round before."""
        if member in self._left or self._leaves(member, stage):
            return True
        return self._setting.dropouts(member, stage, self._round_info.number, self._next_sum)

    def _leaves(self, member: int, stage: Stage) -> bool:
        """Return whether `Setting.dropout_law` makes the client leave the round at this stage."""
        number, index, law = self._round_info.number, self._next_sum, self._setting.dropout_law
        return law is not None and law.missing(member, stage, number, index, later=self._later)

    def _on_event(self, member: int, event: ClientEvent) -> None:
        match event:
            case Confirmed():
                self._confirmed.add(member)
                self.participants[member].confirmed()
            case Abandoned(sum_index) if self._answering.get(member) == sum_index:
                self.participants[member].abandoned()


class CountsByStage(TypedDict):
    """The four counts of `TrafficCounts` as a typed dictionary, to be passed as keyword arguments."""

    bytes_up: ByStage
    bytes_down: ByStage
    frames_up: ByStage
    frames_down: ByStage


class TrafficMeter:
    """Counts a session's bytes and frames from now on; with `whole=True`, from the start of the session."""

    def __init__(self, session: TrafficCounter, *, whole: bool = False) -> None:
        self._session = session
        self._before = {name: Counter() if whole else Counter(getattr(session, name)) for name in COUNTS}

    def counts(self) -> CountsByStage:
        """Return the bytes and frames counted so far, by the name of the stage."""
        return CountsByStage(
            bytes_up=self._since("bytes_up"),
            bytes_down=self._since("bytes_down"),
            frames_up=self._since("frames_up"),
            frames_down=self._since("frames_down"),
        )

    def _since(self, name: str) -> ByStage:
        return by_stage(getattr(self._session, name) - self._before[name])
