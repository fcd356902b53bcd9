"""Shows the comparison of Ray with channels of one process and of worker processes in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.ray_rounds import RayReport


def show_ray(report: RayReport, console: Console) -> None:
    """Print a table of times, and whether the bars hold."""
    console.print(_table(report))
    for line in _lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _table(report: RayReport) -> Table:
    task, setting = report.setting.task, report.setting
    title = (
        f"Milliseconds per round by the clock: {task.name}, {task.clients} clients,\n"
        f"{report.dim:,} parameters, {task.steps} local steps on batches of {task.batch}; "
        f"{setting.actors} actors or processes"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for head in ("", "round", "least", "first round, with set-up"):
        table.add_column(head, justify="right" if head else "left")
    for way, seconds in report.seconds.items():
        cells = (report.median(way), min(seconds), report.first[way])
        table.add_row(way, *(f"{1e3 * each:,.1f}" for each in cells))
    return table


def _lines(report: RayReport) -> Iterator[str]:
    for name, (ratio, most) in report.bars.items():
        verdict = "holds" if ratio <= most else "does not hold"
        yield f"{name}: {ratio:.2f}, at most {most:g}: {verdict}"
    yield f"all models are the same within {report.difference:.1g}"
    if report.setting.task.name == "mnist" and report.setting.data is None:
        yield "images are random: --data names an archive of MNIST"
