"""Runs the server and the worker pool of a channel in a thread with a trio event loop.

The thread that runs the algorithm blocks while the event loop works for it. The thread of the event loop is a
daemon: if the main thread ends, the program and its workers end too (see `sims.workers`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio

from protocols.algorithm import AnyAlgorithm
from secagg import Identity, Trust
from secagg.client_memory import AnswerEntry
from secagg.errors import Closed
from secagg.insecure_seeds import seeded_identity
from secagg.net.certificates import make_certificate
from secagg.net.event_log import render
from secagg.net.event_loop_thread import EventLoopThread
from secagg.net.events import ClientExcluded, ServerNetworkEvent
from secagg.net.open_client_and_server import open_server
from secagg.net.server import Server
from secagg.net.settings import Capacity, Patience
from secagg.net.tls import server_context
from sims.process_resources import raise_open_file_limit
from sims.records.sum_records import Refusal
from sims.runtime.hosted_channel import OnWorkerEvent
from sims.runtime.hosted_clients import (
    ClientFactory,
    ClientFailure,
    RestoreState,
    RoundFinished,
    WorkersFailed,
    pack_algorithm,
)
from sims.runtime.processes import messages
from sims.runtime.processes.client_host import host_clients
from sims.text_format import counted
from sims.workers import (
    WorkerEvent,
    WorkerExited,
    WorkerPool,
    WorkerStartError,
    WorkerUnavailable,
    open_worker_pool,
)

T = TypeVar("T")

# A local connection breaks only if its process ends, so the server waits only `grace` seconds for a client to
# reconnect. The other times are long, since only a hanging client reaches them.
PATIENCE: Final = Patience(handshake=120, silence=600, grace=0.05)
_CAPACITY: Final = Capacity(uploads=8, strangers=4096)
_DESCRIPTORS: Final = 128  # open files, besides some for each client and worker
_ATTEMPTS: Final = 3  # attempts to start a worker that is killed each time
_PRELOAD: Final = ("numpy", "cryptography", "trio", "secagg", "secagg.net.client", host_clients.__module__)


@dataclass
class WorkerSlot:
    """A group of clients, and the worker process that hosts these clients now."""

    members: tuple[int, ...]
    indices: list[int] = field(default_factory=list)  # in the pool, of all workers so far, the current last
    exited: WorkerExited | None = None  # how the current worker ended; None while it runs
    ready: bool = False  # whether the current worker has made its clients
    failed_starts: int = 0  # number of failed starts in a row
    reply: messages.WorkerReply | None = None  # to the last command; None until it arrives
    saved: Mapping[int, bytes] | None = field(default=None, repr=False)  # states, with personal models
    answered: dict[int, list[AnswerEntry]] = field(default_factory=dict, repr=False)  # since `saved`
    causes: list[str] = field(default_factory=list)  # causes of earlier exits other than by a signal

    @property
    def index(self) -> int:
        return self.indices[-1]


class WorkerSupervisor:
    """Runs the server, and a worker process for each of `groups` (of client ids), from a thread with an event
    loop. Call `start` once, and `stop` at the end. `saved` has clients' states by group index, then by id."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clients: ClientFactory,
        groups: Iterable[tuple[int, ...]],
        *,
        trust: Trust,
        insecure_seed: bytes | None,
        on_worker_event: OnWorkerEvent,
        saved: Mapping[int, Mapping[int, bytes]] | None = None,
    ) -> None:
        self._algorithm = pack_algorithm(algorithm)
        self._clients = clients
        self._trust = trust
        self._seed = insecure_seed
        self._on_worker_event = on_worker_event
        self.slots = [WorkerSlot(tuple(members)) for members in groups]
        for slot_index, state in (saved or {}).items():
            self.slots[slot_index].saved = state
        self._identity = Identity.generate()
        self._certificate = make_certificate(self._identity, now=int(time.time()))
        self._credentials = {member: self._make_credentials(member) for member in clients.owned}
        self.keys = {k: Identity.from_secret(each.secret).public for k, each in self._credentials.items()}
        self._loop: EventLoopThread[None] | None = None  # None until it has started
        self._changed = trio.Event()
        self.pool: WorkerPool
        self.server: Server
        self.client_failure: str | None = None
        self.refused: dict[int, Refusal] = {}
        self.on_client_failure: Callable[[], None] = lambda: None

    def _make_credentials(self, member: int) -> messages.SimulatedCredentials:
        """Return a signing key, drawn from the seed if there is one, and a certificate for a client."""
        key = Identity.generate() if self._seed is None else seeded_identity(self._seed, member)
        return messages.SimulatedCredentials(key.secret(), make_certificate(key, now=int(time.time())))

    # --- called from the algorithm's thread ---

    def start(self) -> None:
        """Start the event loop's thread and the workers, and wait until they are ready. Raise `WorkersFailed`
        if a worker cannot start, and `ParameterError` if the system allows too few open files."""
        raise_open_file_limit(3 * len(self._credentials) + 2 * len(self.slots) + _DESCRIPTORS)
        try:
            self._loop = EventLoopThread(self._running, name="the clients' processes")
        except (WorkerStartError, OSError) as error:
            raise WorkersFailed(f"the clients' processes cannot be started: {error}") from None

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the event loop and return its result, or raise why the loop has ended."""
        if self._loop is None:
            raise WorkersFailed("the clients' processes were not started")
        try:
            return self._loop.call(function, *args)
        except Closed:
            raise WorkersFailed("the clients' processes were ended") from None
        except OSError as error:
            raise WorkersFailed(f"the clients' processes cannot go on: {error}") from None

    def stop(self) -> None:
        """End all workers and the thread, and wait until they have ended."""
        if self._loop is not None:
            with suppress(Exception):  # nothing is wanted from them any more
                self._loop.close()

    # --- in the event loop's thread ---

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Run the server and the workers during the block, which begins when the workers are ready."""
        certificates = [each.certificate for each in self._credentials.values()]
        async with (
            open_server(
                "127.0.0.1:0",
                members=self.keys,
                context=server_context(self._identity, self._certificate, certificates),
                patience=PATIENCE,
                capacity=_CAPACITY,
                on_event=self._on_event,
            ) as self.server,
            open_worker_pool(
                host_clients,
                [self._config(slot) for slot in self.slots],
                preload=(*_PRELOAD, *self._clients.preload, self._clients.make.__module__),
                grows=True,
            ) as self.pool,
            trio.open_nursery() as nursery,
        ):
            for index, slot in enumerate(self.slots):
                slot.indices.append(index)
            nursery.start_soon(self._listen)
            await self._prepare(self.slots)
            yield
            nursery.cancel_scope.cancel()

    def _config(self, slot: WorkerSlot) -> messages.WorkerConfig:
        return messages.WorkerConfig(
            algorithm=self._algorithm,
            trust=self._trust,
            make=self._clients.make,
            shared=self._clients.shared,
            credentials={member: self._credentials[member] for member in slot.members},
            address=self.server.address,
            server=self._certificate,
            keys=self.keys,
            patience=PATIENCE,
            insecure_seed=self._seed,
        )

    def _on_event(self, event: ServerNetworkEvent) -> None:
        if isinstance(event, ClientExcluded):  # The server excludes only clients that violate the protocol.
            self._on_worker_event(str(render(event)))

    # --- workers ---

    async def _prepare(self, slots: list[WorkerSlot]) -> None:
        """Have workers make and restore their clients, and wait. Raise `WorkersFailed` if a start failed."""
        for slot in slots:
            with suppress(WorkerUnavailable):
                for member in slot.members:
                    await self.pool.send(
                        slot.index, messages.LoadClientData(member, self._clients.owned[member])
                    )
        await self.command(
            {self.slots.index(slot): RestoreState(slot.saved, slot.answered) for slot in slots}
        )
        for slot in slots:
            self._check_start(slot)

    def _check_start(self, slot: WorkerSlot) -> None:
        """Record whether the new worker of `slot` still runs. Raise `WorkersFailed` if it ended otherwise
        than by a signal, or if `_ATTEMPTS` starts in a row failed."""
        slot.ready = slot.exited is None
        slot.failed_starts = 0 if slot.exited is None else slot.failed_starts + 1
        if slot.exited is not None and (slot.exited.signal is None or slot.failed_starts == _ATTEMPTS):
            raise WorkersFailed(f"{_named(slot)} did not start: {slot.exited.cause}")

    def pids(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each slot, the process ids of its workers so far; the current worker is last."""
        known = self.pool.pids()
        return tuple(tuple(known[index] for index in slot.indices) for slot in self.slots)

    async def restart_workers(self) -> bool:
        """Restart the workers that have ended. Return whether any had ended. Raise `WorkersFailed` if a
        worker ended twice with the same error, or cannot be restarted."""
        dead = [slot for slot in self.slots if slot.exited is not None]
        for slot in dead:
            assert slot.exited is not None
            self._check_cause(slot, slot.exited)
            self._on_worker_event(f"{_named(slot)} is started again: it was {slot.exited.cause}")
            slot.exited, slot.ready = None, False
            try:
                slot.indices.append(await self.pool.spawn(self._config(slot)))
            except WorkerStartError as error:
                raise WorkersFailed(f"{_named(slot)} cannot be started again: {error}") from None
        if dead:
            await self._prepare(dead)
        return bool(dead)

    def _check_cause(self, slot: WorkerSlot, ended: WorkerExited) -> None:
        """Remember the error with which a worker of `slot` ended; ignore a kill by a signal. Raise
        `WorkersFailed` if an earlier worker of the slot ended with the same error."""
        if ended.signal is None:
            if ended.cause in slot.causes:
                raise WorkersFailed(f"{_named(slot)} has ended twice in the same way: {ended.cause}")
            slot.causes.append(ended.cause)

    async def restore(self, saved: Mapping[int, Mapping[int, bytes]]) -> None:
        """Replace the states of all clients by `saved`: by the index of their slot, and then by id. A worker
        that has ended has no clients; the next one of its slot begins with these states."""
        for slot_index, states in saved.items():
            self.slots[slot_index].saved, self.slots[slot_index].answered = states, {}
        await self.command({slot_index: RestoreState(states, {}) for slot_index, states in saved.items()})

    async def command(self, commands: Mapping[int, object]) -> dict[int, messages.WorkerReply]:
        """Send each slot's worker its command, and wait for the replies. Return them by slot index; a worker
        that has ended has no reply. Raise `WorkersFailed` if a client's computation failed."""
        for slot_index, message in commands.items():
            slot = self.slots[slot_index]
            slot.reply = None
            with suppress(WorkerUnavailable):  # A `WorkerExited` follows.
                await self.pool.send(slot.index, message)
        slots = {slot_index: self.slots[slot_index] for slot_index in commands}
        while any(slot.reply is None and slot.exited is None for slot in slots.values()):
            await self._change()
        return {slot_index: slot.reply for slot_index, slot in slots.items() if slot.reply is not None}

    async def wait_for_refusals(self, members: set[int]) -> None:
        """Wait until each of these clients has reported why it refused a message, or its worker has ended."""
        while not members <= self.refused.keys() | self._without_worker():
            await self._change()

    def _without_worker(self) -> set[int]:
        return {member for slot in self.slots if slot.exited is not None for member in slot.members}

    async def _change(self) -> None:
        await self._changed.wait()
        self.raise_client_failure()

    def raise_client_failure(self) -> None:
        if self.client_failure is not None:
            raise WorkersFailed(self.client_failure)

    async def _listen(self) -> None:
        async for event in self.pool.events():
            self._on_worker(event)
            self._changed.set()
            self._changed = trio.Event()

    def _on_worker(self, event: WorkerEvent) -> None:
        slot = next((slot for slot in self.slots if slot.index == event.index), None)
        if slot is None:
            return  # The worker was replaced.
        if isinstance(event, WorkerExited):
            slot.exited = event
            if slot.ready:
                self._on_worker_event(f"{_named(slot)} has ended: {event.cause}")
            return
        match event.message:
            case messages.CommandDone() as done:
                slot.reply = done
            case RoundFinished() as finished:
                slot.reply, slot.saved, slot.answered = finished, finished.saved, {}
            case messages.AnswerRecorded(member, entry):
                slot.answered.setdefault(member, []).append(entry)
            case Refusal() as refused:
                self.refused[refused.member] = refused
            case ClientFailure(text):
                self.client_failure = text
                self.on_client_failure()


def _named(slot: WorkerSlot) -> str:
    return f"the process of {counted(len(slot.members), 'client')} from {slot.members[0]} on"
