"""`secagg serve`: verifies a server's configuration, then runs sessions that all ask the same questions.

If a sum or a session fails, the log says so and the next one follows. The server ends on a signal, or on an
error that only its operator can repair: a ledger or a directory that cannot be written, an expired registry.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from secagg.errors import LedgerError, MissingLedger, SecaggError, SumFailed
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog, Fact
from secagg.net.server import Server, open_server
from secagg.net.session import Session
from secagg.net.settings import DAY, Capacity, Deadlines, Patience
from secagg.net.tls import server_context
from secagg.preflight import preflight
from secagg.server import ServerMachine
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ServeConfig, SessionSection, check_server_files, load
from sims.deploy.credentials import ServerCredentials, server_credentials
from sims.deploy.log import check_log, open_log
from sims.deploy.process_control import allow_connections, forbid_core_dumps, run_watched
from sims.deploy.scheduled_sums import DIFFERENCING, ScheduledSum, SumSchedule, check_asks, round_after
from sims.deploy.sum_specs_file import read_table
from sims.deploy.totals_directory import TotalsDirectory

# Hints for an address that cannot be used.
_HINTS: Final = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another port",
    errno.EACCES: "; ports below 1024 need a privilege: choose a higher one",
    errno.EADDRNOTAVAIL: "; name an address of this machine, or 0.0.0.0 for all of them",
}


def serve(path: Path) -> None:
    """Run the server with the configuration at `path`, until SIGTERM or for `session.sessions` sessions.
    Raise a `SecaggError` if an operator has to repair something."""
    forbid_core_dumps()
    plan = load_server_setup(path)
    problems = Problems(path)
    with problems.about("capacity.strangers"):
        allow_connections(len(plan.credentials.registry.members) + plan.capacity.strangers)
    with ExitStack() as stack:
        with problems.about("server.totals"):
            stack.enter_context(_totals(plan))
        problems.check()
        log = EventLog(stack.enter_context(open_log(plan.config.server.log)))
        ledger = stack.enter_context(plan.open_ledger())
        run_watched(ServeRunner(plan, ledger, log).run, registry=plan.credentials.registry, log=log)


@contextmanager
def _totals(plan: ServerSetup) -> Iterator[None]:
    """Create, check and lock the directory of totals, for the duration of the context."""
    totals = TotalsDirectory(plan.config.server.totals)
    totals.prepare()
    with totals.held():
        totals.check_writable()
        yield


class ServeRunner:
    """Runs the sessions of a server: it listens, asks for the scheduled sums, and stores their totals."""

    def __init__(self, plan: ServerSetup, ledger: ServerLedger, log: EventLog) -> None:
        self._plan = plan
        self._section = plan.config.session
        self._ledger = ledger
        self._log = log
        self._totals = TotalsDirectory(plan.config.server.totals)
        # Rounds that have a total are not used again, even if the ledger was lost.
        known = round_after(plan.config.server.ledger), self._totals.round_after()
        first = max(self._section.first_round, *known)
        self._questions = SumSchedule(plan.config.ask, sums=plan.sums, next_round=first)

    async def run(self) -> None:
        """Run `session.sessions` sessions (0: endless). Raise `ConfigError` if the address is unusable."""
        held = 0
        async with AsyncExitStack() as stack:
            server = await self._listen(stack)
            self._log_start(server)
            while True:
                held += await self._hold_session(server)
                if 0 < self._section.sessions == held:
                    return
                await trio.sleep(self._section.pause)

    async def _listen(self, stack: AsyncExitStack) -> Server:
        plan, own = self._plan, self._plan.credentials
        opened = open_server(
            plan.config.server.listen,
            members=own.registry.members,
            context=server_context(own.identity, own.certificate, list(own.clients.values())),
            patience=plan.patience,
            capacity=plan.capacity,
            on_event=self._log,
        )
        try:
            return await stack.enter_async_context(opened)
        except OSError as error:
            where = f"{plan.path}: server.listen: cannot listen on {plan.config.server.listen}"
            hint = _HINTS.get(error.errno or 0, "")
            raise ConfigError(f"{where}: {error.strerror or error}{hint}") from None

    def _log_start(self, server: Server) -> None:
        registry = self._plan.credentials.registry
        self._log.write(
            "started",
            address=str(server.address),
            trust=self._section.trust,
            members=len(registry.members),
            registry=registry.version,
        )
        for caution in self._plan.cautions:
            self._log.write("caution", reason=caution)

    async def _hold_session(self, server: Server) -> bool:
        """Run one session. Return whether it was set up and ended normally."""
        least = self._section.min_cohort
        if len(server.connected) < least:
            self._log.write("waiting", clients=least)
            await server.wait_for_clients(least)
        expected = min(self._section.max_cohort, len(self._plan.credentials.registry.members))
        try:
            async with server.session(
                self._plan.machine(),
                deadlines=self._plan.deadlines,
                ledger=self._ledger,
                expected=expected,
            ) as session:
                for question in self._questions.of_session():
                    await self._ask(session, question)
        except SumFailed:
            return False  # the log says why
        return True

    async def _ask(self, session: Session, question: ScheduledSum) -> None:
        about: dict[str, Fact] = {"kind": question.kind, "round": question.round_number}
        if len(session.members) < self._section.min_contributors:
            self._log.write("not asked", **about, reason="too few clients are left in the session")
            return
        self._totals.check_writable()
        self._totals.check_free(question)
        try:
            payload = question.payload()
        except ConfigError as error:
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


NEW_LEDGER: Final = "secagg serve --new-ledger"


@dataclass(frozen=True)
class ServerSetup:
    """A verified configuration of a server, and the objects that are made from it."""

    path: Path
    config: ServeConfig
    table: Table
    credentials: ServerCredentials
    deadlines: Deadlines
    patience: Patience
    capacity: Capacity

    @property
    def sums(self) -> int:
        return _sums(self.config)

    @property
    def cautions(self) -> list[str]:
        """Warnings to the operator about a configuration that is valid."""
        section, found = self.config.session, []
        if self.capacity.uploads <= section.corrupt:
            found.append(
                "capacity.uploads is not more than session.corrupt: corrupt clients could hold up the "
                "uploads of all others by sending slowly"
            )
        kinds = ", ".join({ask.kind: None for ask in self.config.ask if not self.table[ask.kind].is_private})
        if kinds and section.dropout > 0:
            found.append(DIFFERENCING.format(kinds=kinds))
        return found

    def machine(self) -> ServerMachine:
        return _machine(self.config.session, self.table, self.sums, self.credentials.registry)

    def open_ledger(self) -> ServerLedger:
        return ServerLedger.open(self.config.server.ledger, identity=self.credentials.identity.public)


def new_ledger(path: Path) -> Path:
    """Create the server's ledger (its record of all sums) where the configuration at `path` says. Return the
    ledger's path, or raise `ConfigError`."""
    plan = load_server_setup(path, with_ledger=False)
    problems = Problems(path)
    with problems.about("server.ledger"):
        ServerLedger.create(plan.config.server.ledger, identity=plan.credentials.identity.public).close()
    problems.check()
    return plan.config.server.ledger


def load_server_setup(path: Path, *, with_ledger: bool = True) -> ServerSetup:
    """Load and verify the configuration at `path`. Raise one `ConfigError` that lists all problems. If
    `with_ledger`, the ledger must exist, and is verified, too."""
    config = load(path, ServeConfig)
    problems = Problems(path)
    clear = check_server_files(path, config, problems)
    table = None
    with problems.about("server.table"):
        table = read_table(config.server.table)
    credentials = server_credentials(config.server, problems, now=int(time.time()))
    deadlines, patience, capacity = Deadlines(), Patience(), Capacity()
    with problems.about("deadlines"):
        deadlines = config.deadlines.made()
    with problems.about("patience"):
        patience = config.patience.made()
    with problems.about("capacity"):
        capacity = config.capacity.made()
    if clear:  # otherwise the check could create a file that belongs to something else
        with problems.about("server.log"):
            check_log(config.server.log)
    _check_pace(config.session, problems)
    _check_totals(config.server.totals, problems)
    if table is not None:
        check_asks(config.ask, table, problems)
    if table is not None and credentials is not None:
        _check_session(config, table, credentials.registry, problems)
    if credentials is not None and with_ledger:
        _check_ledger(config.server.ledger, credentials.identity.public, problems)
    problems.check()
    assert table is not None
    assert credentials is not None
    return ServerSetup(path, config, table, credentials, deadlines, patience, capacity)


def _check_pace(section: SessionSection, problems: Problems) -> None:
    if section.sessions < 0:
        problems.add("session.sessions", "must be at least 0, which is for ever")
    if not 0 <= section.pause <= DAY:
        problems.add("session.pause", f"must be a number of seconds from 0 to {DAY:g}")
    if not 0 <= section.first_round < 1 << 62:
        problems.add("session.first_round", "must be from 0 to below 2^62")


def _check_totals(directory: Path, problems: Problems) -> None:
    with problems.about("server.totals"):
        if directory.is_dir():
            TotalsDirectory(directory).check_writable()
        elif directory.exists():
            raise ConfigError(f"{directory} is not a directory; name one, or a new one")
        elif not directory.parent.is_dir():
            raise ConfigError(f"the directory {directory.parent} does not exist; create it, or name another")
        elif not os.access(directory.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"{directory} cannot be a directory: nothing can be made in {directory.parent}")


def _check_session(config: ServeConfig, table: Table, registry: Registry, problems: Problems) -> None:
    """Add a problem for everything that prevents a session of the smallest or the largest possible cohort."""
    section, sums = config.session, _sums(config)
    try:
        _machine(section, table, sums, registry)
    except SecaggError as error:
        problems.take("session", error)
        return
    most = min(section.max_cohort, len(registry.members))
    if most < section.min_cohort:
        problems.add(
            "session.min_cohort", f"{section.min_cohort} clients are needed, but the registry has {most}"
        )
    for clients in sorted({section.min_cohort, max(most, section.min_cohort)}):
        for problem in preflight(table, clients, section.params(sums)).problems:
            problems.add("session", f"with {clients} clients: {problem}")


def _sums(config: ServeConfig) -> int:
    """Return the number of sums in a session: `session.sums`, or else one for each question, at least 1."""
    return max(len(config.ask), 1) if config.session.sums is None else config.session.sums


def _check_ledger(path: Path, identity: bytes, problems: Problems) -> None:
    with problems.about("server.ledger"):
        try:
            ServerLedger.open(path, identity=identity).close()
            round_after(path)
        except MissingLedger as error:
            raise LedgerError(f"{error} with {NEW_LEDGER}") from None


def _machine(section: SessionSection, table: Table, sums: int, registry: Registry) -> ServerMachine:
    params = section.params(sums)
    signed = params.trust is Trust.MALICIOUS
    return ServerMachine(
        table=table,
        params=params,
        registry=registry if signed else None,
        now=int(time.time()),
    )
