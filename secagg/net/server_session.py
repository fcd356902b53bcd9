"""One session on the network: a server's machine, the deadlines of its stages, and its clients' links.

A lock ensures that one task at a time uses the machine. A task that has received a frame waits for the lock,
and does not read from its connection meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import trio

from secagg import events
from secagg import messages as m
from secagg.cohort_members import invitation_digest
from secagg.errors import Departed, Dispute, LargeCohort, Lie, LocalError, PeerError, SlowReader
from secagg.events import Outgoing, ServerEvent, ServerStep, SumReleased
from secagg.ledger import ServerLedger
from secagg.local_session import STAGE_OF, Stage
from secagg.net.events import (
    ClientExcluded,
    ClientLeft,
    LeaveReason,
    OnServerEvent,
    SessionWaiting,
    StageClosed,
    TrafficCounted,
)
from secagg.net.expected_clients import ExpectedClients, JoinWait
from secagg.net.nursery_and_threads import RunFunction
from secagg.net.reliable_link import Link, ReceivedFrame
from secagg.net.settings import Deadlines
from secagg.net.trio_check import check_trio_runs
from secagg.server import ServerMachine
from secagg.sum_spec import Total
from secagg.transitions import ServerState

Exclude: TypeAlias = Callable[[Link, PeerError], None]
OnMachineEvent: TypeAlias = Callable[[ServerEvent], None]


def no_op(_event: ServerEvent) -> None:
    pass


class Session:
    """A session of a server with its clients, in which `ask` computes sums; `Server.session` makes it.
    `bytes_up` and `frames_up` count by stage what clients sent; `bytes_down`, `frames_down` what they got."""

    def __init__(
        self,
        machine: ServerMachine,
        exclude: Exclude,
        *,
        deadlines: Deadlines,
        ledger: ServerLedger | None,
        expected: ExpectedClients,
        report: float,
        on_machine_event: OnMachineEvent,
        on_event: OnServerEvent,
        work: RunFunction,
    ) -> None:
        self._machine = machine
        self._exclude = exclude
        self._deadlines = deadlines
        self._ledger = ledger
        self._expected = expected
        self._report = report
        self._on_machine_event = on_machine_event
        self._on_event = on_event
        self._work = work
        self._machine_lock = trio.Lock()
        self._links: dict[int, Link] = {}
        self._since: dict[int, int] = {}  # frames sent on a client's link, up to its invitation
        self._pending: list[Callable[[], tuple[ServerEvent, ...]]] = []
        self._joined: set[int] = set()  # clients that have accepted the invitation
        self._left: set[int] = set()  # clients that have left; they cannot join again
        self._is_complete = False  # whether the stage waits for no more answers
        self._joined_by = math.inf  # the time at which absent clients are waited for no longer
        self._changed = trio.Event()
        self._failure: LocalError | None = None
        self.contributors: tuple[int, ...] = ()  # the clients in the last total
        self._current = Stage.ADVERTISE  # a frame between two stages is counted with the first of them
        self.bytes_up: Counter[Stage] = Counter()
        self.bytes_down: Counter[Stage] = Counter()
        self.frames_up: Counter[Stage] = Counter()
        self.frames_down: Counter[Stage] = Counter()
        self._reported: dict[Stage, tuple[int, int]] = {}  # bytes up and down that an event has told of

    # --- for the owner of the session ---

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of the clients that can still be asked for a sum."""
        return self._machine.members

    @property
    def sums_left(self) -> int:
        return self._machine.sums_left

    async def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        """Compute one sum of `kind`, a name in the table, and return its total.

        Clients get `payload` and `round_number`. Raises `SumFailed` if no total was released, or `LocalError`
        if the query is not possible now; the session goes on. A cancelled call abandons the sum.
        """
        check_trio_runs("Session.ask")
        async with self._holding():
            self._raise_failure()
            step = self._machine.ask(kind, payload, round_number=round_number)
            self._is_complete = False
        try:
            if self._ledger is not None:
                self._ledger.note_asked(step.outgoing[0].frame, self._machine.table)
            self._act(step)
            return await self._finish()
        except BaseException:
            self._abandon()
            raise

    async def _finish(self) -> Total:
        """Run the stages of the current sum. Return its total, or raise the error that aborted it."""
        while True:
            for event in await self._run_stage():
                if isinstance(event, SumReleased):
                    self.contributors = event.contributors
                    return event.total
                if isinstance(event, events.SumAborted):
                    raise event.error

    def _abandon(self) -> None:
        """Abandon the current sum, if there is one. No lock is needed: no other task is in the machine."""
        if self._machine.state in (ServerState.MASKING, ServerState.CONFIRMING, ServerState.UNMASKING):
            self._act(self._machine.abandon())

    # --- for the server ---

    async def open(self) -> None:
        """Set up the session: exchange clients' keys and shares. Raise `SumFailed` if too few take part."""
        while self._machine.state is not ServerState.READY:
            for event in await self._run_stage():
                if isinstance(event, events.SessionFailed):
                    raise event.error

    def end(self) -> None:
        self._abandon()
        self._send(self._machine.end().outgoing)
        self._dismiss_latecomers()
        self._report_traffic()

    def invite(self, link: Link) -> None:
        """Invite a connected client, if it may take part and the session still accepts clients."""
        member = link.member
        if member not in self._expected.candidates:
            return
        if self._machine.state is not ServerState.INVITING or member in self._links.keys() | self._left:
            return
        link.frame_limit = max(link.frame_limit, self._machine.frame_limit)
        self._links[member] = link
        self._send_to(member, self._machine.invitation)
        self._since[member] = link.sent

    def note_presence(self) -> None:
        """Decide again which clients to wait for, because one has connected, or lost its connection."""
        self._later(lambda: ())

    def has(self, link: Link) -> bool:
        return self._links.get(link.member) is link

    def expects(self, link: Link, arrival: ReceivedFrame) -> bool:
        """Return whether a frame belongs to this session: the client made it after it got the invitation."""
        return self.has(link) and arrival.seen >= self._since[link.member]

    async def take(self, link: Link, arrival: ReceivedFrame) -> None:
        """Pass a frame that `expects` has approved to the machine. Count it in `frames_up` and `bytes_up`."""
        async with self._holding():
            self.bytes_up[self._stage_now()] += len(arrival.frame)
            self.frames_up[self._stage_now()] += 1
            inviting = self._machine.state is ServerState.INVITING
            happened = self._machine.receive(link.member, arrival.frame)
            if inviting and not happened:
                self._joined.add(link.member)
            self._note_aside(happened)

    def lose(self, link: Link, why: LeaveReason) -> None:
        """Remove a client from the session because it is disconnected for good, for the reason `why`."""
        self._on_event(ClientLeft(link.member, why))
        del self._links[link.member]
        self._left.add(link.member)
        self._later(lambda: self._machine.drop(link.member))

    def remove_excluded(self, link: Link, error: PeerError) -> None:
        """Remove from the session a client that the server has excluded because of `error`."""
        del self._links[link.member]
        self._left.add(link.member)
        self._later(lambda: (events.Excluded(link.member, error), *self._machine.drop(link.member)))

    # --- stages ---

    async def _run_stage(self) -> tuple[ServerEvent, ...]:
        """Wait for all answers or the deadline of the stage. Close the stage, and return its events."""
        begun, stage = trio.current_time(), self._stage_now()
        await self._wait_for_answers(stage, begun)
        async with self._holding():
            self._raise_failure()
            self._is_complete, self._joined_by = False, math.inf
            step = await self._work(self._machine.close_stage)
            self._act(step)
            self._dismiss_latecomers()
        self._on_event(StageClosed(stage, trio.current_time() - begun))
        self._report_traffic()
        return step.events

    async def _wait_for_answers(self, stage: Stage, begun: float) -> None:
        """Wait until the stage is complete, or its time is over. At intervals, report what it waits for."""
        asked = len(self._machine.waiting_for)
        end, report = begun + self._deadlines.of(self._machine.state), begun + self._report
        while not self._is_complete and (now := trio.current_time()) < min(end, self._joined_by):
            if now >= report:
                self._on_event(self._waiting(stage, asked, now - begun))
                report = now + self._report
            with trio.move_on_at(min(end, self._joined_by, report)):
                await self._changed.wait()

    def _waiting(self, stage: Stage, asked: int, seconds: float) -> SessionWaiting:
        """Return how many clients have answered, of the `asked` ones, or of all that may join."""
        missing: Collection[int] = self._machine.waiting_for
        answered = asked - len(missing)
        if self._machine.state is ServerState.INVITING:
            missing = self._expected.missing(self._machine, self._left)
            answered = len(self._machine.advertised)
        offline = self._expected.offline(missing)
        return SessionWaiting(stage, answered, answered + len(missing), offline, seconds)

    def _review_joining(self) -> None:
        """While clients join, decide how long to wait for more. The caller holds the machine's lock, or no
        task does."""
        if self._machine.state is not ServerState.INVITING:
            return
        wait = self._expected.wait(self._machine, self._left)
        if wait is not JoinWait.SHORTLY:
            self._joined_by = math.inf
        elif self._joined_by == math.inf:
            self._joined_by = trio.current_time() + self._deadlines.absent
        self._is_complete = self._is_complete or wait is JoinWait.NO_MORE
        self._notify_changed()

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _complete(self) -> None:
        self._is_complete = True
        self._notify_changed()

    def _report_traffic(self) -> None:
        """Report the bytes of each stage that were counted since the last report."""
        for stage in Stage:
            now = self.bytes_up[stage], self.bytes_down[stage]
            up, down = self._reported.get(stage, (0, 0))
            self._reported[stage] = now
            if now != (up, down):
                self._on_event(TrafficCounted(stage, now[0] - up, now[1] - down))

    def _dismiss_latecomers(self) -> None:
        """Send a farewell to the clients that were invited but did not join in time, and forget them."""
        for member in set(self._links) - set(self._machine.advertised):
            self._send_farewell(self._links.pop(member))

    def _send_farewell(self, link: Link) -> None:
        farewell = m.Farewell(invitation_digest(self._machine.invitation)).encode()
        self._count_down(farewell)
        with suppress(SlowReader):  # a client that reads nothing is not notified
            link.send(farewell)

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[None]:
        """Context manager: hold the machine's lock, and at the end make the calls that `_later` queued."""
        async with self._machine_lock:
            try:
                yield
            finally:
                self._catch_up()

    def _later(self, act: Callable[[], tuple[ServerEvent, ...]]) -> None:
        """Call `act` and record its events: at once, or as soon as no task holds the machine's lock."""
        self._pending.append(act)
        if not self._machine_lock.locked():
            self._catch_up()

    def _catch_up(self) -> None:
        while self._pending:
            self._note_aside(self._pending.pop(0)())

    def _note_aside(self, happened: Iterable[ServerEvent]) -> None:
        """Record events that a client caused. If the ledger fails, `_run_stage` raises its error later."""
        try:
            self._note(happened)
        except LocalError as error:
            self._failure = error
            self._complete()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _act(self, step: ServerStep) -> None:
        """Record the events of `step`, and only then send its frames, which may tell clients of a total."""
        self._note(step.events)
        self._send(step.outgoing)

    def _note(self, happened: Iterable[ServerEvent]) -> None:
        for event in happened:
            if self._ledger is not None:
                self._ledger.note(event)
            self._on_machine_event(event)
            self._on_event(event)
            match event:
                case events.StageFull():
                    self._complete()
                case events.Excluded():
                    self._remove(event.peer, event.error)
        self._review_joining()

    def _remove(self, member: int, error: PeerError) -> None:
        link = self._links.pop(member, None)
        if link is None:
            if isinstance(error, Lie | Dispute):  # found out after it left
                self._on_event(ClientExcluded(member, error))
            return
        self._left.add(member)
        match error:
            case LargeCohort():
                self._send_farewell(link)  # the client did nothing wrong, and may join the next session
                self._on_event(ClientLeft(member, LeaveReason.COHORT_FULL))
            case Departed():
                joined = member in self._joined
                reason = LeaveReason.LEFT_SESSION if joined else LeaveReason.REFUSED_INVITATION
                self._on_event(ClientLeft(member, reason))
            case _:
                self._exclude(link, error)

    # --- sending frames ---

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for packet in outgoing:
            for member in packet.receivers:
                self._send_to(member, packet.frame)

    def _stage_now(self) -> Stage:
        self._current = STAGE_OF.get(self._machine.state, self._current)
        return self._current

    def _count_down(self, frame: bytes) -> None:
        stage = self._stage_now()
        self.bytes_down[stage] += len(frame)
        self.frames_down[stage] += 1

    def _send_to(self, member: int, frame: bytes) -> None:
        link = self._links.get(member)
        if link is None:
            return  # the client has just left
        self._count_down(frame)
        try:
            link.send(frame)
        except SlowReader as error:
            self._exclude(link, error)
