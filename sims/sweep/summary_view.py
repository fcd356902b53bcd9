"""Formats the results of a sweep as a table for a terminal, as lines of text, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import rich.table

from sims.scenario.loading_and_variants import Variant
from sims.sweep.run import SweepSummary
from sims.text_format import counted

_PERCENT: Final = {"mean_accuracy", "pooled_accuracy", "worst_tenth", "error_90"}
_SHOWN: Final = {
    "mean_accuracy": "accuracy",
    "worst_tenth": "worst tenth",
    "error_90": "90th percentile of errors",
    "mean_loss": "loss",
}


@dataclass(frozen=True)
class ResultRow:
    """A row of the table of results: the last measurement of a model (common or personal) of one cell."""

    cell: Variant
    model: str  # the model, and the clients on which it is measured; empty if the cell failed
    numbers: Mapping[str, str]  # formatted numbers by name, such as "accuracy"
    rounds: str  # the number of completed rounds, or "failed"
    trouble: str = ""  # why rounds were not completed; empty if all were


def rows(summary: SweepSummary) -> Iterator[ResultRow]:
    for cell in summary.cells:
        record = summary.records.get(cell.digest)
        if record is None:
            yield ResultRow(cell, "", {}, "failed")
            continue
        result = record.result
        for model, series in result["series"].items():
            numbers = {name: _number(key, series[key][-1]) for key, name in _SHOWN.items() if key in series}
            rounds = f"{result['completed']} of {cell.settings.rounds}"
            yield ResultRow(cell, model.replace("_", " "), numbers, rounds, trouble(cell, result))


def trouble(cell: Variant, result: Mapping[str, Any]) -> str:
    """Return how many rounds were completed, and why the first of the others failed; "" if none failed."""
    if not result.get("failures"):
        return ""
    _, reason = result["failures"][0]
    return f"{result['completed']} of {counted(cell.settings.rounds, 'round')} completed: {reason}"


def in_vain(summary: SweepSummary) -> bool:
    """Return whether all rounds failed in some cell that was run to its end."""
    return any(
        not record.result.get("completed", 1)
        for cell in summary.cells
        if (record := summary.records.get(cell.digest)) is not None
    )


def remarks(summary: SweepSummary) -> Iterator[str]:
    """Yield texts about cells that had results already, removed results, and observers without data."""
    if summary.known:
        yield f"already known, not run again: {summary.known} of {counted(len(summary.cells), 'cell')}"
    if summary.removed is not None:
        yield f"removed: {counted(summary.removed, 'result')} of other cells"
    for name in _unseen(summary):
        yield f"evaluation.observe: {name} had nothing to observe in any cell"


def _unseen(summary: SweepSummary) -> list[str]:
    found = [summary.records.get(cell.digest) for cell in summary.cells]
    observed = [record.result.get("observed", {}) for record in found if record is not None]
    names = dict.fromkeys(name for each in observed for name in each)
    return [name for name in names if not any(each.get(name) for each in observed)]


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "diverged"
    return f"{100 * value:.1f} %" if key in _PERCENT else f"{value:.4g}"


def table(title: str, summary: SweepSummary) -> rich.table.Table:
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


def lines(summary: SweepSummary) -> Iterator[str]:
    """Yield every row of the table of results as one line of text, with fields separated by semicolons."""
    for row in rows(summary):
        numbers = (f"{name} {number}" for name, number in row.numbers.items())
        yield "; ".join(
            filter(None, (str(row.cell), row.model, *numbers, f"rounds {row.rounds}", row.trouble))
        )


def troubles(summary: SweepSummary) -> Iterator[str]:
    """Yield one line of text for every cell in which a round failed."""
    found = {f"{row.cell}: {row.trouble}": None for row in rows(summary) if row.trouble}
    yield from found


def as_json(summary: SweepSummary) -> dict[str, Any]:
    """Return a dictionary for JSON: each cell with its result, or why it failed (None if it was not run)."""
    cells = []
    for cell in summary.cells:
        record = summary.records.get(cell.digest)
        found = (
            {"failure": summary.failures.get(cell.digest)} if record is None else {"result": record.result}
        )
        cells.append({"cell": dict(cell.key), "digest": cell.digest, **found})
    return {"cells": cells, "known": summary.known}
