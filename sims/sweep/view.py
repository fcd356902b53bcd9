"""What a sweep found, for people: a table on a terminal, and lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import rich.table

from sims.sweep.cell import Cell
from sims.sweep.run import Summary

_PERCENT: Final = {"mean_accuracy", "pooled_accuracy", "worst_tenth", "error_90"}
_SHOWN: Final = {
    "mean_accuracy": "accuracy",
    "worst_tenth": "worst tenth",
    "error_90": "90th percentile of errors",
    "mean_loss": "loss",
}


@dataclass(frozen=True)
class Row:
    """One model of one cell, at the end: `model` says which, and on whom it was measured."""

    cell: Cell
    model: str
    numbers: Mapping[str, str]
    rounds: str


def rows(summary: Summary) -> Iterator[Row]:
    for cell in summary.cells:
        record = summary.records.get(cell.digest)
        if record is None:
            yield Row(cell, "", {}, "failed")
            continue
        result = record.result
        for model, series in result["series"].items():
            numbers = {name: _number(key, series[key][-1]) for key, name in _SHOWN.items() if key in series}
            yield Row(cell, model.replace("_", " "), numbers, _rounds(cell, result))


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "diverged"
    return f"{100 * value:.1f} %" if key in _PERCENT else f"{value:.4g}"


def _rounds(cell: Cell, result: Mapping[str, Any]) -> str:
    return f"{result['completed']} of {cell.settings.rounds}"


def table(title: str, summary: Summary) -> rich.table.Table:
    found = list(rows(summary))
    keys = list(dict.fromkeys(key for cell in summary.cells for key in cell.key))
    names = [name for name in _SHOWN.values() if any(name in row.numbers for row in found)]
    drawn = rich.table.Table(title=title)
    for heading in (*keys, "model"):
        drawn.add_column(heading)
    for heading in (*names, "rounds"):
        drawn.add_column(heading, justify="right")
    for row in found:
        swept = (str(row.cell.key.get(key, "")) for key in keys)
        drawn.add_row(*swept, row.model, *(row.numbers.get(name, "") for name in names), row.rounds)
    return drawn


def lines(summary: Summary) -> Iterator[str]:
    """One for every row, which a program can take apart at its semicolons."""
    for row in rows(summary):
        numbers = (f"{name} {number}" for name, number in row.numbers.items())
        yield "; ".join(filter(None, (str(row.cell), row.model, *numbers, f"rounds {row.rounds}")))


def as_json(summary: Summary) -> dict[str, Any]:
    """Every cell with its results, or why there are none."""
    cells = []
    for cell in summary.cells:
        record = summary.records.get(cell.digest)
        found = (
            {"failure": summary.failures.get(cell.digest)} if record is None else {"result": record.result}
        )
        cells.append({"cell": dict(cell.key), "digest": cell.digest, **found})
    return {"cells": cells, "known": summary.known}
