"""Verifies the configuration of a server, makes the objects that it runs with, and creates its ledger."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.differencing_rules import SetLog
from secagg.errors import LedgerError, MissingLedger, SecaggError
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.atomic_files import is_directory
from secagg.net.settings import DAY, Capacity, Deadlines, Patience
from secagg.preflight import preflight
from secagg.server import ServerMachine
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ServeConfig, SessionSection, load
from sims.deploy.credentials import ServerCredentials, server_credentials
from sims.deploy.disk_room import check_room
from sims.deploy.evidence_directory import EvidenceDirectory
from sims.deploy.file_purposes import check_server_files
from sims.deploy.log import check_log
from sims.deploy.monitoring import check_addresses, check_metrics, metrics_cautions
from sims.deploy.renewal import LiveServerCredentials
from sims.deploy.sum_schedule import check_asks, round_after
from sims.deploy.sum_specs_file import read_table
from sims.deploy.totals_directory import TotalsDirectory
from sims.text_format import DIFFERENCING

NEW_LEDGER: Final = "secagg serve --new-ledger"
FORGIVE: Final = "secagg serve --forgive"


@dataclass(frozen=True)
class ServerSetup:
    """A verified configuration of a server, and the objects that are made from it."""

    path: Path
    config: ServeConfig
    table: Table
    credentials: LiveServerCredentials
    deadlines: Deadlines
    patience: Patience
    capacity: Capacity

    @property
    def sums(self) -> int:
        return _sums(self.config)

    @property
    def cautions(self) -> list[str]:
        """Warnings to the operator about settings that are valid but risky: so few parallel uploads that
        corrupt clients can block others, sums without noise while clients may be missing, so few clients
        that liars can end sums, or figures that are not served, or to others."""
        section, found = self.config.session, []
        if self.capacity.uploads <= section.corrupt:
            found.append(
                "capacity.uploads is not more than session.corrupt: corrupt clients could hold up the "
                "uploads of all others by sending slowly"
            )
        kinds = ", ".join({ask.kind: None for ask in self.config.ask if not self.table[ask.kind].is_private})
        if kinds and (section.dropout > 0 or section.min_cohort < self.most):
            found.append(DIFFERENCING.format(kinds=kinds))
        found += preflight(self.table, self.most, section.params(self.sums)).cautions
        return found + metrics_cautions(self.config.metrics)

    @property
    def most(self) -> int:
        """The most clients of a session."""
        return min(self.config.session.max_cohort, len(self.credentials.registry.members))

    def bar_cautions(self, barred: Collection[int]) -> list[str]:
        """Return warnings about the clients that the server remembers as `barred`."""
        known = sorted(set(barred) & self.credentials.registry.members.keys())
        if not known:
            return []
        left, least = len(self.credentials.registry.members) - len(known), self.config.session.min_cohort
        few = f"; {left} others are left, but a session needs {least}" if left < least else ""
        clients = ", ".join(map(str, known))
        return [
            f"these clients lied or were in a dispute, and are barred: {clients}{few}. {FORGIVE} ID lets one "
            "take part again"
        ]

    def machine(self, barred: Collection[int] = (), history: SetLog | None = None) -> ServerMachine:
        """Return the machine of a new session, which admits no client in `barred`. `history` has the clients
        of earlier sums."""
        section, registry = self.config.session, self.credentials.registry
        return _machine(section, self.table, self.sums, registry, barred, history)

    def open_ledger(self) -> ServerLedger:
        return _open_ledger(self.config, self.credentials.current)


def new_ledger(path: Path) -> Path:
    """Create the server's ledger (its record of all sums) where the configuration at `path` says. Return its
    path. Raise `ConfigError` if the configuration is invalid, or there is or was a ledger."""
    plan = load_server_setup(path, with_ledger=False)
    problems = Problems(path)
    with problems.about("server.ledger"):
        ServerLedger.create(plan.config.server.ledger, identity=plan.credentials.identity.public).close()
    problems.check()
    return plan.config.server.ledger


def forgive(path: Path, member: int) -> None:
    """Record in the ledger that client `member`, which is barred, may take part again. Raise `SecaggError` if
    the configuration at `path` is invalid, or the client is not barred."""
    with load_server_setup(path).open_ledger() as ledger:
        ledger.forgive(member)


def load_server_setup(path: Path, *, with_ledger: bool = True) -> ServerSetup:
    """Return the verified configuration at `path`, or raise one `ConfigError` with the problems found. If
    `with_ledger`, the ledger must exist and is verified, too."""
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
    check_metrics(config.metrics, problems)
    check_addresses(config.server.listen, config.metrics, problems)
    _check_totals(config.server.totals, problems)
    if config.server.evidence is not None:
        with problems.about("server.evidence"):
            EvidenceDirectory(config.server.evidence).check()
    if table is not None:
        check_asks(config.ask, table, problems)
    if table is not None and credentials is not None:
        _check_session(config, table, credentials.registry, problems)
    if credentials is not None and with_ledger:
        _check_ledger(config, credentials, problems)
    problems.check()
    assert table is not None
    assert credentials is not None
    live = LiveServerCredentials(credentials, config.server, "server")
    return ServerSetup(path, config, table, live, deadlines, patience, capacity)


def _check_pace(section: SessionSection, problems: Problems) -> None:
    if section.sessions < 0:
        problems.add("session.sessions", "must be at least 0, which is for ever")
    if not 0 <= section.pause <= DAY:
        problems.add("session.pause", f"must be a number of seconds from 0 to {DAY:g}")
    if not 0 <= section.first_round < 1 << 62:
        problems.add("session.first_round", "must be from 0 to below 2^62")


def _check_totals(directory: Path, problems: Problems) -> None:
    with problems.about("server.totals"):
        if is_directory(directory, ConfigError):
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


def _open_ledger(config: ServeConfig, own: ServerCredentials) -> ServerLedger:
    path, identity = config.server.ledger, own.identity.public
    return ServerLedger.open(path, identity=identity, hand_overs=own.hand_overs, authority=own.authority)


def _check_ledger(config: ServeConfig, own: ServerCredentials, problems: Problems) -> None:
    with problems.about("server.ledger"):
        try:
            _open_ledger(config, own).close()
            round_after(config.server.ledger)
            check_room(config.server.ledger.parent)
        except MissingLedger as error:
            raise LedgerError(f"{error} with {NEW_LEDGER}") from None


def _machine(
    section: SessionSection,
    table: Table,
    sums: int,
    registry: Registry,
    barred: Collection[int] = (),
    history: SetLog | None = None,
) -> ServerMachine:
    params = section.params(sums)
    signed = params.trust is Trust.MALICIOUS
    return ServerMachine(
        table=table,
        params=params,
        registry=registry if signed else None,
        now=int(time.time()),
        history=history,
        barred=barred,
    )
