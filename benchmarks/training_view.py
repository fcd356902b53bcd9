"""Shows the comparison of ways to train in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.markdown import significant
from benchmarks.training import TrainingCosts, TrainingReport


def show_training(report: TrainingReport, console: Console) -> None:
    """Print a table of times, and remarks."""
    console.print(_table(report))
    for line in _lines(report):
        console.print(line, highlight=False)


def _table(report: TrainingReport) -> Table:
    title = (
        f"CPU milliseconds of local steps on batches of {report.setting.batch}, for n clients with d\n"
        "parameters each; gain is one by one / together, over is auto / the better one"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for head in ("", "d", "n", "1 by 1", "together", "auto", "gain", "over"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for costs in report.costs:
        table.add_row(*_cells(costs))
    return table


def _cells(costs: TrainingCosts) -> Iterator[str]:
    together, speedup = costs.together_cpu_s, costs.speedup
    yield costs.setup
    yield f"{costs.dim:,}"
    yield f"{costs.clients}"
    yield _milliseconds(costs.one_by_one_cpu_s)
    yield "-" if together is None else _milliseconds(together)
    yield _milliseconds(costs.auto_cpu_s)
    yield "-" if speedup is None else significant(speedup)
    yield f"{costs.auto_over_best:.2f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.1f}"


def _lines(report: TrainingReport) -> Iterator[str]:
    worst = max(report.costs, key=lambda each: each.auto_over_best)
    yield f"auto takes at most {worst.auto_over_best:.2f} times as long as the better way ({worst.setup})"
    apart = max(report.costs, key=lambda each: each.difference)
    yield f"models differ by at most {apart.difference:.1e} from one way to another ({apart.setup})"
