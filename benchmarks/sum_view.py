"""Shows the report of a sum in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.encoding import EncodingCosts
from benchmarks.sums import SumReport
from sims.text_format import counted


def show_sum(report: SumReport, console: Console) -> None:
    """Print what was summed, a table of times beside their limits, and the bytes."""
    console.print(_headline(report), highlight=False)
    console.print(_times(report))
    if report.encoding is not None:
        console.print(_encoding(report.encoding))
    for line in _lines(report):
        console.print(line, highlight=False)


def _headline(report: SumReport) -> str:
    processes = "" if report.processes == 1 else f", masks removed in {report.processes} processes"
    noise = "" if report.encoding is None else " with noise"
    return (
        f"{counted(report.clients, 'client')} of whom {report.corrupt} may collude with a {report.trust} and "
        f"{report.dropped} vanish before they mask, one part of {counted(report.dim, 'element')} of "
        f"{counted(report.bits, 'bit')}{noise}, {report.graph} graph of "
        f"{counted(report.neighbours, 'neighbour')}, threshold {report.threshold}{processes}"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _encoding(costs: EncodingCosts) -> Table:
    """Return the parts of the encoding, and what they are compared with."""
    table = _table("CPU milliseconds of encoding with noise; the least of several", "spent", "ratio")
    table.add_row("rounding, without noise", _milliseconds(costs.plain_encode_cpu_s))
    table.add_row("one draw of noise", _milliseconds(costs.noise_draw_cpu_s))
    table.add_row("one addition of numpy", _milliseconds(costs.add_cpu_s))
    transform = _milliseconds(costs.transform_cpu_s), f"{costs.transform_over_adds:.2f}"
    table.add_row("one transform / log2(d) additions", *transform)
    whole = _milliseconds(costs.encode_noise_cpu_s), f"{costs.encode_noise_over_parts:.2f}"
    table.add_row("all of it / rounding, transform and draw", *whole, style="bold")
    return table


def _times(report: SumReport) -> Table:
    table = _table("CPU milliseconds; a client's are medians", "spent", "limit", "ratio")
    for name, seconds in _client_rows(report).items():
        table.add_row(f"client: {name}", _milliseconds(seconds))
    table.add_row(
        f"client: {counted(report.client_masks, 'mask')} on, packed",
        _milliseconds(report.client_mask_cpu_s),
        _milliseconds(report.client_limit_cpu_s),
        f"{report.client_mask_over_limit:.2f}",
        end_section=True,
        style="bold",
    )
    for name, seconds in _server_rows(report).items():
        table.add_row(f"server: {name}", _milliseconds(seconds))
    table.add_row(
        f"server: {counted(report.server_masks, 'mask')} off",
        _milliseconds(report.server_unmask_cpu_s),
        _milliseconds(report.server_limit_cpu_s),
        f"{report.server_unmask_over_limit:.2f}",
        style="bold",
    )
    return table


def _client_rows(report: SumReport) -> dict[str, float]:
    rows = {
        "set-up": report.client_setup_cpu_s,
        "query": report.client_query_cpu_s,
        "encoding": report.client_encode_cpu_s,
        "confirming": report.client_confirm_cpu_s,
        "revealing": report.client_reveal_cpu_s,
    }
    return {name: seconds for name, seconds in rows.items() if seconds}


def _server_rows(report: SumReport) -> dict[str, float]:
    rows = {
        "set-up": report.server_setup_cpu_s,
        "adding inputs": report.server_sum_cpu_s,
        "confirming": report.server_confirm_cpu_s,
    }
    return {name: seconds for name, seconds in rows.items() if seconds}


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _lines(report: SumReport) -> list[str]:
    verdict = "equals" if report.exact else "DIFFERS FROM"
    return [
        f"the total {verdict} the plain sum of what the survivors encoded",
        f"unmasking took {_milliseconds(report.server_unmask_wall_s)} ms by the clock",
        f"the server's process grew by at most {report.server_peak_bytes:,} bytes",
        f"a client sent {report.bytes_up:,} bytes, {report.bytes_over_ideal:.4f} of the "
        f"{report.bytes_ideal:,} of its vector, and received {report.bytes_down:,}",
        f"of these, set-up by {report.agreement} took {report.setup_bytes_up:,} up and "
        f"{report.setup_bytes_down:,} down",
    ]
