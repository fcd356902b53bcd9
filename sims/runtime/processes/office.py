"""Where a channel meets its workers: a thread with an event loop, in which the server and the crew live.

The algorithm's own thread stays synchronous, and waits here for what it asks. The event loop's thread does
not keep the program alive: if the main thread ends without a word, so does everything, and workers with it
(see `sims.processes.lifeline`).
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
from secagg.net.certificates import make_certificate
from secagg.net.journal import Fact, Journal
from secagg.net.server import Server, open_server
from secagg.net.settings import Capacity, Patience
from secagg.net.tls import server_context
from secagg.seeded import seeded_identity
from sims.descriptors import make_room
from sims.processes import Crew, CrewFailed, Ended, News, WorkerGone, open_crew
from sims.runtime.processes.host import host
from sims.runtime.processes.orders import (
    Answered,
    Clients,
    Done,
    Finished,
    Owned,
    Passport,
    Refused,
    Reply,
    Seat,
    Settle,
    Trouble,
    pack_algorithm,
)
from sims.words import counted

T = TypeVar("T")

# A connection on one machine does not break unless its process has: whoever is gone has left at once. All
# else is generous, since only what hangs takes so long.
PATIENCE: Final = Patience(handshake=120, silence=600, grace=0.05)
_CAPACITY: Final = Capacity(uploads=8, strangers=4096)
_DESCRIPTORS: Final = 128  # files, besides some for each client and worker
_ATTEMPTS: Final = 3  # to start a worker that is killed each time
_PRELOAD: Final = ("numpy", "cryptography", "trio", "secagg", "secagg.net.client", host.__module__)

Tell = Callable[[str], None]


class WorkersFailed(SecaggError):
    """The clients' processes cannot work, which is no drop-out: it would happen again."""


@dataclass
class Desk:
    """One worker's place: whom it hosts, and the process that sits there now."""

    members: tuple[int, ...]
    indices: list[int] = field(default_factory=list)  # in the crew, of all who have sat here
    gone: Ended | None = None
    settled: bool = False
    stillborn: int = 0  # workers in a row that did not live to be settled
    reply: Reply | None = None
    saved: Mapping[int, bytes] | None = field(default=None, repr=False)  # personal models among it
    answered: dict[int, list[AnswerEntry]] = field(default_factory=dict, repr=False)  # since then
    causes: list[str] = field(default_factory=list)  # of its earlier deaths, unless it was killed

    @property
    def index(self) -> int:
        return self.indices[-1]


class Office:
    """Server, crew, and the thread that they live in. To be started once and stopped once."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clients: Clients,
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
        self.desks = [Desk(tuple(members)) for members in groups]
        for place, state in (saved or {}).items():
            self.desks[place].saved = state
        self._identity = Identity.generate()
        self._certificate = make_certificate(self._identity, now=int(time.time()))
        self._passports = {member: self._passport(member) for member in clients.owned}
        self.keys = {k: Identity.from_secret(each.secret).public for k, each in self._passports.items()}
        self._thread = threading.Thread(target=self._run, name="clients' processes", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._stopping: trio.Event
        self._changed: trio.Event
        self.crew: Crew
        self.server: Server
        self.trouble: str | None = None
        self.refused: dict[int, Refused] = {}
        self.on_trouble: Callable[[], None] = lambda: None

    def _passport(self, member: int) -> Passport:
        """It stays the same for as long as there is this office, whatever happens to workers."""
        key = Identity.generate() if self._seed is None else seeded_identity(self._seed, member)
        return Passport(key.secret(), make_certificate(key, now=int(time.time())))

    # --- the algorithm's thread ---

    def start(self) -> None:
        """Raises `WorkersFailed`, naming what a worker said."""
        make_room(3 * len(self._passports) + 2 * len(self.desks) + _DESCRIPTORS)
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
            case CrewFailed() | OSError():
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
        certificates = [each.certificate for each in self._passports.values()]
        async with (
            open_server(
                "127.0.0.1:0",
                members=self.keys,
                context=server_context(self._identity, self._certificate, certificates),
                patience=PATIENCE,
                capacity=_CAPACITY,
                journal=Journal(self._journal),
            ) as self.server,
            open_crew(
                host,
                [self._seat(desk) for desk in self.desks],
                preload=(*_PRELOAD, *self._clients.preload, self._clients.make.__module__),
                grows=True,
            ) as self.crew,
            trio.open_nursery() as nursery,
        ):
            for index, desk in enumerate(self.desks):
                desk.indices.append(index)
            nursery.start_soon(self._listen)
            await self._settle(self.desks)
            self._started.set()
            await self._stopping.wait()
            nursery.cancel_scope.cancel()

    def _seat(self, desk: Desk) -> Seat:
        return Seat(
            algorithm=self._algorithm,
            trust=self._trust,
            make=self._clients.make,
            shared=self._clients.shared,
            passports={member: self._passports[member] for member in desk.members},
            address=self.server.address,
            server=self._certificate,
            keys=self.keys,
            patience=PATIENCE,
            insecure_seed=self._seed,
        )

    def _journal(self, event: str, facts: Mapping[str, Fact]) -> None:
        if event == "excluded":  # which no client of a simulation should be
            self._tell(" ".join([event, *(f"{key} {value}" for key, value in facts.items())]))

    # --- workers ---

    async def _settle(self, desks: list[Desk]) -> None:
        """Hand over what belongs to clients, and wait until everything is made. Raises `WorkersFailed`."""
        for desk in desks:
            with suppress(WorkerGone):
                for member in desk.members:
                    await self.crew.send(desk.index, Owned(member, self._clients.owned[member]))
        await self.order({self.desks.index(desk): Settle(desk.saved, desk.answered) for desk in desks})
        for desk in desks:
            self._check_start(desk)

    def _check_start(self, desk: Desk) -> None:
        """Who is killed while it starts is not there in the next round. More than so often is no accident."""
        desk.settled = desk.gone is None
        desk.stillborn = 0 if desk.gone is None else desk.stillborn + 1
        if desk.gone is not None and (desk.gone.signal is None or desk.stillborn == _ATTEMPTS):
            raise WorkersFailed(f"{_named(desk)} did not start: {desk.gone.cause}")

    def pids(self) -> tuple[tuple[int, ...], ...]:
        """The processes that have sat at every desk, the last one last."""
        known = self.crew.pids()
        return tuple(tuple(known[index] for index in desk.indices) for desk in self.desks)

    async def revive(self) -> bool:
        """Put a new worker in the place of each that has ended; whether there was any.

        Raises `WorkersFailed` for one that ends in the same way again.
        """
        dead = [desk for desk in self.desks if desk.gone is not None]
        for desk in dead:
            assert desk.gone is not None
            self._check_cause(desk, desk.gone)
            self._tell(f"{_named(desk)} is started again: it was {desk.gone.cause}")
            desk.gone, desk.settled = None, False
            try:
                desk.indices.append(await self.crew.hire(self._seat(desk)))
            except CrewFailed as error:
                raise WorkersFailed(f"{_named(desk)} cannot be started again: {error}") from None
        if dead:
            await self._settle(dead)
        return bool(dead)

    def _check_cause(self, desk: Desk, ended: Ended) -> None:
        """To be killed is a drop-out. To fail at the same place twice is a mistake, and would go on."""
        if ended.signal is None:
            if ended.cause in desk.causes:
                raise WorkersFailed(f"{_named(desk)} has ended twice in the same way: {ended.cause}")
            desk.causes.append(ended.cause)

    async def order(self, orders: Mapping[int, object]) -> dict[int, Reply]:
        """Give orders, by place, and wait until each was carried out or its worker has ended."""
        for place, message in orders.items():
            desk = self.desks[place]
            desk.reply = None
            with suppress(WorkerGone):  # which the news tell
                await self.crew.send(desk.index, message)
        desks = {place: self.desks[place] for place in orders}
        while any(desk.reply is None and desk.gone is None for desk in desks.values()):
            await self._change()
        return {place: desk.reply for place, desk in desks.items() if desk.reply is not None}

    async def wait_for_refusals(self, members: set[int]) -> None:
        """Clients that have left say why, if not at once."""
        while not members <= self.refused.keys() | self._homeless():
            await self._change()

    def _homeless(self) -> set[int]:
        return {member for desk in self.desks if desk.gone is not None for member in desk.members}

    async def _change(self) -> None:
        await self._changed.wait()
        self.raise_trouble()

    def raise_trouble(self) -> None:
        if self.trouble is not None:
            raise WorkersFailed(self.trouble)

    async def _listen(self) -> None:
        async for news in self.crew.news():
            self._hear(news)
            self._changed.set()
            self._changed = trio.Event()

    def _hear(self, news: News) -> None:
        desk = next((desk for desk in self.desks if desk.index == news.index), None)
        if desk is None:
            return  # of one that was replaced
        if isinstance(news, Ended):
            desk.gone = news
            if desk.settled:
                self._tell(f"{_named(desk)} has ended: {news.cause}")
            return
        match news.message:
            case Done() as done:
                desk.reply = done
            case Finished() as finished:
                desk.reply, desk.saved, desk.answered = finished, finished.saved, {}
            case Answered(member, entry):
                desk.answered.setdefault(member, []).append(entry)
            case Refused() as refused:
                self.refused[refused.member] = refused
            case Trouble(text):
                self.trouble = text
                self.on_trouble()


def _named(desk: Desk) -> str:
    return f"the process of {counted(len(desk.members), 'client')} from {desk.members[0]} on"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
