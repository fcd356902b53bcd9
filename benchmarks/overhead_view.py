"""Shows the overhead of secure sums in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.flower_rounds import FlowerRounds
from benchmarks.markdown import significant
from benchmarks.overhead import FASTER_THAN_FLOWER, MOST_MILLISECONDS, RING, OverheadReport, WayCosts
from benchmarks.stages import MEANINGS, Part


def show_overhead(report: OverheadReport, console: Console) -> None:
    """Print a table of stages, the graphs, and whether the bars hold."""
    console.print(_table(report))
    for line in _lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _table(report: OverheadReport) -> Table:
    setting = report.setting
    title = (
        f"CPU milliseconds per client and sum: {setting.clients} clients, a softmax regression of\n"
        f"{report.dim} parameters, a session of {setting.sums} sums"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for head in ("", *(each.way.name for each in report.costs), "what it is"):
        table.add_column(head, justify="right" if head in {e.way.name for e in report.costs} else "left")
    for part in Part:
        table.add_row(part, *(_number(each.milliseconds[part]) for each in report.costs), MEANINGS[part])
    table.add_row("in all", *(_number(each.total) for each in report.costs))
    table.add_row("over plain", *_overheads(report), end_section=True)
    return table


def _overheads(report: OverheadReport) -> Iterator[str]:
    for each in report.costs:
        yield "" if each.graph is None else _number(report.overhead(each))


def _number(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds else "-"


def _lines(report: OverheadReport) -> Iterator[str]:
    for each in report.costs:
        if each.graph is not None:
            yield f"{each.way.name}: {_described(each)}"
    added = report.overhead(report.of(RING.name))
    yield (
        f"a ring adds {added:.2f} ms of CPU per client and sum, of {MOST_MILLISECONDS:g} ms that it may: "
        f"{'holds' if report.holds else 'does not hold'}"
    )
    yield f"all models are the same within {report.difference:.1g}"
    yield from _flower(report)


def _described(costs: WayCosts) -> str:
    graph = costs.graph
    assert graph is not None
    name = "a ring" if graph.is_ring else "the complete graph"
    return f"{costs.way.trust}, {name} with {graph.neighbours} neighbours, threshold {graph.threshold}"


def _flower(report: OverheadReport) -> Iterator[str]:
    found = report.flower
    if not isinstance(found, FlowerRounds):
        yield f"Flower's simulation is left out: {found}"
        return
    yield (
        f"plain sums beside the simulation of flwr {found.version}, {found.clients} clients: "
        f"{significant(found.ours)} against {significant(found.flower)} rounds per second, "
        f"{significant(found.ratio)} times as many, of {FASTER_THAN_FLOWER:g} that they should be: "
        f"{'holds' if report.flower_holds else 'does not hold'}"
    )
    yield (
        f"with clients one by one, {significant(found.ours_one_by_one)} rounds per second; before the second "
        f"round, {found.ours_startup_s:.2f} s and {found.flower_startup_s:.1f} s"
    )
