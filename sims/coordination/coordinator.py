"""The server's side of training: it runs the rounds of an algorithm in sessions of secure sums.

A `Coordinator` invites clients, asks for sums, renews sessions and reports outcomes. It reaches clients only
through a `Transport`, so it sees frames and totals, and never a client's model or data. Simulations and
deployments use the same coordinator with another transport.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TypedDict

from protocols.algorithm import AnyAlgorithm
from protocols.query_encoding import encode_query
from protocols.rounds import Query, RoundInfo, UnacknowledgedAnswer
from secagg.differencing_rules import SetLog
from secagg.errors import ParameterError, SumFailed, TooFewClients
from secagg.local_session import Stage
from secagg.repeated_query_roster import batched_roster, sets_by_kind
from secagg.sum_spec import Table, Total
from sims.coordination.sum_settings import SumSettings
from sims.coordination.transport import SessionPlan, SumSession, SumStats, TrafficCounter, Transport
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


class Coordinator:
    """Runs rounds over a transport. Implements `protocols.run.SumChannel`, which an algorithm's `Run` uses.

    `asked`    records of all sums so far.
    `history`  which clients confirmed which queries, in all sessions.
    """

    def __init__(self, algorithm: AnyAlgorithm, transport: Transport, settings: SumSettings) -> None:
        self._algorithm = algorithm
        self._transport = transport
        self._settings = settings
        self.history = SetLog(all_clients=algorithm.needs_all_clients)
        self.asked: list[SumRecord] = []
        self.sessions = 0
        self.session: SumSession | None = None
        self.round_info = RoundInfo()
        self.sum_number = 0  # index of the current sum of the round, or SET_UP
        self.is_later = False  # whether the round had an earlier sum of the current group
        self._members: tuple[int, ...] = ()
        self._sums_left = 0
        self._kind = ""  # of the current sum
        self._groups: set[str] = set()  # groups that had a sum in this round
        self._stage: Stage | None = None  # last reported to the log
        self._bytes_up: Counter[Stage] = Counter()  # of the sessions before this one
        self._bytes_down: Counter[Stage] = Counter()
        self._unacknowledged: list[UnacknowledgedAnswer] = []

    # --- called by a run ---

    def begin(self, round_info: RoundInfo) -> None:
        """Begin a round, in a new session if needed. Raise `SumFailed` if too few clients join, and
        `ParameterError` if `SumSettings.sample_cohort` returns clients that cannot be invited."""
        self.round_info, self.sum_number, self._groups = round_info, 0, set()
        if self._algorithm.table is None:
            return
        members = self.batch(self.invited(round_info))
        if members is None:
            raise TooFewClients(
                "clients are left out and taken in by batches, and no set of those here is far enough from "
                "those of earlier sums"
            )
        again = self._settings.each_round or members != self._members
        if again or self._sums_left < self._algorithm.most_sums:
            self._open(self._algorithm.table, members)

    def ask(self, query: Query) -> Total:
        """Return the total of the answers to a query. Raise `SumFailed` if no total is released."""
        if self.session is None:
            raise TooFewClients("there is no session")
        payload = encode_query(self.round_info.with_unacknowledged(self._unacknowledged), query)
        self._sums_left -= 1
        total = self._sum(self.session, query.kind, payload)
        missed = sorted(set(self.session.contributors) - self.session.informed)
        self._unacknowledged += [
            UnacknowledgedAnswer(member, self.round_info.number, query.kind) for member in missed
        ]
        return total

    def _sum(self, session: SumSession, kind: str, payload: bytes) -> Total:
        """Ask the session for a sum, log the outcome, and return the total. Raise `SumFailed` if it fails."""
        meter, started = TrafficMeter(session), time.perf_counter()
        self._kind, self._stage, session.stats = kind, None, SumStats()
        self._note_group(kind)
        total, failure = None, None
        try:
            total = session.ask(kind, payload, round_number=self.round_info.number)
            return total
        except SumFailed as error:
            failure = str(error)
            raise
        finally:
            self.sum_number += 1
            record = self._record(session.stats, meter, kind, total, failure, time.perf_counter() - started)
            if total is not None or failure is not None:
                self.asked.append(record)
            self._settings.log.on_sum(record)

    def _record(
        self,
        stats: SumStats,
        meter: TrafficMeter,
        kind: str,
        total: Total | None,
        failure: str | None,
        seconds: float,
    ) -> SumRecord:
        return SumRecord(
            session=self.sessions - 1,
            round=self.round_info.number,
            kind=kind,
            count=None if total is None else total.count,
            failure=failure,
            seconds=seconds,
            index=stats.index,
            invited=stats.invited,
            masked=stats.masked,
            revealed=stats.revealed,
            around=stats.around,
            refusals=tuple(stats.refusals),
            exclusions=self._bar(stats),
            **meter.counts(),
        )

    def _bar(self, stats: SumStats) -> tuple[Exclusion, ...]:
        """Remember the clients that lied or were in a dispute, and return all exclusions in `stats`."""
        self._settings.barred.update(each.member for each in stats.exclusions if each.barred)
        return tuple(stats.exclusions)

    def _note_group(self, kind: str) -> None:
        assert self._algorithm.table is not None  # there is a session
        group = self._algorithm.table.group_of(kind)
        self.is_later = group in self._groups
        self._groups.add(group)

    def finish(self, round_info: RoundInfo) -> None:
        """Announce the round's outcome to all clients. End the session if the round failed, or if the
        transport has lost clients that can come back only in a new session."""
        self._transport.announce(round_info.with_unacknowledged(self._unacknowledged))
        self._unacknowledged = []
        if self._transport.needs_new_session or not round_info.completed(self.round_info.number):
            self.end_session()

    def end_session(self) -> None:
        if self.session is not None:
            self.session.end()
            self._bytes_up, self._bytes_down = self.bytes_up, self.bytes_down
            self.session, self._members, self._sums_left = None, (), 0

    @property
    def bytes_up(self) -> Counter[Stage]:
        return self._bytes_up + (Counter() if self.session is None else self.session.bytes_up)

    @property
    def bytes_down(self) -> Counter[Stage]:
        return self._bytes_down + (Counter() if self.session is None else self.session.bytes_down)

    # --- sessions ---

    def invited(self, round_info: RoundInfo) -> tuple[int, ...]:
        """Return the ids of the clients that a round invites: all that the transport reaches, or a sample,
        without those that are barred. Raise `ParameterError` if the sample is impossible."""
        sample, known = self._settings.sample_cohort, self._transport.clients()
        members = known if sample is None else tuple(map(int, sample(round_info.number)))
        if unknown := set(members) - set(known):
            raise ParameterError(f"the draw invites clients that do not exist: {sorted(unknown)}")
        if len(set(members)) < len(members):
            raise ParameterError("the draw invites a client twice")
        if len(members) > self._algorithm.clients:
            raise ParameterError(
                f"the draw invites {len(members)} clients, and the algorithm's sums are for at most "
                f"{self._algorithm.clients}"
            )
        return tuple(sorted(set(members) - self._settings.barred))

    def batch(self, members: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return those of `members` that take part in a round, for clients that compare the clients of sums
        (`SumSettings.min_difference`); None if there is no choice that they accept."""
        apart, table = self._settings.min_difference, self._algorithm.table
        if not apart or table is None:
            return members
        return batched_roster(
            members,
            sets_by_kind(self.history, table, apart),
            dropouts=self.history.dropouts,
            least=max(self._fewest, *(spec.least_roster for spec in table.values())),
            most=self._algorithm.clients,
        )

    @property
    def _fewest(self) -> int:
        return max(self._settings.min_cohort, self._settings.corrupt + 2)

    def _open(self, table: Table, members: tuple[int, ...]) -> None:
        self.end_session()
        if len(members) < self._fewest:
            raise TooFewClients.only(len(members), "are invited", self._fewest)
        number = self.round_info.number if self._settings.each_round else self.sessions
        plan = SessionPlan(table, self._settings, members, number, self.history, self.enter_stage)
        self.session = self._transport.session(plan)
        self.sessions += 1
        self.sum_number, self._kind, self._stage = SET_UP, "", None
        failure = None
        try:
            self.session.open()
        except SumFailed as error:
            failure = str(error)
            raise
        finally:
            self.sum_number = 0
            self._log_session(self.session, len(members), failure)
            if failure is not None:
                self.end_session()
        self._members, self._sums_left = members, self._settings.sums

    def _log_session(self, session: SumSession, members: int, failure: str | None) -> None:
        if session.is_plain:  # It has no set-up.
            return
        graph = session.graph
        self._settings.log.on_session(
            SessionRecord(
                session=self.sessions - 1,
                round=self.round_info.number,
                members=members,
                id=None if graph is None else graph.id,
                graph=None if graph is None else graph.kind,
                neighbours=None if graph is None else graph.neighbours,
                threshold=None if graph is None else graph.threshold,
                sums=self._settings.sums,
                seeds=0 if self._algorithm.table is None else self._algorithm.table.seeds,
                exchanged=() if graph is None else graph.exchanged,
                exclusions=self._bar(session.stats),
                failure=failure,
                **TrafficMeter(session, whole=True).counts(),
            )
        )

    def enter_stage(self, stage: Stage) -> None:
        """Log that a stage of the current sum or of set-up begins, once."""
        if stage is not self._stage:
            self._stage = stage
            self._settings.log.on_stage(
                StageRecord(self.round_info.number, self.sum_number, self._kind, stage)
            )

    def restore(self, sessions: int, history: SetLog) -> None:
        """Continue an earlier run of `sessions` sessions. `history` has the sets that clients confirmed."""
        self.sessions, self.history = sessions, history


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
