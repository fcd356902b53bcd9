"""How a benchmark's report looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sims.bench.balance import Balance
from sims.bench.costs import AROUND, LABELS, PRIMITIVES, Cost
from sims.bench.primitives import PrimitivesReport


def show_primitives(report: PrimitivesReport, console: Console) -> None:
    """One table per role, the trust levels side by side, and whether the bar holds."""
    setting = report.setting
    console.print(
        f"n = {setting.clients}, dim {setting.dim}, {setting.bits} bits, {setting.sums} sums in a session, "
        "no drop-outs; a sum bears its part of the set-up"
    )
    for role in ("client", "server"):
        balances = [balance for balance in report.balances if balance.role == role]
        console.print(_table(role, balances))
        for balance in balances:
            console.print(_verdict(balance))
    console.print(_bytes(report))


def _new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", style="dim" if column == "set-up" else "")
    return table


def _table(role: str, balances: list[Balance]) -> Table:
    columns = [name for balance in balances for name in (str(balance.trust), "set-up")]
    table = _new_table(f"\nCPU milliseconds per {role} and sum", *columns)
    for group, name in ((PRIMITIVES, "primitives"), (AROUND, "around them")):
        for cost in group:
            table.add_row(LABELS[cost], *_cells(balances, (cost,)))
        table.add_row(name, *_cells(balances, group), style="bold", end_section=True)
    table.add_row("total", *_cells(balances, tuple(Cost)), style="bold")
    return table


def _cells(balances: list[Balance], costs: Iterable[Cost]) -> list[str]:
    """For each balance, the milliseconds of `costs` and how much of them is set-up."""
    cells = []
    for balance in balances:
        entries = [balance.entries[cost] for cost in costs]
        cells.append(_milliseconds(sum(entry.amortised(balance.sums) for entry in entries)))
        cells.append(_milliseconds(sum(entry.setup for entry in entries) / balance.sums))
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
    table = _new_table("\nBytes per client", "set-up, up", "set-up, down", "each sum, up", "each sum, down")
    for trust, row in report.traffic.items():
        numbers = (row.setup_up, row.setup_down, row.sum_up, row.sum_down)
        table.add_row(str(trust), *(f"{number:,}" for number in numbers))
    return table
