"""Shows a benchmark's report in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.costs import AROUND, LABELS, PRIMITIVES, Cost
from benchmarks.cpu_breakdown import Balance
from benchmarks.primitives import DROPOUT, PrimitivesReport
from sims.text_format import counted


def show_primitives(report: PrimitivesReport, console: Console) -> None:
    """Print one table per role, the trust levels side by side, and whether the bar holds."""
    setting = report.setting
    console.print(
        f"{counted(setting.clients, 'client')} of whom {setting.corrupt} may collude, drop-out "
        f"{float(DROPOUT):.0%} planned and none real, one part of {counted(setting.dim, 'element')} of "
        f"{counted(setting.bits, 'bit')}, {counted(setting.sums, 'sum')} in the session",
        highlight=False,
    )
    for role in ("client", "server"):
        balances = [balance for balance in report.balances if balance.role == role]
        console.print(_table(role, balances))
        for balance in balances:
            console.print(_verdict(balance))
    console.print(_bytes(report))
    for trust, outcome in report.outcomes.items():
        text = f"{trust}: largest error of a coordinate of a total {outcome.error:.1g}"
        console.print(text, highlight=False)


def _new_table(title: str, *columns: str, gap: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, gap, 0, 0)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _table(role: str, balances: list[Balance]) -> Table:
    columns = [name for each in balances for name in (_short(each), "\neach sum", "\nin all")]
    table = _new_table(
        f"\nCPU milliseconds per {role}; in all: a sum with its part of the set-up", *columns, gap=0
    )
    for group, name in ((PRIMITIVES, "primitives"), (AROUND, "around them")):
        for cost in group:
            table.add_row(LABELS[cost], *_cells(balances, (cost,)))
        table.add_row(name, *_cells(balances, group), style="bold", end_section=True)
    table.add_row("total", *_cells(balances, tuple(Cost)), style="bold")
    return table


def _short(balance: Balance) -> str:
    """Return the head of the first of a trust level's columns: six of them fit into 80 characters."""
    return f"{balance.trust.removesuffix('_server')}:\nset-up"


def _cells(balances: list[Balance], costs: Iterable[Cost]) -> list[str]:
    """Return for each balance the milliseconds of `costs` in set-up, in each sum, and in both."""
    cells = []
    for balance in balances:
        entries = [balance.entries[cost] for cost in costs]
        cells.append(_milliseconds(sum(entry.setup for entry in entries)))
        cells.append(_milliseconds(sum(entry.each_sum for entry in entries)))
        cells.append(_milliseconds(sum(entry.amortised(balance.sums) for entry in entries)))
    return cells


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}" if seconds else ""


def _verdict(balance: Balance) -> Text:
    text = Text(f"{balance.role}, {balance.trust}: around / primitives = {balance.ratio:.2f}")
    if balance.role == "server":  # it adds and sorts what clients compute: nothing is promised
        return text
    if balance.holds:
        return text.append(", no more than the primitives themselves: holds", style="green")
    return text.append(", more than the primitives themselves: does not hold", style="red")


def _bytes(report: PrimitivesReport) -> Table:
    columns = ("set-up, up", "set-up, down", "each sum, up", "each sum, down")
    table = _new_table("\nBytes per client", *columns, gap=1)
    for trust, outcome in report.outcomes.items():
        row = outcome.traffic
        numbers = (row.setup_up, row.setup_down, row.sum_up, row.sum_down)
        table.add_row(str(trust), *(f"{number:,}" for number in numbers))
    return table
