"""`secagg serve`: verifies a server's configuration, then runs sessions that all ask for the same sums. If a
sum or a session fails, the log says so and the next one follows. The server ends after a given number of
sessions, on a signal, or on an error that only its operator can repair: a ledger or a directory that cannot
be written. While its registry has expired, it waits for a newer one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from secagg.errors import ExpiredRegistry, LedgerError, SumFailed
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog, Fact
from secagg.net.server import Server
from secagg.net.server_session import Session
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import OFF
from sims.deploy.credentials import ServerCredentials
from sims.deploy.evidence_directory import EvidenceDirectory, EvidenceKeeper
from sims.deploy.health import Health
from sims.deploy.http_endpoint import MAX_CONNECTIONS
from sims.deploy.listening import ListenSettings, listen
from sims.deploy.log import open_log
from sims.deploy.monitoring import Monitoring, open_metrics
from sims.deploy.process_control import allow_connections, run_watched
from sims.deploy.renewal import wait_for_registry
from sims.deploy.server_setup import ServerSetup, load_server_setup
from sims.deploy.sum_schedule import NotAsked, ScheduledSum, SumSchedule, round_after
from sims.deploy.totals_directory import TotalsDirectory
from sims.process_resources import forbid_core_dumps

_FORGIVEN_WITHIN: Final = 10.0  # seconds between two looks at the ledger while too few clients are there


def serve(path: Path) -> None:
    """Run the server with the configuration at `path`, until SIGTERM or for `session.sessions` sessions.
    Raise a `SecaggError` if an operator has to repair something."""
    forbid_core_dumps()
    plan = load_server_setup(path)
    problems = Problems(path)
    with problems.about("capacity.strangers"):
        members = len(plan.credentials.registry.members)
        allow_connections(members + plan.capacity.strangers + MAX_CONNECTIONS)
    with ExitStack() as stack:
        with problems.about("server.totals"):
            stack.enter_context(_totals(plan))
        if plan.config.server.evidence is not None:
            with problems.about("server.evidence"):
                EvidenceDirectory(plan.config.server.evidence).prepare()
        problems.check()
        log = EventLog(stack.enter_context(open_log(plan.config.server.log)))
        ledger = stack.enter_context(plan.open_ledger())
        own = plan.credentials
        run_watched(
            ServeRunner(plan, ledger, log).run,
            registry=lambda: own.registry,
            log=log,
            on_hangup=own.watch.nudge,
        )


@contextmanager
def _totals(plan: ServerSetup) -> Iterator[None]:
    """Create the directory of totals; lock it during the context. Raise `ConfigError` if it is unusable."""
    totals = TotalsDirectory(plan.config.server.totals)
    totals.prepare()
    with totals.held():
        totals.check_writable()
        yield


def make_monitoring(plan: ServerSetup, ledger: ServerLedger, log: EventLog) -> Monitoring:
    """Return what shows the operator of a server its figures and its health."""

    def registry() -> Registry:
        return plan.credentials.registry

    section, files = plan.config.metrics, plan.config.server
    output = TotalsDirectory(files.totals).check_writable
    health = Health(registry=registry, ledger=ledger, ledger_path=files.ledger, check_output=output, log=log)
    metrics = open_metrics(
        section, registry=registry, ledger=ledger, on_ledger_error=health.note_ledger_error
    )
    return Monitoring(plan.path, section, log=log, health=health, metrics=metrics)


class ServeRunner:
    """Runs the sessions of a server: it listens, asks for the scheduled sums, and stores their totals."""

    def __init__(self, plan: ServerSetup, ledger: ServerLedger, log: EventLog) -> None:
        self._plan = plan
        self._section = plan.config.session
        self._ledger = ledger
        self._log = log
        self._evidence = EvidenceKeeper(plan.config.server.evidence, log)
        self._monitoring = make_monitoring(plan, ledger, log)
        plan.credentials.on_new_key = self._hand_over_ledger
        self._totals = TotalsDirectory(plan.config.server.totals)
        # Rounds that have a total are not used again, even if the ledger was lost.
        known = round_after(plan.config.server.ledger), self._totals.round_after()
        first = max(self._section.first_round, *known)
        self._questions = SumSchedule(plan.config.ask, sums=plan.sums, next_round=first)

    async def run(self) -> None:
        """Hold `session.sessions` sessions, or sessions without end if that is 0. Raise `ConfigError` if the
        server cannot listen at a configured address."""
        held = 0
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._monitoring.serving())
            server = await listen(
                stack,
                ListenSettings(
                    self._plan.config.server.listen,
                    self._plan.patience,
                    self._plan.capacity,
                    f"{self._plan.path}: server.listen",
                ),
                self._plan.credentials,
                self._monitoring,
                self._log,
            )
            self._monitoring.count_connected(lambda: len(server.connected))
            self._log_start(server)
            while True:
                held += await self._hold_session(server)
                if 0 < self._section.sessions == held:
                    return
                await trio.sleep(self._section.pause)

    def _hand_over_ledger(self, new: ServerCredentials) -> None:
        self._ledger.offer(new.hand_overs)
        self._ledger.check_owner(new.identity.public)

    def _log_start(self, server: Server) -> None:
        registry = self._plan.credentials.registry
        self._log.write(
            "started",
            address=str(server.address),
            trust=self._section.trust,
            key_agreement=self._section.key_agreement,
            members=len(registry.members),
            registry=registry.version,
            metrics=str(self._monitoring.address or OFF),
        )
        barred = self._plan.bar_cautions(self._ledger.barred)
        for caution in (*self._plan.cautions, *self._monitoring.cautions, *barred):
            self._log.write("caution", reason=caution)

    async def _hold_session(self, server: Server) -> bool:
        """Wait for enough clients and run one session without those that are barred. Return whether its
        set-up succeeded."""
        await wait_for_registry(lambda: self._plan.credentials.registry, self._log)
        barred = await self._wait_for_clients(server)
        members = self._plan.credentials.registry.members.keys() - barred
        try:
            async with server.session(
                self._plan.machine(barred, self._ledger.history),
                deadlines=self._plan.deadlines,
                ledger=self._ledger,
                expected=min(self._section.max_cohort, len(members)),
                members=members,
                on_event=self._evidence.keep,
            ) as session:
                for question in self._questions.of_session():
                    await self._ask(session, question)
        except (SumFailed, ExpiredRegistry):
            return False  # the log says why
        except LedgerError as error:
            self._monitoring.health.note_ledger_error(error)
            raise
        return True

    async def _wait_for_clients(self, server: Server) -> frozenset[int]:
        """Wait until enough clients are connected that are not barred. Return the ids of those that are; an
        operator may forgive one meanwhile."""
        least = self._section.min_cohort
        while True:
            barred = self._ledger.barred
            if len(set(server.connected) - barred) >= least:
                return barred
            with trio.move_on_after(_FORGIVEN_WITHIN):
                await server.wait_for_clients(least, barred=barred)

    async def _ask(self, session: Session, question: ScheduledSum) -> None:
        about: dict[str, Fact] = {"kind": question.kind, "round": question.round_number}
        if len(session.members) < self._section.min_contributors:
            self._monitoring.note_not_asked(NotAsked.TOO_FEW_CLIENTS)
            self._log.write("not asked", **about, reason="too few clients are left in the session")
            return
        self._totals.check_writable()
        self._totals.check_free(question)
        try:
            payload = question.payload()
        except ConfigError as error:
            self._monitoring.note_not_asked(NotAsked.UNREADABLE_PAYLOAD)
            self._log.write("not asked", **about, reason=str(error))
            return
        self._log.write("asking", **about, clients=len(session.members))
        try:
            total = await session.ask(question.kind, payload, round_number=question.round_number)
        except SumFailed as error:
            self._log.write("no total", **about, reason=str(error))
            return
        with trio.CancelScope(shield=True):  # a signal must not discard a total that clients paid for
            path = await trio.to_thread.run_sync(self._totals.store, total, question)
        self._log.write("stored", **about, clients=total.count, file=str(path))
