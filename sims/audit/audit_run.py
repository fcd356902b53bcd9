"""Builds the audit of a run directory, and converts the audit to JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sims.audit.audit_result import Audit, Guarantee, RunSummary
from sims.audit.byte_comparison_and_growth import traffic
from sims.audit.derived_sums import derived_sums
from sims.audit.exposures import exposures
from sims.audit.guarantee import guarantee, sampling_errors, without_noise_of, without_sampling_errors
from sims.audit.integrity import examined
from sims.audit.ledger_vs_sum_log import Records
from sims.audit.privacy_cost import (
    BudgetAccounts,
    PrivacyAccount,
    adjacency_of,
    canaries,
    delta_of,
    participations_of,
    spending,
    untested,
    wrong_charges,
)
from sims.audit.released_sums import kinds_of, releases, round_ranges
from sims.audit.run_files import Evidence, Row
from sims.audit.run_outcomes import achieved, groups, losses, tail
from sims.config_problems import ConfigError, toml_tables
from sims.records import RunDirectory
from sims.records.run_file_names import METRICS, RUN, SCENARIO, SUMS


def audit_run(
    run: RunDirectory | Path, *, server_key: bytes | None = None, delta: float | None = None
) -> Audit:
    """Return the audit of a run directory. `server_key` is the public key with which the server must have
    signed the ledger; None accepts any key. `delta` is the delta of every epsilon; by default, that of the
    scenario, or 1e-5 if none is recorded. Raise `ConfigError` if `run` is not a run directory, or if a file
    cannot be parsed. If the ledger was altered, no error is raised: `Audit.integrity` reports it."""
    path = run.path if isinstance(run, RunDirectory) else run
    try:
        return _audit(path, server_key, delta)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} holds something that no run writes, and that cannot be understood: "
            f"{type(error).__name__}, {error}"
        ) from error


def _audit(path: Path, server_key: bytes | None, delta: float | None) -> Audit:
    evidence = Evidence.of(path, server_key)
    settings = _tables(evidence)
    found = examined(evidence, server_key)
    records = found.records
    chosen, remark = delta_of(evidence, settings, delta)
    adjacency = adjacency_of(evidence, records)
    accounts = PrivacyAccount(adjacency, chosen)
    tail_delta = settings.get("tail", {}).get("delta") if delta is None else None
    budget_accounts = BudgetAccounts(
        accounts,
        accounts if tail_delta is None else PrivacyAccount(adjacency, tail_delta),
        participations_of(settings),
    )
    sums = derived_sums(evidence, found.reading)
    written = sums.rows
    described = {row["kind"]: row for row in written}
    kinds = kinds_of(written, records.entries)
    extra = {kind.kind for kind in kinds if kind.extra}
    learned = releases(records, described, budget_accounts)
    spent = spending(evidence, records, extra, learned, budget_accounts)
    problems = [*found.integrity.problems, *sums.problems, *wrong_charges(records, accounts)]
    remarks = [f"{name} is missing; what follows from it is left out" for name in evidence.missing]
    if remark and any(release.rho is not None for release in learned):
        remarks.append(remark)
    return Audit(
        subject=_subject(evidence, written, settings),
        integrity=replace(
            found.integrity,
            problems=tuple(problems),
            remarks=(*found.integrity.remarks, *sums.remarks),
        ),
        kinds=kinds,
        releases=learned,
        stretches=round_ranges(learned, extra),
        spending=spent,
        guarantee=_guarantee(
            guarantee(learned, extra, spent, accounts),
            records,
            described,
            _unplanned(evidence.run, written, settings),
        ),
        exposures=exposures(evidence, kinds, described, learned),
        groups=groups(evidence, kinds, records),
        losses=losses(evidence),
        traffic=None if evidence.withheld & {RUN, SUMS} else traffic(evidence, records),
        canaries=canaries(evidence),
        untested=untested(evidence, kinds),
        achieved=achieved(evidence),
        remarks=tuple(remarks),
        tail=tail(evidence),
    )


def _tables(evidence: Evidence) -> Row:
    """Return the tables of the scenario; {} if it is missing or was altered."""
    scenario = evidence.directory / SCENARIO
    return toml_tables(scenario) if scenario.exists() and SCENARIO not in evidence.withheld else {}


def _unplanned(run: Row, sums: Sequence[Row], settings: Mapping[str, Any]) -> int:
    """Return how many attackers replace their noise beyond the colluders for whom noise was planned."""
    if settings.get("attack", {}).get("level") != "message":
        return 0
    return int(max(0, run.get("corrupt", 0) - (_colluders(sums, settings) or 0)))


def _guarantee(found: Guarantee, records: Records, described: Mapping[str, Any], unplanned: int) -> Guarantee:
    if found.epsilon is None:
        return found
    if unplanned:
        return without_noise_of(found, unplanned)
    return without_sampling_errors(found, sampling_errors(records, described, found.epsilon))


def _subject(evidence: Evidence, sums: Sequence[Row], settings: Mapping[str, Any]) -> RunSummary:
    run = evidence.run
    sessions = [row for row in evidence.sessions if row.failure is None]
    graph: Mapping[str, Any] = sessions[-1].to_json() if sessions else run.get("graph") or {}
    return RunSummary(
        path=str(evidence.directory.path),
        name=run["name"],
        label=run.get("label") or run["name"],
        algorithm=run["algorithm"],
        clients=run["clients"],
        per_round=run["per_round"],
        dim=run["dim"],
        attackers=int(run.get("corrupt", 0)),
        channel=run["channel"],
        trust=run["trust"],
        key_agreement=run["key_agreement"],
        graph=graph.get("graph") or graph.get("kind"),
        neighbours=graph.get("neighbours"),
        threshold=graph.get("threshold"),
        insecure_seed=run.get("insecure_seed"),
        status=run["status"],
        why=run.get("why"),
        rounds=run["rounds"],
        done=run["done"],
        seconds=float((run.get("seconds") or {}).get("wall", 0.0)),
        command=_command(evidence),
        colluders=_colluders(sums, settings),
        cluster=run.get("cluster"),
        withheld=evidence.unknown,
    )


def _colluders(sums: Sequence[Row], settings: Mapping[str, Any]) -> int | None:
    """Return how many colluding clients the run planned for, by the noise of its sums or by its scenario."""
    promises = [row["promise"] for row in sums if row.get("promise") is not None]
    if promises:
        return min(int(promise["colluders"]) for promise in promises)
    planned = settings.get("channel", {}).get("corrupt")
    return planned if isinstance(planned, int) else None


def _command(evidence: Evidence) -> str:
    """Return the command that repeats the run; empty if it was altered, or has no data to be simulated."""
    if RUN in evidence.withheld or not evidence.run.get("command"):
        return ""
    return command_for(evidence.directory.path)


def command_for(path: Path) -> str:
    """Return the command that repeats the run in the directory `path`."""
    return f"secagg simulate {shlex.quote(str(path / SCENARIO))}"


def as_json(audit: Audit) -> dict[str, Any]:
    """Return the audit as a dictionary for JSON. Keys are field names, but `attackers` becomes `corrupt`. The
    properties `intact`, `sound` and `mean` are added."""
    found = asdict(audit)
    found |= {"intact": audit.intact, "sound": audit.sound}
    found["integrity"]["verdict"] = str(audit.integrity.verdict)
    if METRICS in audit.integrity.withheld:
        found["achieved"]["completed"] = None
    found["subject"]["corrupt"] = found["subject"].pop("attackers")
    for name in found["subject"].pop("withheld"):
        if name in found["subject"]:
            found["subject"][name] = None
    if audit.subject.cluster is None:
        del found["subject"]["cluster"]
    for group, own in zip(found["groups"], audit.groups, strict=True):
        group["mean"] = own.mean
        group["rounds"] = {str(steps): often for steps, often in own.rounds.items()}
    return found
