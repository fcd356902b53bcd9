"""One session of secure sums with clients in worker processes, with the interface of `LocalSession`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import trio

from protocols.query_encoding import query_content
from secagg import Registry, Trust
from secagg import messages as m
from secagg.errors import Departed, TooFewClients
from secagg.events import Confirmed, Excluded, ServerEvent, SessionReady
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import STAGE_OF, Stage
from secagg.machine_hooks import ServerHooks
from secagg.net.nursery_and_threads import inline
from secagg.net.server_session import Session
from secagg.net.settings import DAY, Deadlines
from secagg.server import ServerMachine
from secagg.sum_spec import Total
from secagg.transitions import ServerState
from sims.records.sum_records import Exclusion
from sims.runtime.channel_interfaces import SessionGraph, SessionPlan, SumStats, rows_of
from sims.runtime.insecure_seed_hooks import server_hooks
from sims.runtime.processes.messages import JoinSession, ScheduleDropouts
from sims.runtime.processes.supervisor import WorkerSupervisor

# A stage ends when every client has answered or is known to be gone. Only a hanging client takes this long.
_DEADLINES: Final = Deadlines(join=600, share=600, mask=DAY, confirm=600, reveal=600)
_EXPLAINING: Final = 2.0  # most seconds to wait for the reasons of clients that refused a message
_SET_UP: Final = (Stage.ADVERTISE, Stage.SHARE)
_SET_UP_HYBRID: Final = (*_SET_UP, Stage.DEPOSIT)
_IN_A_SUM: Final = (Stage.MASK, Stage.CONFIRM, Stage.REVEAL)
_IN_A_SUM_UNSIGNED: Final = (Stage.MASK, Stage.REVEAL)

SlotOf: TypeAlias = Callable[[int], int]  # the worker slot of a client
Missing: TypeAlias = Callable[[int, Stage], bool]  # whether a client is to drop out at a stage


class ProcessSession:
    """A session of secure sums with clients in worker processes. It runs in the event loop of the
    supervisor's thread, and its public methods block until that loop has done their work."""

    is_plain = False

    def __init__(
        self, plan: SessionPlan, supervisor: WorkerSupervisor, slot: SlotOf, missing: Missing
    ) -> None:
        self._plan = plan
        self._supervisor = supervisor
        self._slot = slot
        self._missing = missing
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._counts = _SumCounts()
        hooks = server_hooks(seed=plan.setting.insecure_seed, number=plan.number)
        observed = replace(hooks, on_stage=self._enter, on_message=lambda *each: self._counts.add(*each))
        self._machine = _server(plan, supervisor.keys, observed)
        self._departed: set[int] = set()  # clients that refused a message in the current sum
        self._refusers: set[int] = set()  # clients that refused a message in this session
        self.dropped: set[int] = set()  # clients that dropped out on schedule
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
    def lost(self) -> bool:
        """Return whether a client has left, except clients that left because they refused a message."""
        return bool(set(self._plan.members) - set(self._machine.members) - self._refusers)

    def open(self) -> None:
        self._supervisor.call(self._open)

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        return self._supervisor.call(partial(self._ask, kind, payload, round_number))

    def end(self) -> None:
        self._supervisor.call(self._stack.aclose)

    # --- in the event loop ---

    async def _open(self) -> None:
        plan, slots = self._plan, dict[int, list[int]]()
        for member in plan.members:
            slots.setdefault(self._slot(member), []).append(member)
        await self._supervisor.command(
            {slot: JoinSession(plan.number, tuple(some), plan.policy) for slot, some in slots.items()}
        )
        self._stage_begins(Stage.ADVERTISE)
        hybrid = plan.policy.key_agreement is KeyAgreement.HYBRID
        dropouts = await self._schedule_dropouts(_SET_UP_HYBRID if hybrid else _SET_UP)
        here = set(plan.members) & set(self._supervisor.server.connected)
        if len(here) < plan.policy.min_cohort:
            raise TooFewClients.only(len(here), "came", plan.policy.min_cohort)
        setup = self._supervisor.server.session(
            self._machine,
            deadlines=_DEADLINES,
            ledger=plan.setting.ledger,
            expected=len(here),
            members=plan.members,
            on_event=self._observe,
            work=inline,
        )
        try:
            self._session = await self._stack.enter_async_context(setup)
        finally:
            self.dropped |= dropouts - set(self._machine.members)

    def _count(self, session: Session) -> None:
        """Share the byte and frame counters of `session`, to read them here even if its set-up fails."""
        self.bytes_up, self.bytes_down = session.bytes_up, session.bytes_down
        self.frames_up, self.frames_down = session.frames_up, session.frames_down

    async def _schedule_dropouts(self, stages: tuple[Stage, ...]) -> set[int]:
        """Tell the workers which clients drop out at one of these stages, and return the clients' ids."""
        dropouts: dict[int, dict[int, Stage]] = {}
        for member in set(self._plan.members) - self.dropped:
            for stage in stages:
                if self._missing(member, stage):
                    dropouts.setdefault(self._slot(member), {})[member] = stage
                    break
        await self._supervisor.command({slot: ScheduleDropouts(at) for slot, at in dropouts.items()})
        return {member for at in dropouts.values() for member in at}

    async def _ask(self, kind: str, payload: bytes, round_number: int) -> Total:
        assert self._session is not None
        signed = self._plan.policy.trust is Trust.MALICIOUS
        dropouts = await self._schedule_dropouts(_IN_A_SUM if signed else _IN_A_SUM_UNSIGNED)
        before = self._machine.sums_asked
        self._departed.clear()
        self._supervisor.refused.clear()
        with trio.CancelScope() as scope:
            self._supervisor.on_client_failure = scope.cancel
            try:
                total = await self._session.ask(kind, payload, round_number=round_number)
                self._confirm(len(self._session.contributors))
                return total
            finally:
                self._supervisor.on_client_failure = lambda: None
                self.dropped |= dropouts - set(self._machine.members)
                await self._cancel_dropouts(dropouts - self.dropped)
                if self._machine.sums_asked > before:
                    await self._record_stats()
        self._supervisor.raise_client_failure()
        raise AssertionError("only a failure of a client cancels")

    async def _cancel_dropouts(self, members: set[int]) -> None:
        """Cancel the drop-outs of these clients, because the sum ended before the stage of their drop-out."""
        await self._supervisor.command({self._slot(member): ScheduleDropouts({}) for member in members})

    def _confirm(self, contributors: int) -> None:
        """Tell the channel which clients know that they are in the total: those that revealed shares."""
        for member in sorted(self._counts.revealed):
            self._plan.listener(member, Confirmed(self._machine.sums_asked - 1, contributors))

    async def _record_stats(self) -> None:
        """Set `stats` to the counts of the ended sum. Wait 2 seconds at most for the reasons of refusals."""
        stats, machine, counts = self.stats, self._machine, self._counts
        stats.index, stats.invited = machine.sums_asked - 1, counts.invited
        stats.masked, stats.revealed = counts.masked, len(counts.revealed)
        stats.around = rows_of(machine.around)
        with trio.move_on_after(_EXPLAINING):
            await self._supervisor.wait_for_refusals(self._departed)
        stats.refusals = list(self._supervisor.refused.values())

    def _observe(self, event: ServerEvent) -> None:
        if self._session is None and (live := self._supervisor.server.live) is not None:
            self._count(live)
        match event:
            case SessionReady():
                self.graph = SessionGraph.of(event, len(self._machine.advertised))
            case Excluded(peer, Departed()):
                self._departed.add(peer)
                self._refusers.add(peer)
            case Excluded():
                self.stats.exclusions.append(Exclusion.of(event))

    def _enter(self, state: ServerState) -> None:
        if state is ServerState.MASKING:
            self._counts = _SumCounts(invited=len(self._machine.waiting_for))
        if state in STAGE_OF:
            self._stage_begins(STAGE_OF[state])

    def _stage_begins(self, stage: Stage) -> None:
        """Log that a stage begins. A call of `plan.absent` does so, for any client; its result is ignored."""
        self._plan.absent(self._plan.members[0], stage, self._machine.sums_asked - 1)


# --- the machine of the server ---


@dataclass
class _SumCounts:
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


def _server(plan: SessionPlan, keys: Mapping[int, bytes], hooks: ServerHooks) -> ServerMachine:
    """Return the server's protocol state machine for a session. `keys` has clients' public keys by id."""
    setting, policy = plan.setting, plan.policy
    return ServerMachine(
        table=plan.table,
        params=replace(
            setting.params,
            min_cohort=policy.min_cohort,
            max_cohort=policy.max_cohort,
            min_contributors=policy.min_contributors,
        ),
        registry=Registry(0, keys) if policy.trust is Trust.MALICIOUS else None,
        history=plan.history,
        content_of=query_content,
        barred=setting.barred,
        hooks=hooks,
    )
