"""What a run directory holds, read and not yet judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.deploy.problems import ConfigError
from sims.records import RunDirectory

LEDGER: Final = "ledger"
SEAL: Final = "ledger-seal"
HEAD: Final = "ledger.head"
SUMS: Final = "sums.jsonl"
METRICS: Final = "metrics.jsonl"
SPEND: Final = "spend.json"
CANARIES: Final = "canaries.json"
_OF_RUNS: Final = ("name", "status", "channel", "algorithm", "trust", "clients", "per_round", "dim", "rounds")
_COUNTS: Final = ("bytes_up", "bytes_down", "frames_up", "frames_down")
_OF_SESSIONS: Final = ("session", "round", "members", "neighbours", "threshold", "failure", *_COUNTS)
_OF_SUMS: Final = ("session", "sum", "round", "kind", "invited", "masked", "count", "revealed", "failure")
_OF_ALL_SUMS: Final = (*_OF_SUMS, "refusals", *_COUNTS)

TRAINING: Final = "training"  # the part of a run that is the algorithm

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """All files that an audit looks at, but for the ledger itself.

    `resumed`  where the run went on after it was stopped, and which rows of the ledger were lost to that.
    `missing`  files that should be there, as far as the run has come, and are not.
    """

    directory: RunDirectory
    run: Row
    sessions: tuple[Row, ...]
    sums: tuple[Row, ...]
    resumed: tuple[Row, ...]
    metrics: tuple[Row, ...]
    spend: Row | None
    canaries: Row | None
    missing: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> Evidence:
        """Raises `ConfigError` if it is no run directory, or a file of it cannot be understood."""
        directory = _directory(path)
        run = directory.facts()
        _check(f"{directory / 'run.json'}", run, (*_OF_RUNS, "done"))
        if not (directory / SUMS).exists():
            raise ConfigError(f"{directory / SUMS} is missing: without it, nobody knows what was asked")
        lines = list(_numbered(directory.read_lines(SUMS)))
        sessions = tuple(row for row in lines if row.get("entry") == "session")
        sums = tuple(row for row in lines if row.get("entry") == "sum")
        for rows, names in ((sessions, _OF_SESSIONS), (sums, _OF_ALL_SUMS)):
            for row in rows:
                _check(f"{directory / SUMS}", row, names)
        return cls(
            directory=directory,
            run=run,
            sessions=sessions,
            sums=sums,
            resumed=tuple(row for row in lines if row.get("entry") == "resumed"),
            metrics=tuple(directory.read_lines(METRICS)),
            spend=_optional(directory, SPEND),
            canaries=_optional(directory, CANARIES),
            missing=tuple(name for name in _expected(run) if not (directory / name).exists()),
        )

    @property
    def is_plain(self) -> bool:
        return bool(self.run["channel"] == "plain")

    @property
    def finished(self) -> bool:
        return bool(self.run["status"] == "finished")


def _directory(path: Path) -> RunDirectory:
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory: give that of a run, such as results/NAME")
    directory = RunDirectory(path)
    inside = [] if directory.exists else sorted(each.parent for each in path.glob("*/run.json"))
    if inside:
        names = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")
        raise ConfigError(f"{path} holds several runs: choose one, or --compare them: {names}")
    return directory


def _numbered(lines: Iterable[Row]) -> Iterator[Row]:
    """With the round of the training that each belongs to, from 1.

    What is asked beside the training counts rounds of its own, and comes after the one before it in the file.
    """
    number = 0
    for row in lines:
        if row.get("part", TRAINING) == TRAINING and isinstance(row.get("round"), int):
            number = row["round"] + 1
        yield {**row, "number": number}


def _expected(run: Row) -> tuple[str, ...]:
    ledger = () if run["channel"] == "plain" else (LEDGER, SEAL, HEAD)
    return (METRICS, *ledger, *((SPEND,) if run["status"] == "finished" else ()))


def _optional(directory: RunDirectory, name: str) -> Row | None:
    return directory.read_json(name) if (directory / name).exists() else None


def _check(where: str, row: Row, names: tuple[str, ...]) -> None:
    if lacking := [name for name in names if name not in row]:
        raise ConfigError(f"{where} is damaged: it does not say {', '.join(lacking)}")
