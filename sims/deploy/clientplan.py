"""The plan of a client: its configuration, verified in every respect before it connects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.client import ClientMachine
from secagg.errors import LedgerError, MissingLedger, SecaggError
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.memory import VolatileMemory
from secagg.net.settings import Patience
from secagg.policy import Policy
from secagg.refusals import check_registry_is_current
from secagg.registry import Registry
from secagg.spec import Table
from secagg.thresholds import Trust
from sims.config_problems import Problems
from sims.deploy.config import JoinConfig, load
from sims.deploy.credentials import ClientCredentials, client_credentials
from sims.deploy.distinct import check_client_files
from sims.deploy.inputs import Source, open_source
from sims.deploy.log import check_log
from sims.deploy.sums import read_table

NEW_LEDGER: Final = "secagg join --new-ledger"


@dataclass(frozen=True)
class Plan:
    """A configuration that was verified, and everything that was made of it."""

    config: JoinConfig
    table: Table
    policy: Policy
    credentials: ClientCredentials
    patience: Patience
    source: Source

    @property
    def signer(self) -> tuple[Identity | None, Registry | None]:
        """With what a machine signs and verifies: nothing, if the server is trusted to be curious only."""
        return _signer(self.policy, self.credentials)

    def open_ledger(self) -> ClientLedger:
        return _open_ledger(self.config, self.credentials)


def new_ledger(path: Path) -> Path:
    """Verify a configuration and make the ledger that it names. Raises `ConfigError`."""
    plan = verified(path, with_ledger=False)
    section, problems = plan.config.client, Problems(path)
    with problems.about("client.ledger"):
        public = plan.credentials.identity.public
        ClientLedger.create(section.ledger, member=section.member, identity=public).close()
    problems.check()
    return section.ledger


def verified(path: Path, *, with_ledger: bool = True) -> Plan:
    """Raises `ConfigError` with everything that is wrong."""
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
    if clear:  # or the log could be the file of something else, which to check for would create
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
    return Plan(config, table, policy, credentials, patience, source)


def _check_machine(
    config: JoinConfig, table: Table, policy: Policy, credentials: ClientCredentials, problems: Problems
) -> None:
    """Whether the table fits the policy. Memory comes later: to check must leave no trace there."""
    if credentials.registry.members.get(config.client.member) != credentials.identity.public:
        return  # which is a problem of its own
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
