"""Shows the comparison with Flower in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.peers import PeersReport, Row
from sims.text_format import counted


def show_peers(report: PeersReport, console: Console) -> None:
    """Print what was summed, and for each length of the vector our figures beside Flower's."""
    console.print(_headline(report), highlight=False)
    console.print(_table(report))
    for line in _verdicts(report):
        console.print(line, highlight=False)


def _headline(report: PeersReport) -> str:
    ours = report.rows[0].ours
    return (
        f"{counted(ours.clients, 'client')} of whom {ours.dropped} vanish before they mask, "
        f"{counted(ours.neighbours, 'neighbour')} each, threshold {ours.threshold}, "
        f"{ours.bits} bits; ours beside SecAgg+ of {report.peer}"
    )


def _table(report: PeersReport) -> Table:
    title = "\nCPU milliseconds, and bytes; a client's are medians; the ratio is Flower's over ours"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for column in ("elements", "", "ours", "Flower", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for row in report.rows:
        first = f"{row.ours.dim:,}"
        for cells in _cells(row):
            table.add_row(first, *cells)
            first = ""
        table.add_section()
    return table


def _cells(row: Row) -> Iterator[tuple[str, ...]]:
    ours, flower = row.ours, row.flower
    client, server = row.client_cpu_s, row.server_cpu_s
    yield _times("client: encode and mask", row.client_mask_cpu_s, flower.client_mask_cpu_s)
    yield ("client: mask alone", _milliseconds(ours.client_mask_cpu_s), "", "")
    yield _times("client: all stages", *client)
    yield _times("server: unmask", ours.server_unmask_cpu_s, flower.server_unmask_cpu_s)
    yield _times("server: all stages", *server)
    yield ("bytes up", f"{ours.bytes_up:,}", f"{flower.bytes_up:,}", f"{row.bytes_ratio:.2f}")


def _times(name: str, ours: float, theirs: float) -> tuple[str, ...]:
    return (name, _milliseconds(ours), _milliseconds(theirs), f"{theirs / ours:,.2f}")


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _verdicts(report: PeersReport) -> Iterator[str]:
    exact, right = (all(row.ours.exact for row in report.rows), all(row.flower.right for row in report.rows))
    yield f"our totals {'equal' if exact else 'DIFFER FROM'} the plain sums of what the survivors encoded"
    yield f"Flower's means are {'within' if right else 'NOT WITHIN'} their rounding of the plain means"
