"""Checks of a training deployment before it starts: the table [deploy] of a server with its run directory,
and the files and the budget of a client. Mistakes are reported before hours of training, not after."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from protocols.algorithm import Sum
from secagg.client_budget import Spend
from secagg.identity_registry import Registry
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.net.atomic_files import is_directory
from secagg.net.identity_and_registry_files import bundle_path
from secagg.net.settings import DAY
from secagg.noise.zcdp_cost import Adjacency, charge, rho_of
from secagg.policy import Policy
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import DeploySection, InputSection, safetensors_path
from sims.deploy.disk_room import check_room
from sims.deploy.evidence_directory import EvidenceDirectory
from sims.deploy.file_purposes import Named, check_one_purpose, named_files, scenario_code
from sims.deploy.log import check_log
from sims.deploy.monitoring import check_addresses
from sims.deploy.run_terms import RunTerms
from sims.deploy.training_monitoring import METRICS_KEY, WHERE
from sims.plan.cost_plan import query_bytes
from sims.records import RunDirectory
from sims.records.checkpoint import Checkpoint
from sims.records.run_directory import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    RunAdvice,
    disk_errors,
    first_lines,
)
from sims.records.run_file_names import LEDGER, LOCK, METRICS, OUTCOME, RUN, RUN_FILES, SUMS
from sims.scenario.cohort_checks import too_few_participations
from sims.scenario.federated_data import participation_limit
from sims.scenario.participation import Participations

_OTHER: Final = "name another run directory"
_ADVICE: Final = RunAdvice(
    other=_OTHER,
    foreign=f"restore the settings of that run, or {_OTHER}",
    lost=f"restore it from a backup, or {_OTHER}",
)

_STATUSES: Final = (RUNNING, INTERRUPTED, FINISHED, FAILED)
_START: Final = 9  # bytes of a file that tell whether it is a model
_ROUNDING: Final = 1e-9  # of a cost

# --- a server ---


def served_directory(path: Path) -> RunDirectory:
    """Return the run directory of a server, whose errors say what its operator can do."""
    return RunDirectory(path, _ADVICE)


def check_deploy_section(path: Path, section: DeploySection, problems: Problems) -> None:
    """Add a problem for everything in the table [deploy] of `path` that does not depend on the terms."""
    beside: list[Named] = [("the configuration", path)]
    if section.registry.suffix != ".pem":  # otherwise the name is invalid, which is reported elsewhere
        beside.append(("the file of certificates of deploy.registry", bundle_path(section.registry)))
    beside += [(f"{name} of deploy.run", section.run / name) for name in RUN_FILES]
    beside += scenario_code(path)
    if check_one_purpose([*beside, *named_files("deploy", section)], problems):
        with problems.about("deploy.log"):
            _check_outside(section.log, section.run)
            check_log(section.log)
    check_addresses(section.listen, section.metrics, problems, f"{WHERE}.{METRICS_KEY}")
    for key in ("deadlines", "patience", "capacity"):
        with problems.about(f"deploy.{key}"):
            getattr(section, key).made()
    for key in ("rest", "linger"):
        if not 0 <= getattr(section, key) <= DAY:
            problems.add(f"deploy.{key}", f"must be a number of seconds from 0 to {DAY:g}")
    if section.evidence is not None:
        with problems.about("deploy.evidence"):
            EvidenceDirectory(section.evidence).check()


def _check_outside(log: Path | None, run: Path) -> None:
    """Raise `ConfigError` if the log is in the run directory. A run refuses a new directory with other files,
    so the check, which creates the log, would make the run impossible."""
    if log is not None and log.resolve().is_relative_to(run.resolve()):
        raise ConfigError(f"{log} is in the run directory, which is for the run alone: name a file elsewhere")


def check_cohort(section: DeploySection, terms: RunTerms, registry: Registry, problems: Problems) -> None:
    """Add a problem if there can never be enough clients for a round."""
    for there, have in ((terms.clients, "the run is for"), (len(registry.members), "the registry has")):
        if section.min_cohort > there:
            problems.add("deploy.min_cohort", f"{section.min_cohort} clients are needed, but {have} {there}")
            return
    if participation_limit(terms.settings) is not None:
        for name, why in too_few_participations(terms.settings, len(registry.members)):
            problems.add(f"privacy.{name}", why)


def check_clients_left(
    participations: Participations, members: Collection[int], least: int, done: int, rounds: int
) -> None:
    """Raise `ConfigError` if fewer than `least` of the `members` may take part in another round. `done` of
    the `rounds` of the run are over."""
    gone = len(participations.exhausted() & set(members))
    if len(members) - gone < least:
        raise ConfigError(
            f"the run ends after {done} of {rounds} rounds: {gone} of {len(members)} clients have taken part "
            f"as often as privacy.participations allows, and a round needs {least}: enrol more clients, and "
            "serve the run again"
        )


def check_run_directory(path: Path, digest: str) -> None:
    """Raise `SecaggError` if a run with settings of this digest can neither begin nor go on in `path`. Change
    nothing; another server may use the directory."""
    directory = served_directory(path)
    for name in (*RUN_FILES, LOCK):
        if is_directory(directory / name, ConfigError):
            raise ConfigError(f"{directory / name} is a directory, but a run has a file there: {_OTHER}")
    if directory.exists:
        _check_run(directory, digest)
    else:
        _check_new(directory)
    if is_directory(path, ConfigError):
        check_room(path)


def _check_run(directory: RunDirectory, digest: str) -> None:
    facts = directory.facts()
    if not isinstance(facts.get("digest"), str) or facts.get("status") not in _STATUSES:
        raise ConfigError(f"{directory / RUN} is not that of a run: {_ADVICE.lost}")
    if directory.status == FINISHED:
        check_finished(directory, digest)
        return
    saved = Checkpoint.read(directory, digest=digest)
    for name in (SUMS, METRICS):
        first_lines(directory / name, saved.lines[name], _ADVICE.lost)
        if not os.access(directory / name, os.W_OK):
            raise ConfigError(f"{directory / name} cannot be written to: run chmod u+w on it")
    ServerLedger.open(directory / LEDGER).close()


def check_finished(directory: RunDirectory, digest: str) -> None:
    """Raise `ConfigError` unless the finished run in `directory` has settings of this digest: clients would
    take its model for that of a run with the new settings."""
    if directory.facts()["digest"] != digest:
        raise ConfigError(f"{directory} has a finished run with other settings: {_ADVICE.foreign}")
    if not (directory / OUTCOME).is_file():
        raise ConfigError(f"{directory / OUTCOME} does not exist: {_ADVICE.lost}")


def _check_new(directory: RunDirectory) -> None:
    """Raise `SecaggError` if a new run in `directory` is impossible, or would remove the ledger of a run."""
    path, ledger = directory.path, directory / LEDGER
    if ledger.exists() and any(row.body["entry"] == "asked" for row in read_ledger(ledger).rows):
        raise ConfigError(f"{directory / RUN} does not exist, but the ledger of a run does: {_ADVICE.lost}")
    if path.is_dir():
        directory.check_strangers()
    elif os.path.lexists(path):
        raise ConfigError(f"{path} is not a directory; name one, or a new one")
    else:
        above = next(each for each in path.parents if each.exists())
        try:
            check_room(above)  # some directories, such as /proc, accept no files in spite of their mode
        except ConfigError:
            raise ConfigError(
                f"{path} cannot be a directory: nothing can be made in {above}; {_OTHER}"
            ) from None


# --- a client ---


def check_client_outputs(section: InputSection, problems: Problems) -> None:
    """Add a problem for each file of a client that could not be written when the time comes."""
    for key in ("state", "model", "personal"):
        path: Path | None = getattr(section, key)
        if path is not None:
            with problems.about(f"input.{key}"):
                if is_directory(path, ConfigError):
                    raise ConfigError(f"{path} is a directory; name a file")
                if key != "state":
                    _check_replaced(path, _is_archive)
                    _check_replaced(safetensors_path(path), _is_safetensors)
                check_room(path.parent)


def _check_replaced(path: Path, is_model: Callable[[bytes], bool]) -> None:
    """Raise `ConfigError` if there is something at `path` that is no model, which a final model would
    replace. `is_model` decides by the first bytes. An empty file is nothing."""
    if not path.exists():
        return
    if not path.is_file():
        raise ConfigError(f"a model is written to {path}, but this is no file: name another")
    with disk_errors(path, "read"), path.open("rb") as file:
        start = file.read(_START)
    if start and not is_model(start):
        raise ConfigError(
            f"{path} is no model, and would be replaced by one: name another file, or remove it"
        )


def _is_archive(start: bytes) -> bool:
    return start.startswith(b"PK")


def _is_safetensors(start: bytes) -> bool:
    """The header, which is JSON, follows its length in 8 bytes."""
    return start[8:9] == b"{"


def check_policy(policy: Policy, terms: RunTerms, problems: Problems) -> None:
    """Add a problem for each key of a policy that forbids what the client's own copy of the scenario says.
    Otherwise the client would refuse all sessions."""
    channel = terms.settings.channel
    for key in ("trust", "key_agreement"):
        needed, offered = str(getattr(policy, key)), getattr(channel, key)
        if needed != offered:
            problems.add(f"policy.{key}", f"is {needed}, but channel.{key} of the scenario is {offered}")
    if channel.sums > policy.max_sums:
        problems.add(
            "policy.max_sums",
            f"allows {policy.max_sums} in a session, but channel.sums of the scenario is {channel.sums}: "
            "raise it, or set channel.sums, on the server as well",
        )
    longest = max(max(query_bytes(each, terms.algorithm.dim)) for each in terms.algorithm.sums())
    if longest > policy.max_query_bytes:
        problems.add(
            "policy.max_query_bytes",
            f"is {policy.max_query_bytes}, but a query of the run has {longest}: raise it",
        )
    if policy.min_cohort > terms.clients:
        problems.add(
            "policy.min_cohort", f"{policy.min_cohort} clients are needed, but the run is for {terms.clients}"
        )


def check_budget(policy: Policy, terms: RunTerms, spent: Spend, problems: Problems) -> None:
    """Add a problem if the policy's budget is too small for the run, in which `spent` does not count yet."""
    rounds, algorithm = terms.settings.rounds, terms.algorithm
    least = rounds * sum(each.spec.times if each.needed is None else each.needed for each in _unnoised(terms))
    if spent.unnoised + least > policy.unnoised_sums:
        problems.add(
            "policy.unnoised_sums",
            f"allows {policy.unnoised_sums} sums without noise, of which {spent.unnoised} were answered, but "
            f"a run of {rounds} rounds has at least {least}: raise it, or do not take part",
        )
    cost = algorithm.max_rho
    if (
        cost is not None
        and policy.max_rho is not None
        and spent.rho + cost > policy.max_rho * (1 + _ROUNDING)
    ):
        problems.add(
            "policy.max_rho",
            f"allows {policy.max_rho:g}, of which {spent.rho:g} is spent, but the run costs {cost:g}: raise "
            "it, or do not take part",
        )


def run_policy(policy: Policy, terms: RunTerms, ledger: ClientLedger) -> Policy:
    """Return the policy of a client for a run with these terms. Its limit `max_rho` is what the run costs, by
    its terms, after what the client has spent elsewhere, if that is less than the limit for its life. So a
    server cannot use up in one run what is left for others, nor ask for more rounds than agreed."""
    cost = terms.algorithm.max_rho
    if cost is None or policy.adjacency is Adjacency.REPLACE:  # its costs are larger than those of the terms
        return policy
    groups = {terms.table.remembered_group(kind) for kind in terms.table}
    elsewhere = ledger.spend.charge - sum(map(ledger.charge_of, groups))
    limit = rho_of(elsewhere + charge(cost))
    return (
        policy if policy.max_rho is not None and policy.max_rho <= limit else replace(policy, max_rho=limit)
    )


def budget_cautions(policy: Policy, terms: RunTerms) -> list[str]:
    """Return a warning if the policy may allow too few sums without noise for the run."""
    most = terms.settings.rounds * sum(each.spec.times for each in _unnoised(terms))
    if policy.unnoised_sums >= most:
        return []
    return [
        f"policy.unnoised_sums: the run may have up to {most} sums without noise, and this client answers "
        f"{policy.unnoised_sums}: it may miss the last rounds"
    ]


def _unnoised(terms: RunTerms) -> list[Sum]:
    return [each for each in terms.algorithm.sums() if not each.spec.is_private]
