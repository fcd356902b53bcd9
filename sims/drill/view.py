"""How a drill looks in a terminal."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sims.drill.report import DrillReport, SumOutcome
from sims.drill.run import run_drill
from sims.drill.setting import DrillSetting
from sims.words import counted

_STEP: Final = "sum "


def watch(setting: DrillSetting, console: Console) -> DrillReport:
    """Run the drill behind a progress bar, where there is a terminal to draw one."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=setting.sums + 2)

        def tell(what: str) -> None:
            begun = what.startswith((_STEP, "starting", "exchanging"))
            if begun:
                progress.update(task, description=what, advance=1)
            elif console.is_terminal:
                progress.console.print(f"  [dim]{what}[/dim]", highlight=False)

        return run_drill(setting, tell)


def show(report: DrillReport, console: Console) -> None:
    setting = report.setting
    console.print(
        f"[bold]{setting.clients} clients in {len(setting.crews())} processes[/bold], "
        f"{'TLS' if setting.tls else 'plain TCP'}, {setting.trust}, threshold {report.threshold}; "
        f"{counted(report.killed, 'client')} killed.",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("sum", "in the total", "dropped", "seconds", "result"):
        table.add_column(column, justify="left" if column == "result" else "right")
    for each in report.sums:
        row = (each.sum + 1, each.contributors, each.dropped, f"{each.seconds:.2f}", _result(each))
        table.add_row(*map(str, row))
    console.print(table)
    console.print(
        f"{report.aborted} aborted, {report.hung} hung, {report.orphans} orphans, "
        f"{report.released_after_abort} released after an abort, {report.crashed} crashed, "
        f"{report.refused} refused, {report.missed} missed; start-up {report.start_seconds:.1f} s, "
        f"session {report.seconds:.1f} s, "
        f"{sum(report.bytes_up.values()):,} bytes up, {sum(report.bytes_down.values()):,} down, "
        f"server at most {report.server_peak_bytes / 1e6:.0f} MB.",
        highlight=False,
    )
    good, bad = "[green]Everything was as promised.[/green]", "[red]Not everything was as promised.[/red]"
    console.print(good if report.as_promised else bad)


def _result(each: SumOutcome) -> str:
    if each.aborted:
        return f"[yellow]aborted[/yellow]: {each.reason}"
    return "[green]exact[/green]" if each.exact else "[red]wrong[/red]"
