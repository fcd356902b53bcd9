"""A drill, run: the server is here, the clients are in other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import trio
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from secagg import Identity, Registry
from secagg import messages as m
from secagg.errors import SERVER, SumFailed, TooFewClients
from secagg.events import Asked, Missing, ServerEvent, SessionReady, SumAborted, SumReleased
from secagg.net.certificates import certificate_key, make_certificate
from secagg.net.event_log import render
from secagg.net.events import ClientExcluded, ClientLeft, ConnectionRefused, ServerNetworkEvent
from secagg.net.link import Progress as FrameProgress
from secagg.net.server import Server, open_server
from secagg.net.session import Session
from secagg.net.settings import Capacity, Deadlines, Patience
from secagg.net.tls import server_context
from sims.drill.config import KIND, PART, SETUP, DrillConfig, ScheduledKill, draw_kills, point_of
from sims.drill.report import DrillReport, SumOutcome, fingerprint
from sims.process_memory import peak_bytes
from sims.workers import WorkerExited, WorkerMessage, WorkerPool, WorkerUnavailable, open_worker_pool
from sims.workers.client_host import (
    PRELOAD,
    ClientCertificates,
    ClientHostConfig,
    ClientSessionEnd,
    ServerContact,
    host_clients,
)
from sims.workers.os_processes import raise_open_file_limit

# Generous: a stage ends when everybody has answered or is known to be gone. Only what hangs takes so long.
_DEADLINES: Final = Deadlines(join=120, share=120, mask=300, confirm=120, reveal=120)
_PATIENCE: Final = Patience(handshake=60, silence=120, grace=1.5)
_CAPACITY: Final = Capacity(uploads=4, strangers=1024)
_DESCRIPTORS: Final = 128  # files, besides two for each client
_ENDING: Final = 30.0  # seconds for clients to hear that the session is over

Watch: TypeAlias = Callable[[str], None]  # told in a few words what happens


class Drill:
    """One drill, to be run once."""

    def __init__(self, setting: DrillConfig, watch: Watch) -> None:
        self._setting = setting
        self._watch = watch
        self._groups = setting.groups()
        self._report = DrillReport(setting=setting)
        self._aborted: set[int] = set()
        self._gone: set[int] = set()  # clients whose process has ended
        self._over: set[int] = set()  # clients whose session has ended
        self._changed = trio.Event()
        self._kills = draw_kills(setting, self._groups)
        self._kill_later: Callable[[int, float], None]
        self._to_kill = 0
        self._report.dropouts = {
            member: kill.point[0]
            for pool in self._groups
            for kill in (self._kills[k] for k in pool if k in self._kills)
            for member in pool
        }

    async def run(self) -> DrillReport:
        """Start everything, sum, and see that nothing is left."""
        kills = self._kills
        configs = [
            ClientHostConfig(pool, DrillRole, Part(self._setting, {k: kills[k] for k in pool if k in kills}))
            for pool in self._groups
        ]
        self._watch(f"starting {len(configs)} processes")
        started = time.perf_counter()
        async with open_worker_pool(host_clients, configs, preload=(*PRELOAD, DrillRole.__module__)) as pool:
            certificates = await self._certificates(pool)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, pool)
                self._kill_later = lambda index, delay: nursery.start_soon(self._kill, pool, index, delay)
                await self._serve(pool, certificates, started)
                nursery.cancel_scope.cancel()
        self._report.orphans = pool.remaining_processes()
        self._report.server_peak_bytes = peak_bytes()
        return self._report

    # --- the clients' processes ---

    async def _kill(self, pool: WorkerPool, index: int, delay: float) -> None:
        await trio.sleep(delay)
        pool.kill(index)
        self._to_kill -= 1
        self._changed.set()

    def _schedule_dropouts(self, sum_index: int) -> None:
        """Begin to wait for those who are to be killed during this sum, wherever they are in it."""
        for index, members in enumerate(self._groups):
            for kill in (self._kills[k] for k in members if k in self._kills):
                if kill.delay is not None and kill.point[0] == sum_index:
                    self._to_kill += 1
                    self._kill_later(index, kill.delay)

    async def _until_killed(self) -> None:
        """Whoever is to be killed is, before the session ends."""
        while self._to_kill:
            await self._change()

    async def _change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _certificates(self, pool: WorkerPool) -> dict[int, bytes]:
        """Everybody's, of whom something is heard at all."""
        certificates: dict[int, bytes] = {}
        heard = 0
        async for events in pool.events():
            if isinstance(events, WorkerMessage) and isinstance(events.message, ClientCertificates):
                certificates.update(events.message.of)
            elif isinstance(events, WorkerExited):
                self._ended(events)
            heard += 1
            if heard == len(self._groups):
                break
        return certificates

    async def _listen(self, pool: WorkerPool) -> None:
        async for events in pool.events():
            if isinstance(events, WorkerExited):
                self._ended(events)
            elif isinstance(events.message, ClientSessionEnd):
                self._noted(events.message)
            self._changed.set()

    def _ended(self, events: WorkerExited) -> None:
        members = self._groups[events.index]
        self._gone.update(members)
        if events.signal == signal.SIGKILL:
            self._report.killed += len(members)
        else:
            self._report.crashed += len(members)
            self._watch(f"the process of client {members[0]} ended: {events.cause}")

    def _noted(self, note: ClientSessionEnd) -> None:
        if note.member in self._over:
            return  # how it ends is told once
        self._over.add(note.member)
        if not note.completed:
            self._report.refused += 1
            self._watch(f"client {note.member}: {note.description}")

    # --- the server ---

    async def _serve(self, pool: WorkerPool, certificates: Mapping[int, bytes], started: float) -> None:
        identity = Identity.generate()
        certificate = make_certificate(identity, now=int(time.time()))
        registry = _registry(certificates)
        tls = self._setting.tls
        async with open_server(
            "127.0.0.1:0",
            members=registry.members,
            context=server_context(identity, certificate, list(certificates.values())) if tls else None,
            insecure_plain_tcp=not tls,
            patience=_PATIENCE,
            capacity=_CAPACITY,
            on_event=self._report_event,
        ) as server:
            meeting = ServerContact(
                server.address, certificate if tls else None, 0, dict(registry.members), _PATIENCE
            )
            for index in range(len(self._groups)):
                with suppress(WorkerUnavailable):  # which the news tell
                    await pool.send(index, meeting)
            with trio.move_on_after(_DEADLINES.join):
                await server.wait_for_clients(self._setting.clients - len(self._gone))
            self._report.start_seconds = time.perf_counter() - started
            await self._session(server, registry)
            await self._see_the_end()

    def _report_event(self, event: ServerNetworkEvent) -> None:
        if isinstance(event, ClientLeft | ClientExcluded | ConnectionRefused | Missing):
            self._watch(str(render(event)))

    async def _session(self, server: Server, registry: Registry) -> None:
        setting = self._setting
        self._watch("exchanging keys")
        machine = setting.make_server(registry)
        started = time.perf_counter()
        limit = (3 + 3 * setting.sums) * _DEADLINES.mask
        with trio.move_on_after(limit):
            try:
                async with server.session(
                    machine,
                    deadlines=_DEADLINES,
                    expected=setting.clients - len(self._gone),
                    on_event=self._observe,
                ) as session:
                    self._report.setup_seconds = time.perf_counter() - started
                    for index in range(setting.sums):
                        self._report.sums.append(await self._sum(session, index))
                    await self._until_killed()
                    self._report.bytes_up = {stage.value: n for stage, n in session.bytes_up.items()}
                    self._report.bytes_down = {stage.value: n for stage, n in session.bytes_down.items()}
            except SumFailed as error:  # There was no session, hence no sum.
                self._report.sums += [self._failure(k, error) for k in range(setting.sums)]
        self._report.hung += setting.sums - len(self._report.sums)
        self._report.elapsed_seconds = time.perf_counter() - started

    async def _sum(self, session: Session, index: int) -> SumOutcome:
        self._watch(f"sum {index + 1} of {self._setting.sums}, {len(session.members)} clients")
        self._schedule_dropouts(index)
        started = time.perf_counter()
        try:
            total = await session.ask(KIND, index.to_bytes(4, "big"), round_number=index)
        except SumFailed as error:
            return replace(self._failure(index, error), seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        return SumOutcome(
            sum=index,
            contributors=len(session.contributors),
            contributor_ids=session.contributors,
            dropped=self._setting.clients - len(session.contributors),
            expected_sha256=fingerprint(plain_sum(self._setting, session.contributors, index)),
            total_sha256=fingerprint(total[PART]),
            seconds=seconds,
        )

    def _failure(self, index: int, error: SumFailed) -> SumOutcome:
        survivors = error.present if isinstance(error, TooFewClients) else None
        return SumOutcome(
            sum=index,
            contributors=0,
            dropped=self._setting.clients - (survivors or 0),
            aborted=True,
            survivors=survivors,
            threshold=error.needed if isinstance(error, TooFewClients) else None,
            reason=str(error),
        )

    def _observe(self, event: ServerEvent) -> None:
        match event:
            case SessionReady():
                self._report.cohort, self._report.threshold = len(event.members), event.threshold
            case SumAborted():
                self._aborted.add(event.sum_index)
            case SumReleased():
                self._report.released_after_abort += event.sum_index in self._aborted

    async def _see_the_end(self) -> None:
        """Everybody who is left hears that the session is over."""
        with trio.move_on_after(_ENDING):
            while self._waited_for():
                await self._change()
        self._report.hung += len(self._waited_for())

    def _waited_for(self) -> set[int]:
        return set(range(self._setting.clients)) - self._gone - self._over


def _registry(certificates: Mapping[int, bytes]) -> Registry:
    return Registry(0, {member: certificate_key(pem) for member, pem in certificates.items()})


def run_drill(setting: DrillConfig, watch: Watch) -> DrillReport:
    raise_open_file_limit(2 * setting.clients + _DESCRIPTORS)
    try:
        return trio.run(Drill(setting, watch).run)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise


def numbers(setting: DrillConfig, member: int, sum_index: int) -> NDArray[np.uint32]:
    """What a client adds: other numbers than anybody else, and than in any other sum."""
    chance = np.random.default_rng([setting.seed, member, sum_index])
    return chance.integers(0, setting.limit, setting.dim, np.uint32, endpoint=True)


def plain_sum(setting: DrillConfig, members: Iterable[int], sum_index: int) -> NDArray[np.int64]:
    total = np.zeros(setting.dim, np.int64)
    for member in members:
        total += numbers(setting, member, sum_index)
    return total


@dataclass(frozen=True)
class Part:
    """What a worker is told: the drill, and the fates of its clients."""

    setting: DrillConfig
    kills: Mapping[int, ScheduledKill]


class DrillRole:
    """The clients of one worker."""

    def __init__(self, part: Part) -> None:
        self._setting = part.setting
        self._kills = part.kills
        self._sums: dict[int, int] = {}
        self.table = part.setting.table
        self.policy = part.setting.policy

    def answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike]:
        self._sums[member] = asked.sum_index
        return {PART: numbers(self._setting, member, asked.sum_index)}

    def progress(self, member: int) -> FrameProgress:
        kill = self._kills.get(member)

        def look(frame: bytes, sent: int) -> None:
            point = point_of(m.message_type(frame, sender=SERVER), self._sums.get(member, SETUP))
            if kill is not None and point is not None and kill.is_due(point, sent, len(frame)):
                os.kill(os.getpid(), signal.SIGKILL)

        return look


_STEP: Final = "sum "


def run_with_progress(setting: DrillConfig, console: Console) -> DrillReport:
    """Run the drill behind a progress bar, where there is a terminal to draw one."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=setting.sums + 2)

        def tell(what: str) -> None:
            begun = what.startswith((_STEP, "starting", "exchanging"))
            if begun:
                progress.update(task, description=what, advance=1)
            elif console.is_terminal:
                progress.console.print(f"  [dim]{what}[/dim]", highlight=False)

        return run_drill(setting, tell)
