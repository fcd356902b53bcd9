"""Reads the files of a run directory that an audit needs. Other modules of this package check the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError
from sims.records import RunDirectory
from sims.records.run_directory import PLAIN_CHANNELS
from sims.records.run_file_names import CANARIES, LEDGER, LEDGER_HEAD, LEDGER_SEAL, METRICS, RUN, SPEND, SUMS
from sims.records.sum_records import ResumeRecord, SessionRecord, SumHistory, SumRecord

_OF_RUNS: Final = (
    "name", "status", "channel", "algorithm", "trust", "key_agreement",
    "clients", "per_round", "dim", "rounds",
)  # fmt: skip

# What a run on a cluster says about it, and in which types.
_OF_CLUSTERS: Final = {"address": str, "ray": str, "nodes": int, "actors": int}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The contents of all files of a run that an audit reads, except the ledger."""

    directory: RunDirectory
    run: Row  # `run.json`
    sessions: tuple[SessionRecord, ...]  # from the log `sums.jsonl`, like `sums` and `resumed`
    sums: tuple[SumRecord, ...]
    resumed: tuple[ResumeRecord, ...]  # the points where a stopped run was resumed
    metrics: tuple[Row, ...]  # `metrics.jsonl`
    spend: Row | None  # `spend.json`; None if there is none
    canaries: Row | None  # `canaries.json`; None if there is none
    missing: tuple[str, ...]  # the names of expected files that do not exist

    @classmethod
    def of(cls, path: Path) -> Evidence:
        """Read the run directory `path`. Raise `ConfigError` if it is not one, or a file is damaged."""
        directory = _directory(path)
        run = directory.facts()
        if lacking := [name for name in (*_OF_RUNS, "done") if name not in run]:
            raise ConfigError(f"{directory / RUN} is damaged: it does not say {', '.join(lacking)}")
        _check_cluster(directory, run.get("cluster"))
        if not (directory / SUMS).exists():
            raise ConfigError(f"{directory / SUMS} is missing: it lists the sums of the run")
        history = SumHistory.of(directory.read_lines(SUMS), f"{directory / SUMS}")
        return cls(
            directory=directory,
            run=run,
            sessions=history.sessions,
            sums=history.sums,
            resumed=history.resumed,
            metrics=tuple(directory.read_lines(METRICS)),
            spend=_optional(directory, SPEND),
            canaries=_optional(directory, CANARIES),
            missing=tuple(name for name in _expected(run) if not (directory / name).exists()),
        )

    @property
    def is_plain(self) -> bool:
        """Whether the run computed its sums directly, without secure aggregation."""
        return self.run["channel"] in PLAIN_CHANNELS

    @property
    def finished(self) -> bool:
        return bool(self.run["status"] == "finished")


def _directory(path: Path) -> RunDirectory:
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory: give that of a run, such as results/NAME")
    directory = RunDirectory(path)
    inside = [] if directory.exists else sorted(each.parent for each in path.glob(f"*/{RUN}"))
    if inside:
        names = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")
        raise ConfigError(f"{path} holds several runs: choose one, or --compare them: {names}")
    return directory


def _check_cluster(directory: RunDirectory, cluster: object) -> None:
    """Raise `ConfigError` unless `cluster` is None or has the facts of a cluster."""
    if cluster is None:
        return
    facts = cluster if isinstance(cluster, Mapping) else {}
    wrong = [name for name, kind in _OF_CLUSTERS.items() if type(facts.get(name)) is not kind]
    if wrong:
        raise ConfigError(
            f"{directory / RUN} is damaged: cluster does not say {', '.join(wrong)} as a run writes it; take "
            "the file from a copy of the run"
        )


def _expected(run: Row) -> tuple[str, ...]:
    ledger = () if run["channel"] in PLAIN_CHANNELS else (LEDGER, LEDGER_SEAL, LEDGER_HEAD)
    return (METRICS, *ledger, *((SPEND,) if run["status"] == "finished" else ()))


def _optional(directory: RunDirectory, name: str) -> Row | None:
    return directory.read_json(name) if (directory / name).exists() else None
