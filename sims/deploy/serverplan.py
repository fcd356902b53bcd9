"""The plan of a server: its configuration, verified in every respect before it listens."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import LedgerError, MissingLedger, SecaggError
from secagg.ledger import ServerLedger
from secagg.net.settings import DAY, Capacity, Deadlines, Patience
from secagg.preflight import preflight
from secagg.registry import Registry
from secagg.server import ServerMachine
from secagg.spec import Table
from secagg.thresholds import Trust
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ServeConfig, SessionSection, load
from sims.deploy.credentials import ServerCredentials, server_credentials
from sims.deploy.distinct import check_server_files
from sims.deploy.log import check_log
from sims.deploy.questions import check_asks, round_after
from sims.deploy.sums import read_table
from sims.deploy.totals import Totals

NEW_LEDGER: Final = "secagg serve --new-ledger"


@dataclass(frozen=True)
class Plan:
    """A configuration that was verified, and everything that was made of it."""

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

    def machine(self) -> ServerMachine:
        return _machine(self.config.session, self.table, self.sums, self.credentials.registry)

    def open_ledger(self) -> ServerLedger:
        return ServerLedger.open(self.config.server.ledger, identity=self.credentials.identity.public)


def new_ledger(path: Path) -> Path:
    """Verify a configuration and make the ledger that it names. Raises `ConfigError`."""
    plan = verified(path, with_ledger=False)
    problems = Problems(path)
    with problems.about("server.ledger"):
        identity = plan.credentials.identity.public
        ServerLedger.create(plan.config.server.ledger, identity=identity).close()
    problems.check()
    return plan.config.server.ledger


def verified(path: Path, *, with_ledger: bool = True) -> Plan:
    """Raises `ConfigError` with everything that is wrong."""
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
    if clear:  # or the log could be the file of something else, which to check for would create
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
    return Plan(path, config, table, credentials, deadlines, patience, capacity)


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
            Totals(directory).check_writable()
        elif directory.exists():
            raise ConfigError(f"{directory} is not a directory; name one, or a new one")
        elif not directory.parent.is_dir():
            raise ConfigError(f"the directory {directory.parent} does not exist; create it, or name another")
        elif not os.access(directory.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"{directory} cannot be a directory: nothing can be made in {directory.parent}")


def _check_session(config: ServeConfig, table: Table, registry: Registry, problems: Problems) -> None:
    """Whether the terms are sound, and can be met by the fewest and the most clients that may come."""
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
    found: list[str] = []
    for clients in sorted({section.min_cohort, max(most, section.min_cohort)}):
        report = preflight(table, clients, section.params(sums))
        found += [f"with {clients} clients: {problem}" for problem in report.problems]
    for problem in found:
        problems.add("session", problem)


def _sums(config: ServeConfig) -> int:
    """Of a session. That there is nothing to ask is a problem of its own."""
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
    return ServerMachine(table=table, params=params, registry=registry if signed else None)
