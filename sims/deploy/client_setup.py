"""Verifies the configuration of a client, makes the objects that it runs with, and creates its ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocols.query_encoding import query_content
from secagg.client import ClientMachine
from secagg.client_budget import Spend
from secagg.client_checks import check_registry_is_current
from secagg.client_memory import VolatileMemory
from secagg.differencing_rules import ContentOf
from secagg.errors import LedgerError, MissingLedger, SecaggError
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.net.settings import ENGINE, Patience
from secagg.policy import Policy
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems
from sims.deploy.client_values import Source, answer_of, is_static, open_source
from sims.deploy.config import InputSection, JoinConfig, load
from sims.deploy.credentials import ClientCredentials, client_credentials
from sims.deploy.disk_room import check_room
from sims.deploy.file_purposes import check_client_files
from sims.deploy.log import check_log
from sims.deploy.repeatable_query_nonce import content
from sims.deploy.sum_specs_file import read_table
from sims.text_format import DECLINING, DIFFERENCING

if TYPE_CHECKING:
    from sims.deploy.training_client import RunClient

NEW_LEDGER: Final = "secagg join --new-ledger"
_TRAINING: Final = ("share", "data", "learner", "arguments", "state", "model", "personal")


@dataclass(frozen=True)
class ClientSetup:
    """A verified configuration of a client, and the objects that are made from it."""

    config: JoinConfig
    table: Table
    policy: Policy
    credentials: ClientCredentials
    patience: Patience
    source: Source
    training: RunClient | None = None  # None for single sums

    @property
    def signer(self) -> tuple[Identity | None, Registry | None]:
        """The identity and registry to sign and verify messages with; both None under `curious_server`."""
        return _signer(self.policy, self.credentials)

    @property
    def static_kinds(self) -> tuple[str, ...]:
        """The kinds of sums whose values do not depend on the question: all kinds of the table, or none."""
        if self.training is not None:
            return ()
        return tuple(self.table) if is_static(self.config.input, self.source) else ()

    @property
    def content_of(self) -> ContentOf:
        """The function that returns a query's payload without what changes in every round."""
        return content if self.training is None else query_content

    def answer(self, asked: Asked) -> Mapping[str, Any]:
        """Return this client's values for a sum, by part name. Raise `InputError` if there are none."""
        return answer_of(self.source, asked) if self.training is None else self.training.answer(asked)

    @property
    def cautions(self) -> list[str]:
        """Warnings about sums with a part without noise: a client shows that its values cannot be used, and,
        if they do not depend on the question, the difference of two totals shows more than either. In
        training, also what the scenario asks for that only a simulation does, and a budget that allows too
        few sums."""
        kinds = [kind for kind in self.table if not self.table[kind].is_private]
        same = [kind for kind in kinds if kind in self.static_kinds]
        told = [DECLINING.format(kinds=", ".join(kinds))] if kinds else []
        if self.training is not None:
            from sims.deploy.training_checks import budget_cautions  # needs torch

            told += (*self.training.terms.cautions, *budget_cautions(self.policy, self.training.terms))
        return told + ([DIFFERENCING.format(kinds=", ".join(same))] if same else [])

    def policy_for(self, ledger: ClientLedger) -> Policy:
        """Return the policy; in training, with no more of the privacy budget than the run costs."""
        if self.training is None:
            return self.policy
        from sims.deploy.training_checks import run_policy  # needs torch

        return run_policy(self.policy, self.training.terms, ledger)

    def open_ledger(self) -> ClientLedger:
        return _open_ledger(self.config, self.credentials)


def new_ledger(path: Path) -> Path:
    """Create the client's ledger (its record of answered sums) where the configuration at `path` says. Return
    its path. Raise `ConfigError` if the configuration is invalid, or there is or was a ledger."""
    plan = load_client_setup(path, with_ledger=False)
    section, problems = plan.config.client, Problems(path)
    with problems.about("client.ledger"):
        public = plan.credentials.identity.public
        ClientLedger.create(section.ledger, member=section.member, identity=public).close()
    problems.check()
    return section.ledger


def load_client_setup(path: Path, *, with_ledger: bool = True, through_engine: bool = False) -> ClientSetup:
    """Return the verified configuration at `path`, or raise one `ConfigError` that lists all problems. If
    `with_ledger`, the ledger must exist and is verified, too. If `through_engine`, an engine carries the
    connection, and `client.server` is not used."""
    config = load(path, JoinConfig)
    if through_engine:
        own = config.client.model_copy(update={"server": ENGINE})
        config = config.model_copy(update={"client": own})
    return client_setup(config, path, with_ledger=with_ledger)


def client_setup(
    config: JoinConfig, path: Path, *, training: RunClient | None = None, with_ledger: bool = True
) -> ClientSetup:
    """Return a verified configuration as `load_client_setup` does. `path` is the file of `config`. With
    `training`, a program has made the client that trains, and `config` names neither table nor scenario."""
    problems = Problems(path)
    clear = check_client_files(path, config, problems)
    if training is None:
        table, source, training = _values(config, path.parent, problems)
    else:
        table, source = training.terms.table, training.answer
    policy, patience = None, Patience()
    with problems.about("policy"):
        policy = config.policy.made()
    if training is not None:
        _check_batches(config.policy.min_difference, training, problems)
    with problems.about("patience"):
        patience = config.patience.made(through_engine=config.client.server is ENGINE)
    if clear:  # otherwise the check could create a file that belongs to something else
        with problems.about("client.log"):
            check_log(config.client.log)
    if training is not None and policy is not None:
        _check_training(config, training, policy, problems)
    credentials = client_credentials(config.client, problems, now=int(time.time()))
    if table is not None and policy is not None and credentials is not None:
        _check_machine(config, table, policy, credentials, problems)
    if policy is not None and credentials is not None and with_ledger:
        _check_ledger(config, policy, credentials, training, problems)
    problems.check()
    assert table is not None
    assert policy is not None
    assert credentials is not None
    assert source is not None
    return ClientSetup(config, table, policy, credentials, patience, source, training)


def _values(
    config: JoinConfig, directory: Path, problems: Problems
) -> tuple[Table | None, Source | None, RunClient | None]:
    """Return the sums of a client, the source of its values, and the client that trains; None for what is
    unusable, which is added to `problems`."""
    table = source = training = None
    with problems.about("client"):
        if (config.client.table is None) == (config.client.scenario is None):
            raise ConfigError("needs either table, for single sums, or scenario, for training, and not both")
    if config.client.table is not None:
        with problems.about("client.table"):
            table = read_table(config.client.table)
        with problems.about("input"):
            _check_no_training(config.input)
            source = open_source(config.input, directory)
    elif config.client.scenario is not None:
        from sims.deploy.run_terms import run_terms  # needs torch
        from sims.deploy.training_client import training_client

        terms = None
        with problems.about("client.scenario"):
            terms = run_terms(config.client.scenario, directory)
            table = terms.table
        if terms is not None:
            training = training_client(config, terms, directory, problems)
            source = None if training is None else training.answer
    return table, source, training


def _check_no_training(section: InputSection) -> None:
    used = [name for name in _TRAINING if getattr(section, name) is not None]
    if used:
        raise ConfigError(f"{', '.join(used)}: for training only, which client.scenario describes; remove it")


def _check_batches(wanted: int, training: RunClient, problems: Problems) -> None:
    """Add a problem if the policy's `min_difference` is larger than the server will keep."""
    agreed = training.terms.settings.channel.min_difference
    if wanted > agreed:
        problems.add(
            "policy.min_difference",
            f"is {wanted}, but the scenario has channel.min_difference = {agreed}: the server would choose "
            "clients that this client refuses; set both to the same number, on the server as well",
        )


def _check_machine(
    config: JoinConfig, table: Table, policy: Policy, credentials: ClientCredentials, problems: Problems
) -> None:
    """Add a problem if the policy does not allow the sums in the table. This is tested by constructing a
    `ClientMachine`, with a temporary memory instead of the client's ledger, which it would change."""
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


def _check_training(config: JoinConfig, training: RunClient, policy: Policy, problems: Problems) -> None:
    from sims.deploy.training_checks import check_client_outputs, check_policy  # needs torch

    check_client_outputs(config.input, problems)
    check_policy(policy, training.terms, problems)


def _check_ledger(
    config: JoinConfig,
    policy: Policy,
    credentials: ClientCredentials,
    training: RunClient | None,
    problems: Problems,
) -> None:
    if credentials.registry.members.get(config.client.member) != credentials.identity.public:
        return
    try:
        ledger = _open_ledger(config, credentials)
    except SecaggError as error:
        problems.take("client.ledger", error)
        return
    with ledger:
        with problems.about("client.ledger"):
            check_room(config.client.ledger.parent)
        with problems.about("policy.adjacency"):
            ledger.spend.check_adjacency(policy.adjacency)
        with problems.about("client.registry"):
            check_registry_is_current(credentials.registry, ledger)
        if training is not None:
            from sims.deploy.training_checks import check_budget  # needs torch

            # What an interrupted run has spent so far belongs to the budget of this run.
            check_budget(policy, training.terms, ledger.spend if training.is_new else Spend(), problems)


def _open_ledger(config: JoinConfig, credentials: ClientCredentials) -> ClientLedger:
    section, public = config.client, credentials.identity.public
    try:
        return ClientLedger.open(
            section.ledger,
            member=section.member,
            identity=public,
            hand_overs=credentials.hand_overs,
            authority=credentials.authority,
        )
    except MissingLedger as error:
        raise LedgerError(f"{error} with {NEW_LEDGER}") from None


def _signer(policy: Policy, credentials: ClientCredentials) -> tuple[Identity | None, Registry | None]:
    if policy.trust is Trust.CURIOUS:
        return None, None
    return credentials.identity, credentials.registry
