"""One session of secure sums with clients in worker processes, with the interface of `LocalSession`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import trio

from secagg import Trust
from secagg.errors import Departed
from secagg.events import Excluded, ServerEvent
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.net.nursery_and_threads import inline
from secagg.net.settings import DAY, Deadlines
from secagg.sum_spec import Total
from sims.coordination.network_session import NetworkSession, NetworkSessionSettings
from sims.runtime.insecure_seed_hooks import server_hooks
from sims.runtime.processes.messages import JoinSession, ScheduleDropouts
from sims.runtime.processes.supervisor import WorkerSupervisor
from sims.runtime.secure import server_machine
from sims.runtime.session_channel import SimulatedSessionPlan

# A stage ends when every client has answered or is known to be gone. Only a hanging client takes this long.
_DEADLINES: Final = Deadlines(join=600, share=600, mask=DAY, confirm=600, reveal=600)
_EXPLAINING: Final = 2.0  # most seconds to wait for the reasons of clients that refused a message
_SET_UP: Final = (Stage.ADVERTISE, Stage.SHARE)
_SET_UP_HYBRID: Final = (*_SET_UP, Stage.DEPOSIT)
_IN_A_SUM: Final = (Stage.MASK, Stage.CONFIRM, Stage.REVEAL)
_IN_A_SUM_UNSIGNED: Final = (Stage.MASK, Stage.REVEAL)

SlotOf: TypeAlias = Callable[[int], int]  # the worker slot of a client
Missing: TypeAlias = Callable[[int, Stage], bool]  # whether a client is to drop out at a stage


class ProcessSession(NetworkSession):
    """A session of secure sums with clients in worker processes, which drop out on schedule. It runs in the
    event loop of the supervisor's thread."""

    def __init__(
        self, plan: SimulatedSessionPlan, supervisor: WorkerSupervisor, slot: SlotOf, missing: Missing
    ) -> None:
        self._simulated = plan
        self._supervisor = supervisor
        self._slot = slot
        self._missing = missing
        self._departed: set[int] = set()  # clients that refused a message in the current sum
        self._refusers: set[int] = set()  # clients that refused a message in this session
        self.dropped: set[int] = set()  # clients that dropped out on schedule
        settings = NetworkSessionSettings(
            make_machine=partial(server_machine, plan, supervisor.keys),
            least=plan.policy.min_cohort,
            deadlines=_DEADLINES,
            hooks=server_hooks(seed=plan.setting.insecure_seed, number=plan.number),
            on_event=self._note_departure,
            work=inline,
        )
        super().__init__(plan, supervisor.server, supervisor.call, settings)

    @property
    def lost(self) -> bool:
        """Return whether a client has left, except clients that left because they refused a message."""
        return bool(set(self._plan.members) - set(self._machine.members) - self._refusers)

    # --- in the event loop ---

    async def _open(self) -> None:
        plan, slots = self._simulated, dict[int, list[int]]()
        for member in plan.members:
            slots.setdefault(self._slot(member), []).append(member)
        await self._supervisor.command(
            {slot: JoinSession(plan.number, tuple(some), plan.policy) for slot, some in slots.items()}
        )
        plan.on_stage(Stage.ADVERTISE)
        hybrid = plan.policy.key_agreement is KeyAgreement.HYBRID
        dropouts = await self._schedule_dropouts(_SET_UP_HYBRID if hybrid else _SET_UP)
        try:
            await super()._open()
        finally:
            self.dropped |= dropouts - set(self._machine.members)

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
        signed = self._simulated.policy.trust is Trust.MALICIOUS
        dropouts = await self._schedule_dropouts(_IN_A_SUM if signed else _IN_A_SUM_UNSIGNED)
        before = self._machine.sums_asked
        self._departed.clear()
        self._supervisor.refused.clear()
        with trio.CancelScope() as scope:
            self._supervisor.on_client_failure = scope.cancel
            try:
                return await super()._ask(kind, payload, round_number)
            finally:
                self._supervisor.on_client_failure = lambda: None
                self.dropped |= dropouts - set(self._machine.members)
                await self._cancel_dropouts(dropouts - self.dropped)
                if self._machine.sums_asked > before:
                    await self._record_refusals()
        self._supervisor.raise_client_failure()
        raise AssertionError("only a failure of a client cancels")

    async def _cancel_dropouts(self, members: set[int]) -> None:
        """Cancel the drop-outs of these clients, because the sum ended before the stage of their drop-out."""
        await self._supervisor.command({self._slot(member): ScheduleDropouts({}) for member in members})

    async def _record_refusals(self) -> None:
        """Record why clients refused a message. Wait 2 seconds at most for their reasons."""
        with trio.move_on_after(_EXPLAINING):
            await self._supervisor.wait_for_refusals(self._departed)
        self.stats.refusals = list(self._supervisor.refused.values())

    def _note_departure(self, event: ServerEvent) -> None:
        match event:
            case Excluded(peer, Departed()):
                self._departed.add(peer)
                self._refusers.add(peer)
