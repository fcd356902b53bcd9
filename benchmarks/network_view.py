"""Shows the report of sessions over the network in a terminal."""

from __future__ import annotations

from rich.console import Console

from benchmarks.network import NetworkReport
from sims.text_format import counted


def show_network(report: NetworkReport, console: Console) -> None:
    setting = report.setting
    wire = "TLS" if setting.tls else "plain TCP"
    lines = (
        f"{counted(setting.clients, 'client')} in {counted(len(setting.groups()), 'worker')}, "
        f"{counted(setting.sums, 'sum')} of {counted(setting.dim, 'element')} over {wire}, {setting.trust}, "
        f"medians of {counted(report.runs, 'session')}; totals {'exact' if report.exact else 'WRONG'}",
        f"session by the clock          {report.session_wall_s:8.3f} s, of which keys and shares "
        f"{report.setup_wall_s:.3f} s",
        f"session in one process        {report.session_cpu_s:8.3f} s of CPU time",
        f"clock / (CPU time / {counted(report.cores, 'core')}) {report.wall_over_share:8.2f}",
        f"a client sends {report.bytes_up:,} bytes and receives {report.bytes_down:,}; the server's process "
        f"took {report.server_peak_bytes / 1e6:.0f} MB at most",
    )
    for line in lines:
        console.print(line, highlight=False)
