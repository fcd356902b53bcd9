"""Where a channel meets its workers: a thread with an event loop, in which the server and the crew live.

The algorithm's own thread stays synchronous, and waits here for what it asks. The event loop's thread does
not keep the program alive: if the main thread ends without a word, so does everything, and workers with it
(see `sims.workers.os_processes`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio

from protocols.algorithm import AnyAlgorithm
from secagg import Identity, Trust
from secagg.errors import SecaggError
from secagg.memory import AnswerEntry
from secagg.net.event_log import render
from secagg.net.events import ClientExcluded, ServerNetworkEvent
from secagg.net.server import Server, open_server
from secagg.net.settings import Capacity, Patience
from secagg.net.tls import make_certificate, server_context
from secagg.seeded import seeded_identity
from sims.runtime.processes.client_host import host_clients
from sims.runtime.processes.messages import (
    AnswerRecorded,
    ClientData,
    ClientFactory,
    ClientFailure,
    CommandDone,
    Credentials,
    Refusal,
    RestoreState,
    RoundFinished,
    WorkerConfig,
    WorkerReply,
    pack_algorithm,
)
from sims.text_format import counted
from sims.workers import (
    WorkerEvent,
    WorkerExited,
    WorkerPool,
    WorkerStartError,
    WorkerUnavailable,
    open_worker_pool,
)
from sims.workers.os_processes import raise_open_file_limit

T = TypeVar("T")

# A connection on one machine does not break unless its process has: whoever is gone has left at once. All
# else is generous, since only what hangs takes so long.
PATIENCE: Final = Patience(handshake=120, silence=600, grace=0.05)
_CAPACITY: Final = Capacity(uploads=8, strangers=4096)
_DESCRIPTORS: Final = 128  # files, besides some for each client and worker
_ATTEMPTS: Final = 3  # to start a worker that is killed each time
_PRELOAD: Final = ("numpy", "cryptography", "trio", "secagg", "secagg.net.client", host_clients.__module__)

Tell = Callable[[str], None]


class WorkersFailed(SecaggError):
    """The clients' processes cannot work, which is no drop-out: it would happen again."""


@dataclass
class WorkerSlot:
    """One worker's place: whom it hosts, and the process that sits there now."""

    members: tuple[int, ...]
    indices: list[int] = field(default_factory=list)  # in the crew, of all who have sat here
    gone: WorkerExited | None = None
    settled: bool = False
    failed_starts: int = 0  # workers in a row that did not live to be settled
    reply: WorkerReply | None = None
    saved: Mapping[int, bytes] | None = field(default=None, repr=False)  # personal models among it
    answered: dict[int, list[AnswerEntry]] = field(default_factory=dict, repr=False)  # since then
    causes: list[str] = field(default_factory=list)  # of its earlier deaths, unless it was killed

    @property
    def index(self) -> int:
        return self.indices[-1]


class WorkerSupervisor:
    """Server, crew, and the thread that they live in. To be started once and stopped once."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clients: ClientFactory,
        groups: Iterable[tuple[int, ...]],
        *,
        trust: Trust,
        insecure_seed: bytes | None,
        tell: Tell,
        saved: Mapping[int, Mapping[int, bytes]] | None = None,
    ) -> None:
        self._algorithm = pack_algorithm(algorithm)
        self._clients = clients
        self._trust = trust
        self._seed = insecure_seed
        self._tell = tell
        self.slots = [WorkerSlot(tuple(members)) for members in groups]
        for place, state in (saved or {}).items():
            self.slots[place].saved = state
        self._identity = Identity.generate()
        self._certificate = make_certificate(self._identity, now=int(time.time()))
        self._credentials = {member: self._make_credentials(member) for member in clients.owned}
        self.keys = {k: Identity.from_secret(each.secret).public for k, each in self._credentials.items()}
        self._thread = threading.Thread(target=self._run, name="clients' processes", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._stopping: trio.Event
        self._changed: trio.Event
        self.pool: WorkerPool
        self.server: Server
        self.trouble: str | None = None
        self.refused: dict[int, Refusal] = {}
        self.on_trouble: Callable[[], None] = lambda: None

    def _make_credentials(self, member: int) -> Credentials:
        """It stays the same for as long as there is this office, whatever happens to workers."""
        key = Identity.generate() if self._seed is None else seeded_identity(self._seed, member)
        return Credentials(key.secret(), make_certificate(key, now=int(time.time())))

    # --- the algorithm's thread ---

    def start(self) -> None:
        """Raises `WorkersFailed`, naming what a worker said."""
        raise_open_file_limit(3 * len(self._credentials) + 2 * len(self.slots) + _DESCRIPTORS)
        self._thread.start()
        self._started.wait()
        self._raise_failure()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Have the event loop do something, and wait for it."""
        try:
            return trio.from_thread.run(function, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            self._raise_failure()
            raise WorkersFailed("the clients' processes were ended") from None

    def stop(self) -> None:
        """End all workers, and wait until they have ended."""
        if self._thread.is_alive():
            with suppress(trio.RunFinishedError):
                trio.from_thread.run_sync(self._stopping.set, trio_token=self._token)
            self._thread.join()

    def _raise_failure(self) -> None:
        match self._failure:
            case None:
                return
            case WorkerStartError() | OSError():
                raise WorkersFailed(f"the clients' processes cannot be started: {self._failure}") from None
            case _:
                raise self._failure

    # --- the event loop's thread ---

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseExceptionGroup as group:
            self._failure = _first(group)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stopping, self._changed = trio.Event(), trio.Event()
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
            await self._set_up(self.slots)
            self._started.set()
            await self._stopping.wait()
            nursery.cancel_scope.cancel()

    def _config(self, slot: WorkerSlot) -> WorkerConfig:
        return WorkerConfig(
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
        if isinstance(event, ClientExcluded):  # which no client of a simulation should be
            self._tell(str(render(event)))

    # --- workers ---

    async def _set_up(self, slots: list[WorkerSlot]) -> None:
        """Hand over what belongs to clients, and wait until everything is made. Raises `WorkersFailed`."""
        for slot in slots:
            with suppress(WorkerUnavailable):
                for member in slot.members:
                    await self.pool.send(slot.index, ClientData(member, self._clients.owned[member]))
        await self.order({self.slots.index(slot): RestoreState(slot.saved, slot.answered) for slot in slots})
        for slot in slots:
            self._check_start(slot)

    def _check_start(self, slot: WorkerSlot) -> None:
        """Who is killed while it starts is not there in the next round. More than so often is no accident."""
        slot.settled = slot.gone is None
        slot.failed_starts = 0 if slot.gone is None else slot.failed_starts + 1
        if slot.gone is not None and (slot.gone.signal is None or slot.failed_starts == _ATTEMPTS):
            raise WorkersFailed(f"{_named(slot)} did not start: {slot.gone.cause}")

    def pids(self) -> tuple[tuple[int, ...], ...]:
        """The processes that have sat at every desk, the last one last."""
        known = self.pool.pids()
        return tuple(tuple(known[index] for index in slot.indices) for slot in self.slots)

    async def restart_workers(self) -> bool:
        """Put a new worker in the place of each that has ended; whether there was any.

        Raises `WorkersFailed` for one that ends in the same way again.
        """
        dead = [slot for slot in self.slots if slot.gone is not None]
        for slot in dead:
            assert slot.gone is not None
            self._check_cause(slot, slot.gone)
            self._tell(f"{_named(slot)} is started again: it was {slot.gone.cause}")
            slot.gone, slot.settled = None, False
            try:
                slot.indices.append(await self.pool.spawn(self._config(slot)))
            except WorkerStartError as error:
                raise WorkersFailed(f"{_named(slot)} cannot be started again: {error}") from None
        if dead:
            await self._set_up(dead)
        return bool(dead)

    def _check_cause(self, slot: WorkerSlot, ended: WorkerExited) -> None:
        """To be killed is a drop-out. To fail at the same place twice is a mistake, and would go on."""
        if ended.signal is None:
            if ended.cause in slot.causes:
                raise WorkersFailed(f"{_named(slot)} has ended twice in the same way: {ended.cause}")
            slot.causes.append(ended.cause)

    async def order(self, orders: Mapping[int, object]) -> dict[int, WorkerReply]:
        """Give orders, by place, and wait until each was carried out or its worker has ended."""
        for place, message in orders.items():
            slot = self.slots[place]
            slot.reply = None
            with suppress(WorkerUnavailable):  # which the news tell
                await self.pool.send(slot.index, message)
        slots = {place: self.slots[place] for place in orders}
        while any(slot.reply is None and slot.gone is None for slot in slots.values()):
            await self._change()
        return {place: slot.reply for place, slot in slots.items() if slot.reply is not None}

    async def wait_for_refusals(self, members: set[int]) -> None:
        """Clients that have left say why, if not at once."""
        while not members <= self.refused.keys() | self._without_worker():
            await self._change()

    def _without_worker(self) -> set[int]:
        return {member for slot in self.slots if slot.gone is not None for member in slot.members}

    async def _change(self) -> None:
        await self._changed.wait()
        self.raise_trouble()

    def raise_trouble(self) -> None:
        if self.trouble is not None:
            raise WorkersFailed(self.trouble)

    async def _listen(self) -> None:
        async for events in self.pool.events():
            self._hear(events)
            self._changed.set()
            self._changed = trio.Event()

    def _hear(self, events: WorkerEvent) -> None:
        slot = next((slot for slot in self.slots if slot.index == events.index), None)
        if slot is None:
            return  # of one that was replaced
        if isinstance(events, WorkerExited):
            slot.gone = events
            if slot.settled:
                self._tell(f"{_named(slot)} has ended: {events.cause}")
            return
        match events.message:
            case CommandDone() as done:
                slot.reply = done
            case RoundFinished() as finished:
                slot.reply, slot.saved, slot.answered = finished, finished.saved, {}
            case AnswerRecorded(member, entry):
                slot.answered.setdefault(member, []).append(entry)
            case Refusal() as refused:
                self.refused[refused.member] = refused
            case ClientFailure(text):
                self.trouble = text
                self.on_trouble()


def _named(slot: WorkerSlot) -> str:
    return f"the process of {counted(len(slot.members), 'client')} from {slot.members[0]} on"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
