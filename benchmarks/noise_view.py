"""Shows the report of noise in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.noise import NoiseReport
from sims.text_format import counted


def show_noise(report: NoiseReport, console: Console) -> None:
    """Print what was drawn, a table of speeds, and how exact they are."""
    console.print(_headline(report), highlight=False)
    console.print(_speeds(report))
    for line in _lines(report):
        console.print(line, highlight=False)


def _headline(report: NoiseReport) -> str:
    setting = report.setting
    return (
        f"{counted(setting.size, 'sample')} of the discrete Gaussian with sigma {setting.sigma}, "
        f"{report.stream_bytes / setting.size:.2f} bytes of key stream each"
    )


def _speeds(report: NoiseReport) -> Table:
    title = "\nMillion samples per second of CPU time; the ratio is ours, into a vector, over the others"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for column in ("", "speed", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "into a vector of 64-bit numbers": report.samples_per_cpu_s,
        "added to 32-bit residues": report.added_per_cpu_s,
        "their key stream alone": report.keystream_limit_per_cpu_s,
    }
    if report.peer is not None:
        rows[report.peer.name] = report.peer.per_cpu_s
    for name, speed in rows.items():
        table.add_row(name, f"{speed / 1e6:,.3f}", f"{report.samples_per_cpu_s / speed:,.2f}")
    return table


def _lines(report: NoiseReport) -> list[str]:
    lines = [
        f"AES made {report.stream_bytes_per_cpu_s / 1e9:.1f} GB of key stream per second",
        f"the law took {1e3 * report.build_cpu_s:.1f} ms to build, and is at most "
        f"2^{report.total_variation_log2:.1f} from the exact one in total variation",
    ]
    if report.peer is None:
        lines.append("OpenDP is not installed, and was not compared with")
    return lines
