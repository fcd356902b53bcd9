"""One session of secure sums with clients that are connected to a `Server`, for a coordinator.

The server runs in an event loop. The coordinator runs in another thread, and its calls block until the event
loop has done their work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from secagg import messages as m
from secagg.errors import Departed, TooFewClients
from secagg.events import Excluded, ServerEvent, SessionReady
from secagg.local_session import STAGE_OF, Stage
from secagg.machine_hooks import ServerHooks
from secagg.net.nursery_and_threads import RunFunction, in_thread
from secagg.net.server import Server
from secagg.net.server_session import Session
from secagg.net.settings import Deadlines
from secagg.server import ServerMachine
from secagg.sum_spec import Total
from secagg.transitions import ServerState
from sims.coordination.transport import SessionGraph, SessionPlan, SumStats, rows_of
from sims.records.sum_records import Exclusion

T = TypeVar("T")


class CallInLoop(Protocol):
    """Runs an async function in the event loop of a server, from another thread, and returns its result."""

    def __call__(self, function: Callable[..., Awaitable[T]], *args: Any) -> T: ...


@dataclass(frozen=True, kw_only=True)
class NetworkSessionSettings:
    """How a session runs on the network.

    `make_machine`  returns the server's machine with these hooks.
    `least`         fewest connected clients with which set-up begins.
    `deadlines`     of the stages.
    `on_event`      receives every event of the machine, after the ledger.
    `work`          runs slow computations of the server.
    """

    make_machine: Callable[[ServerHooks], ServerMachine]
    least: int
    deadlines: Deadlines
    hooks: ServerHooks = field(default_factory=ServerHooks)
    on_event: Callable[[ServerEvent], None] = lambda _event: None
    work: RunFunction = in_thread


class NetworkSession:
    """A session of secure sums over a network. `SumSession` describes its methods."""

    is_plain = False

    def __init__(
        self, plan: SessionPlan, server: Server, call: CallInLoop, settings: NetworkSessionSettings
    ) -> None:
        self._plan = plan
        self._server = server
        self._call = call
        self._settings = settings
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._counts = SumCounts()
        observed = replace(
            settings.hooks, on_stage=self._enter, on_message=lambda *each: self._counts.add(*each)
        )
        self._machine = settings.make_machine(observed)
        self.stats = SumStats()
        self.graph: SessionGraph | None = None
        self.bytes_up: Counter[Stage] = Counter()
        self.bytes_down: Counter[Stage] = Counter()
        self.frames_up: Counter[Stage] = Counter()
        self.frames_down: Counter[Stage] = Counter()

    @property
    def contributors(self) -> tuple[int, ...]:
        return () if self._session is None else self._session.contributors

    @property
    def informed(self) -> AbstractSet[int]:
        """The clients that know that they are in the last total: those that revealed shares."""
        return self._counts.revealed

    @property
    def members(self) -> tuple[int, ...]:
        """The clients that can still be asked."""
        return self._machine.members

    def open(self) -> None:
        self._call(self._open)

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        return self._call(partial(self._ask, kind, payload, round_number))

    def end(self) -> None:
        self._call(self._stack.aclose)

    # --- in the event loop ---

    async def _open(self) -> None:
        here = set(self._plan.members) & set(self._server.connected)
        if len(here) < self._settings.least:
            raise TooFewClients.only(len(here), "came", self._settings.least)
        setup = self._server.session(
            self._machine,
            deadlines=self._settings.deadlines,
            ledger=self._plan.settings.ledger,
            expected=len(here),
            members=self._plan.members,
            on_event=self._observe,
            work=self._settings.work,
        )
        self._session = await self._stack.enter_async_context(setup)

    async def _ask(self, kind: str, payload: bytes, round_number: int) -> Total:
        assert self._session is not None
        before = self._machine.sums_asked
        try:
            return await self._session.ask(kind, payload, round_number=round_number)
        finally:
            if self._machine.sums_asked > before:
                self._record_stats()

    def _record_stats(self) -> None:
        """Set `stats` to the counts of the ended sum."""
        stats, counts = self.stats, self._counts
        stats.index, stats.invited = self._machine.sums_asked - 1, counts.invited
        stats.masked, stats.revealed = counts.masked, len(counts.revealed)
        stats.around = rows_of(self._machine.around)

    def _observe(self, event: ServerEvent) -> None:
        if self._session is None and (live := self._server.live) is not None:
            self._count(live)
        match event:
            case SessionReady():
                self.graph = SessionGraph.of(event, len(self._machine.advertised))
            case Excluded(_, Departed()):
                pass
            case Excluded():
                self.stats.exclusions.append(Exclusion.of(event))
        self._settings.on_event(event)

    def _count(self, session: Session) -> None:
        """Share the byte and frame counters of `session`, to read them here even if its set-up fails."""
        self.bytes_up, self.bytes_down = session.bytes_up, session.bytes_down
        self.frames_up, self.frames_down = session.frames_up, session.frames_down

    def _enter(self, state: ServerState) -> None:
        if state is ServerState.MASKING:
            self._counts = SumCounts(invited=len(self._machine.waiting_for))
        if state in STAGE_OF:
            self._plan.on_stage(STAGE_OF[state])


@dataclass
class SumCounts:
    """Counts of the current sum: clients asked, masked inputs, and ids of clients that revealed shares."""

    invited: int = 0
    masked: int = 0
    revealed: set[int] = field(default_factory=set)

    def add(self, sender: int, message: m.Message) -> None:
        match message:
            case m.MaskedInput():
                self.masked += 1
            case m.Reveal():
                self.revealed.add(sender)
