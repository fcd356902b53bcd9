"""`secagg join`: verifies a client's configuration, then takes part in the sessions of its server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from secagg.client import ClientMachine
from secagg.client_checks import check_registry_is_current
from secagg.client_memory import VolatileMemory
from secagg.errors import InputError, LedgerError, MissingLedger, SecaggError, UnchangedValues
from secagg.events import Asked, Joined, SessionOver
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.net.client import Client, open_client
from secagg.net.event_log import EventLog, Fact
from secagg.net.events import ClientNetworkEvent
from secagg.net.settings import Patience
from secagg.net.tls import client_context
from secagg.policy import Policy
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import Problems
from sims.deploy.client_inputs import Source, is_static, open_source, usable
from sims.deploy.config import JoinConfig, check_client_files, load
from sims.deploy.credentials import ClientCredentials, client_credentials
from sims.deploy.log import check_log, open_log
from sims.deploy.process_control import forbid_core_dumps, run_watched
from sims.deploy.scheduled_sums import DIFFERENCING, content
from sims.deploy.sum_specs_file import read_table


def join(path: Path, *, sessions: int = 0) -> None:
    """Run the client with the configuration at `path`, until SIGTERM or for `sessions` sessions (0: no
    limit). Raise a `SecaggError` if an operator has to repair something."""
    forbid_core_dumps()
    plan = load_client_setup(path)
    with open_log(plan.config.client.log) as log, plan.open_ledger() as ledger:
        events = EventLog(log)
        runner = JoinRunner(plan, ledger, events, sessions=sessions)
        run_watched(runner.run, registry=plan.credentials.registry, log=events)


class JoinRunner:
    """Takes part in the sums of a server. Ends after `sessions` sessions, or never if `sessions` is 0."""

    def __init__(self, plan: ClientSetup, ledger: ClientLedger, log: EventLog, *, sessions: int) -> None:
        self._plan = plan
        self._ledger = ledger
        self._log = log
        self._sessions = sessions
        self._in_session = False
        self._held = 0
        self._enough = trio.Event()

    def _on_event(self, event: ClientNetworkEvent) -> None:
        self._log(event)
        if isinstance(event, Joined):
            self._in_session = True
        elif isinstance(event, SessionOver) and self._in_session:
            self._in_session = False
            self._held += 1
            if self._held == self._sessions:
                self._enough.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_done, nursery.cancel_scope)
            await self._take_part()

    async def _leave_when_done(self, scope: trio.CancelScope) -> None:
        await self._enough.wait()
        scope.cancel()

    async def _take_part(self) -> None:
        plan, section, own = self._plan, self._plan.config.client, self._plan.credentials
        identity, registry = plan.signer
        async with open_client(
            section.server,
            member=section.member,
            table=plan.table,
            policy=plan.policy,
            memory=self._ledger,
            identity=identity,
            registry=registry,
            static=plan.static_kinds,
            content_of=content,
            context=client_context(own.identity, own.certificate, own.server),
            patience=plan.patience,
            on_event=self._on_event,
        ) as client:
            self._log_start()
            async for asked in client:
                await self._answer(client, asked)

    def _log_start(self) -> None:
        section, spend = self._plan.config.client, self._ledger.spend
        self._log.write(
            "started",
            member=section.member,
            server=str(section.server),
            trust=str(self._plan.policy.trust),
            registry=self._plan.credentials.registry.version,
            unnoised_sums=spend.unnoised,
            rho=spend.rho,
        )
        for caution in self._plan.cautions:
            self._log.write("caution", reason=caution)

    async def _answer(self, client: Client, asked: Asked) -> None:
        about: dict[str, Fact] = {"sum": asked.sum_index, "kind": asked.kind}
        try:
            # A computing thread cannot be stopped, so it is abandoned when the process ends.
            values = await trio.to_thread.run_sync(usable, self._plan.source, asked, abandon_on_cancel=True)
            answered = await client.answer(asked, values)
        except (InputError, UnchangedValues) as error:
            self._log.write("declined", **about, reason=str(error))
            await client.decline(asked)
            return
        self._log.write("answered" if answered else "too late", **about)


NEW_LEDGER: Final = "secagg join --new-ledger"


@dataclass(frozen=True)
class ClientSetup:
    """A verified configuration of a client, and the objects that are made from it."""

    config: JoinConfig
    table: Table
    policy: Policy
    credentials: ClientCredentials
    patience: Patience
    source: Source

    @property
    def signer(self) -> tuple[Identity | None, Registry | None]:
        """The identity and registry to sign and verify messages with; both None under `curious_server`."""
        return _signer(self.policy, self.credentials)

    @property
    def static_kinds(self) -> tuple[str, ...]:
        """The kinds of sums that get the same values for every question: all of the table, or none."""
        return tuple(self.table) if is_static(self.config.input, self.source) else ()

    @property
    def cautions(self) -> list[str]:
        """Warnings to the operator about a configuration that is valid."""
        kinds = ", ".join(kind for kind in self.static_kinds if not self.table[kind].is_private)
        return [DIFFERENCING.format(kinds=kinds)] if kinds else []

    def open_ledger(self) -> ClientLedger:
        return _open_ledger(self.config, self.credentials)


def new_ledger(path: Path) -> Path:
    """Create the client's ledger (its record of answered sums) where the configuration at `path` says. Return
    the ledger's path, or raise `ConfigError`."""
    plan = load_client_setup(path, with_ledger=False)
    section, problems = plan.config.client, Problems(path)
    with problems.about("client.ledger"):
        public = plan.credentials.identity.public
        ClientLedger.create(section.ledger, member=section.member, identity=public).close()
    problems.check()
    return section.ledger


def load_client_setup(path: Path, *, with_ledger: bool = True) -> ClientSetup:
    """Load and verify the configuration at `path`. Raise one `ConfigError` that lists all problems. If
    `with_ledger`, the ledger must exist, and is verified, too."""
    config = load(path, JoinConfig)
    problems = Problems(path)
    clear = check_client_files(path, config, problems)
    table = policy = source = None
    patience = Patience()
    with problems.about("client.table"):
        table = read_table(config.client.table)
    with problems.about("policy"):
        policy = config.policy.made()
    with problems.about("patience"):
        patience = config.patience.made()
    with problems.about("input"):
        source = open_source(config.input, path.parent)
    if clear:  # otherwise the check could create a file that belongs to something else
        with problems.about("client.log"):
            check_log(config.client.log)
    credentials = client_credentials(config.client, problems, now=int(time.time()))
    if table is not None and policy is not None and credentials is not None:
        _check_machine(config, table, policy, credentials, problems)
    if policy is not None and credentials is not None and with_ledger:
        _check_ledger(config, policy, credentials, problems)
    problems.check()
    assert table is not None
    assert policy is not None
    assert credentials is not None
    assert source is not None
    return ClientSetup(config, table, policy, credentials, patience, source)


def _check_machine(
    config: JoinConfig, table: Table, policy: Policy, credentials: ClientCredentials, problems: Problems
) -> None:
    """Add a problem if the policy does not allow the table's sums. This constructs a `ClientMachine` with an
    empty memory instead of the ledger, which it would change. `_check_ledger` checks the ledger."""
    if credentials.registry.members.get(config.client.member) != credentials.identity.public:
        return  # this is reported elsewhere
    identity, registry = _signer(policy, credentials)
    with problems.about("policy"):
        ClientMachine(
            member=config.client.member,
            table=table,
            policy=policy,
            memory=VolatileMemory(),
            identity=identity,
            registry=registry,
        )


def _check_ledger(
    config: JoinConfig, policy: Policy, credentials: ClientCredentials, problems: Problems
) -> None:
    if credentials.registry.members.get(config.client.member) != credentials.identity.public:
        return
    try:
        ledger = _open_ledger(config, credentials)
    except SecaggError as error:
        problems.take("client.ledger", error)
        return
    with ledger:
        with problems.about("policy.adjacency"):
            ledger.spend.check_adjacency(policy.adjacency)
        with problems.about("client.registry"):
            check_registry_is_current(credentials.registry, ledger)


def _open_ledger(config: JoinConfig, credentials: ClientCredentials) -> ClientLedger:
    section, public = config.client, credentials.identity.public
    try:
        return ClientLedger.open(section.ledger, member=section.member, identity=public)
    except MissingLedger as error:
        raise LedgerError(f"{error} with {NEW_LEDGER}") from None


def _signer(policy: Policy, credentials: ClientCredentials) -> tuple[Identity | None, Registry | None]:
    if policy.trust is Trust.CURIOUS:
        return None, None
    return credentials.identity, credentials.registry
