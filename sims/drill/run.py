"""Runs a drill: the server in this process and clients in worker processes, some of which are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, cast

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from protocols.rounds import RoundInfo, run_round
from secagg import Identity, Registry
from secagg.errors import Departed, SumFailed, TooFewClients
from secagg.events import Convicted, Excluded, Missing, ServerEvent, SessionReady, SumAborted, SumReleased
from secagg.net.certificates import certificate_key, make_certificate
from secagg.net.event_log import render
from secagg.net.events import ClientExcluded, ClientLeft, ConnectionRefused, ServerNetworkEvent
from secagg.net.open_client_and_server import open_server
from secagg.net.server import Server
from secagg.net.settings import Capacity, Deadlines, Patience
from secagg.net.tls import server_context
from sims.coordination.coordinator import Coordinator
from sims.coordination.network_session import CallInLoop, NetworkSession, NetworkSessionSettings
from sims.coordination.transport import SessionPlan
from sims.drill.client_worker import (
    PRELOAD,
    ClientCertificates,
    ClientSessionEnd,
    DrillWorkerConfig,
    ServerContact,
    host_clients,
    plain_sum,
)
from sims.drill.config import DrillConfig, LastTotal
from sims.drill.kill_schedule import draw_kills
from sims.drill.report import DrillReport, SumOutcome, fingerprint
from sims.process_resources import peak_bytes, raise_open_file_limit
from sims.workers import WorkerExited, WorkerMessage, WorkerPool, WorkerUnavailable, open_worker_pool

# A stage ends when every client has answered or is known to be gone. Only a hanging client takes this long.
_DEADLINES: Final = Deadlines(join=120, share=120, mask=300, confirm=120, reveal=120)
_PATIENCE: Final = Patience(handshake=60, silence=120, grace=1.5)
_CAPACITY: Final = Capacity(uploads=4, strangers=1024)
_DESCRIPTORS: Final = 128  # open files, besides two for each client
_ENDING: Final = 30.0  # most seconds to wait until clients have learned that the session is over


@dataclass(frozen=True)
class DrillProgress:
    """A progress message of a drill. `new_phase` says whether a phase, such as a sum, begins."""

    text: str
    new_phase: bool = False


OnProgress: TypeAlias = Callable[[DrillProgress], None]


class Drill:
    """Runs one drill: sums during which worker processes of clients are killed. Call `run` only once."""

    def __init__(self, setting: DrillConfig, on_progress: OnProgress) -> None:
        self._setting = setting
        self._on_progress = on_progress
        self._groups = setting.groups()
        self._report = DrillReport(setting=setting)
        self._aborted: set[int] = set()
        self._gone: set[int] = set()  # clients whose process has ended
        self._over: set[int] = set()  # clients whose session has ended
        self._changed = trio.Event()
        self._kills = draw_kills(setting, self._groups)
        self._kill_later: Callable[[int, float], None]
        self._to_kill = 0  # timers of kills that are running
        self._doomed: set[int] = set()  # clients whose process a timer has killed; it may not have ended yet
        self._report.kills = {
            member: kill.point[0]
            for group in self._groups
            for kill in (self._kills[k] for k in group if k in self._kills)
            for member in group
        }

    async def run(self) -> DrillReport:
        """Start the processes, run all sums, end the processes, and return the report."""
        kills = self._kills
        configs = [
            DrillWorkerConfig(self._setting, members, {k: kills[k] for k in members if k in kills})
            for members in self._groups
        ]
        self._begin_phase(f"starting {len(configs)} processes")
        started = time.perf_counter()
        async with open_worker_pool(host_clients, configs, preload=PRELOAD) as pool:
            certificates = await self._certificates(pool)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, pool)
                self._kill_later = lambda index, delay: nursery.start_soon(self._kill, pool, index, delay)
                await self._serve(pool, certificates, started)
                nursery.cancel_scope.cancel()
        self._report.orphans = pool.remaining_processes()
        self._report.server_peak_bytes = peak_bytes()
        return self._report

    def _note(self, text: str) -> None:
        self._on_progress(DrillProgress(text))

    def _begin_phase(self, text: str) -> None:
        self._on_progress(DrillProgress(text, new_phase=True))

    # --- worker processes ---

    async def _kill(self, pool: WorkerPool, index: int, delay: float) -> None:
        await trio.sleep(delay)
        pool.kill(index)
        self._doomed.update(self._groups[index])
        self._to_kill -= 1
        self._changed.set()

    def _schedule_kills(self, sum_index: int) -> None:
        """Start a timer for each worker that is to be killed some seconds after sum `sum_index` began."""
        for index, members in enumerate(self._groups):
            for kill in (self._kills[k] for k in members if k in self._kills):
                if kill.delay is not None and kill.point[0] == sum_index:
                    self._to_kill += 1
                    self._kill_later(index, kill.delay)

    async def _until_killed(self) -> None:
        """Wait until all workers that the timers of `_schedule_kills` kill have ended."""
        while self._to_kill or not self._doomed <= self._gone:
            await self._change()

    async def _change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _certificates(self, pool: WorkerPool) -> dict[int, bytes]:
        """Wait until each worker has sent its clients' certificates or ended. Return these certificates by
        client id, without those of ended workers."""
        certificates: dict[int, bytes] = {}
        received = 0
        async for event in pool.events():
            if isinstance(event, WorkerMessage) and isinstance(event.message, ClientCertificates):
                certificates.update(event.message.of)
            elif isinstance(event, WorkerExited):
                self._ended(event)
            received += 1
            if received == len(self._groups):
                break
        return certificates

    async def _listen(self, pool: WorkerPool) -> None:
        async for event in pool.events():
            if isinstance(event, WorkerExited):
                self._ended(event)
            elif isinstance(event.message, ClientSessionEnd):
                self._session_ended(event.message)
            self._changed.set()

    def _ended(self, event: WorkerExited) -> None:
        members = self._groups[event.index]
        self._gone.update(members)
        if event.signal == signal.SIGKILL:
            self._report.killed += len(members)
        else:
            self._report.crashed += len(members)
            self._note(f"the process of client {members[0]} ended: {event.cause}")

    def _session_ended(self, end: ClientSessionEnd) -> None:
        if end.member in self._over:
            return  # Only the first report of a client counts.
        self._over.add(end.member)
        if not end.completed:
            self._report.refused += 1
            self._note(f"client {end.member}: {end.description}")

    # --- the server ---

    async def _serve(self, pool: WorkerPool, certificates: Mapping[int, bytes], started: float) -> None:
        identity = Identity.generate()
        certificate = make_certificate(identity, now=int(time.time()))
        registry = Registry(0, {member: certificate_key(pem) for member, pem in certificates.items()})
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
            contact = ServerContact(
                server.address, certificate if tls else None, 0, dict(registry.members), _PATIENCE
            )
            for index in range(len(self._groups)):
                with suppress(WorkerUnavailable):  # `WorkerExited` reports it.
                    await pool.send(index, contact)
            with trio.move_on_after(_DEADLINES.join):
                await server.wait_for_clients(self._setting.clients - len(self._gone))
            self._report.start_seconds = time.perf_counter() - started
            await self._session(server, registry)
            await self._wait_for_clients_to_end()

    def _report_event(self, event: ServerNetworkEvent) -> None:
        if isinstance(event, ClientLeft | ClientExcluded | Convicted | ConnectionRefused | Missing):
            self._note(str(render(event)))

    async def _session(self, server: Server, registry: Registry) -> None:
        self._begin_phase("exchanging keys")
        settings = NetworkSessionSettings(
            make_machine=partial(self._setting.make_server, registry),
            least=self._setting.policy.min_cohort,
            deadlines=_DEADLINES,
            on_event=self._observe,
        )
        transport = DrillTransport(tuple(range(self._setting.clients)), server, settings)
        started = time.perf_counter()
        with trio.move_on_after((3 + 3 * self._setting.sums) * _DEADLINES.mask):
            await trio.to_thread.run_sync(self._hold_session, transport)
        self._report.hung += self._setting.sums - len(self._report.sums)
        self._report.elapsed_seconds = time.perf_counter() - started

    # --- in the thread of the coordinator ---

    def _hold_session(self, transport: DrillTransport) -> None:
        """Run all sums in one session. An aborted sum does not end it: later sums must be exact, too."""
        setting, round_info, started = self._setting, RoundInfo(), time.perf_counter()
        coordinator = Coordinator(setting.algorithm, transport, setting.sum_settings)
        try:
            coordinator.begin(round_info)
        except SumFailed as error:  # Without a session there is no sum.
            self._report.sums += [self._failure(k, error) for k in range(setting.sums)]
            return
        self._report.setup_seconds = time.perf_counter() - started
        try:
            for index in range(setting.sums):
                coordinator.begin(round_info)
                self._report.sums.append(self._sum(coordinator, index))
                round_info = round_info.next(completed=not self._report.sums[-1].aborted)
            trio.from_thread.run(self._until_killed)
        finally:
            coordinator.end_session()
        self._report.bytes_up = {stage.value: n for stage, n in coordinator.bytes_up.items()}
        self._report.bytes_down = {stage.value: n for stage, n in coordinator.bytes_down.items()}

    def _sum(self, coordinator: Coordinator, index: int) -> SumOutcome:
        session, started = coordinator.session, time.perf_counter()
        assert isinstance(session, NetworkSession)
        self._begin_phase(f"sum {index + 1} of {self._setting.sums}, {len(session.members)} clients")
        trio.from_thread.run_sync(self._schedule_kills, index)
        try:
            outcome = run_round(self._setting.algorithm.round(LastTotal(index)), coordinator.ask)
        except SumFailed as error:
            return replace(self._failure(index, error), seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        return SumOutcome(
            sum=index,
            contributors=len(session.contributors),
            contributor_ids=session.contributors,
            dropped=self._setting.clients - len(session.contributors),
            expected_sha256=fingerprint(plain_sum(self._setting, session.contributors, index)),
            total_sha256=fingerprint(outcome.state.total),
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

    # --- the end ---

    def _observe(self, event: ServerEvent) -> None:
        match event:
            case SessionReady():
                self._report.cohort, self._report.threshold = len(event.members), event.threshold
            case SumAborted():
                self._aborted.add(event.sum_index)
            case Excluded(peer, error) if not isinstance(error, Departed):
                self._report.excluded.add(peer)
            case SumReleased():
                self._report.released_after_abort += event.sum_index in self._aborted

    async def _wait_for_clients_to_end(self) -> None:
        """Wait until all clients know that the session is over. After 30 seconds, count the rest as hung."""
        with trio.move_on_after(_ENDING):
            while self._waited_for():
                await self._change()
        self._report.hung += len(self._waited_for())

    def _waited_for(self) -> set[int]:
        return set(range(self._setting.clients)) - self._gone - self._over


class DrillTransport:
    """Invites all clients of a drill to one session, those that were killed as well: it is never renewed.
    Implements `Transport`."""

    needs_new_session = False

    def __init__(self, members: tuple[int, ...], server: Server, settings: NetworkSessionSettings) -> None:
        self._members = members
        self._server = server
        self._settings = settings

    def clients(self) -> tuple[int, ...]:
        return self._members

    def session(self, plan: SessionPlan) -> NetworkSession:
        return NetworkSession(plan, self._server, cast(CallInLoop, trio.from_thread.run), self._settings)

    def announce(self, _round_info: RoundInfo) -> None:
        """Do nothing: clients of a drill keep nothing from a round to the next."""


def run_drill(setting: DrillConfig, on_progress: OnProgress) -> DrillReport:
    """Run a drill and return its report. Raise `WorkerStartError` if a worker process cannot be started, and
    `ParameterError` if the system allows too few open files."""
    raise_open_file_limit(2 * setting.clients + _DESCRIPTORS)
    try:
        return trio.run(Drill(setting, on_progress).run)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise


def run_with_progress(setting: DrillConfig, console: Console) -> DrillReport:
    """Run a drill and return its report. Show a progress bar if the console is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=setting.sums + 2)

        def show(event: DrillProgress) -> None:
            if event.new_phase:
                progress.update(task, description=event.text, advance=1)
            elif console.is_terminal:
                progress.console.print(f"  [dim]{event.text}[/dim]", highlight=False)

        return run_drill(setting, show)
