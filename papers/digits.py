"""Federated averaging on digits beside training in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from papers.plots import Labels, draw, lines
from papers.seeds import over_seeds
from sims.sweep import read_records

_SCENARIO: Final = "digits"


def tables(results: Path) -> dict[str, str]:
    """Return one row for each seed, and their mean."""
    rows = [
        "| seed | federated, over secure sums | all data in one place | difference |",
        "|---|---|---|---|",
    ]
    federated, pooled = [], []
    for seed, result in _cells(results):
        ours, theirs = _last(result["series"]["common"]["pooled_accuracy"]), _centralised(result)[-1]
        federated.append(100 * ours)
        pooled.append(100 * theirs)
        rows.append(f"| {seed} | {100 * ours:.2f} % | {100 * theirs:.2f} % | {100 * (ours - theirs):+.2f} |")
    mean, other = over_seeds(federated).mean, over_seeds(pooled).mean
    rows.append(f"| mean | {mean:.2f} % | {other:.2f} % | {mean - other:+.2f} |")
    return {"digits": "\n".join(rows)}


def figures(results: Path, out: Path) -> None:
    """Draw accuracy by round."""
    cells = _cells(results)
    rounds = cells[0][1]["rounds"][1:]
    federated = [
        [100 * each for each in result["series"]["common"]["pooled_accuracy"][1:]] for _, result in cells
    ]
    pooled = [[100 * _centralised(result)[number - 2] for number in rounds] for _, result in cells]
    series: Any = {"federated": (rounds, federated), "all data in one place": (rounds, pooled)}
    draw(out / "digits.svg", lines(series, Labels(x="round", y="accuracy, %")))


def _cells(results: Path) -> list[tuple[int, Any]]:
    records = read_records(results / f"{_SCENARIO}.jsonl")
    return [(record.cell["seed"], record.result) for record in records]


def _centralised(result: Any) -> list[float]:
    return [value for _, value in result["observed"]["centralised"]]


def _last(values: list[float]) -> float:
    return values[-1]
