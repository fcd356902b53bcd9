"""Reads the cells of the splitting scenarios for tables and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from papers.splitting_limits import FILE
from sims.sweep import Record, read_records

METHODS: Final = (
    "FedAvg, k = 1",
    "FedAvg, k = 5",
    "FedAvg, k = 100",
    "FedProx",
    "FedSplit",
    "FedPi",
    "FedRP",
)
NETWORKS: Final = ("FedAvg, k = 1", "FedAvg, k = 10", "FedProx", "FedSplit", "FedPi", "FedRP")
USERS: Final = ("all classes", "at most six classes", "at most two classes")
CATALOGUE: Final = {
    "splitting-fedprox": "FedProx",
    "fedrp": "FedRP",
    "fedsplit": "FedSplit",
    "fedpi": "FedPi",
}
LOGISTIC: Final = "splitting-logistic"
_USERS_OF_LOGISTIC: Final = 10  # the chapter divides the sum of their objectives by their number

Gaps = Sequence[tuple[int, float]]


def records(results: Path, name: str) -> Iterator[Record]:
    """Return all cells of a scenario that were run."""
    path = results / f"{name}.jsonl"
    if path.exists():
        yield from read_records(path)


def gaps(record: Record, what: str = "optimality-gap") -> Gaps:
    """Rounds, and gaps as the chapter has them: of a sum over users, or of a mean for logistic regression.

    One that is beyond all numbers is infinite.
    """
    users = _USERS_OF_LOGISTIC if record.settings["data"]["kind"] == "logistic" else 1
    seen = record.result["observed"][what]
    return [(number, float("inf") if isinstance(gap, str) else gap / users) for number, gap in seen]


def rows_of(record: Record) -> int:
    """Return a user's number of rows: the step sizes of the chapter are ours divided by it."""
    return {"least-squares": 5000, "logistic": 1000}[record.settings["data"]["kind"]]


def losses(record: Record) -> Gaps:
    """Return rounds, and the common model's training loss, as observed or measured."""
    seen = record.result["observed"].get("training-loss") or _measured(record)
    return [(number, float("inf") if isinstance(loss, str) else float(loss)) for number, loss in seen]


def _measured(record: Record) -> Iterator[tuple[int, float]]:
    """Return the measured losses; a diverged model has none."""
    losses = record.result["series"]["common"]["pooled_loss"]
    return (
        (number, math.inf if loss is None else loss)
        for number, loss in zip(record.result["rounds"], losses, strict=True)
    )


def limits(results: Path) -> list[dict[str, Any]]:
    """Return the results of `papers.splitting_limits`."""
    path = results / FILE
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def grouped(results: Path, name: str, *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the cells of all seeds, by their other differences."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for each in records(results, name):
        found.setdefault(tuple(each.cell[key] for key in keys), []).append(each)
    return found
