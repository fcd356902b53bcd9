"""Reads the files of a run directory that an audit needs. Other modules of this package check the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from secagg.distributed_noise import NoiseAssumptions
from sims.config_problems import ConfigError
from sims.records import RunDirectory
from sims.records.run_paths import CANARIES, LEDGER, LEDGER_HEAD, LEDGER_SEAL, METRICS, RUN, SPEND, SUMS
from sims.records.sum_records import ResumeRecord, SessionRecord, SumHistory, SumRecord

_OF_RUNS: Final = ("name", "status", "channel", "algorithm", "trust", "clients", "per_round", "dim", "rounds")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The contents of all files that an audit reads, except the ledger."""

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
        """Read the run directory `path`. Raise `ConfigError` if it is none, or a file cannot be parsed."""
        directory = _directory(path)
        run = directory.facts()
        _check(f"{directory / RUN}", run, (*_OF_RUNS, "done"))
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
        return bool(self.run["channel"] == "plain")

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


def _expected(run: Row) -> tuple[str, ...]:
    ledger = () if run["channel"] == "plain" else (LEDGER, LEDGER_SEAL, LEDGER_HEAD)
    return (METRICS, *ledger, *((SPEND,) if run["status"] == "finished" else ()))


def _optional(directory: RunDirectory, name: str) -> Row | None:
    return directory.read_json(name) if (directory / name).exists() else None


def _check(where: str, row: Row, names: tuple[str, ...]) -> None:
    if lacking := [name for name in names if name not in row]:
        raise ConfigError(f"{where} is damaged: it does not say {', '.join(lacking)}")


# --- the noise of a sum, from its description in a ledger or in `run.json` ---


def promise_of(described: Row | None) -> NoiseAssumptions | None:
    """Return the assumed clients, drop-outs and colluders behind a sum's noise; None if it has no noise."""
    return None if described is None else NoiseAssumptions(**described)


def variance_of(part: Row) -> Fraction | None:
    """Return the variance of a part's noise, in squared steps of the rounding grid; None without noise."""
    return None if part["noise"] is None else Fraction(part["noise"]["variance"])
