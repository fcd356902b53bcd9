"""How the second act looks in a terminal: what is about to happen, a small table, and where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from sims.demo.learning import Cast, Outcome

_MEGA = 1e6


def announce(console: Console, out: Path) -> None:
    console.print(
        "\n[bold]Learning under attack[/bold]\n"
        "Forty clients with a few handwritten digits each, in worker processes, over TLS. A "
        "quarter of them send their updates backwards and several times as long; a tenth of them vanish "
        "from every round. Three algorithms, on the same data:",
        highlight=False,
    )
    console.print(f"$ secagg simulate demo --out {out}", style="dim", highlight=False)


def show(console: Console, cast: Cast, outcomes: Sequence[Outcome], report: Path) -> None:
    console.print()
    console.print(_table(outcomes))
    console.print(
        f"Accuracies of the {cast.clients - cast.malicious} honest clients of {cast.clients}, each on its "
        f"own test samples, by the common model and by the one that it uses. The server ({cast.trust}) "
        f"learned totals of {cast.dim} parameters, and over how many clients they are; no sum opens with "
        f"fewer than {cast.threshold} of them.",
        highlight=False,
    )
    if len(outcomes) > 1:
        console.print(_verdict(outcomes), highlight=False)
    console.print(_price(outcomes), highlight=False)
    console.print(f"\nThe whole story: [bold]{report}[/bold]", highlight=False, soft_wrap=True)
    console.print(f"$ secagg audit {report.parent}", style="dim", highlight=False, soft_wrap=True)


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in (
        "common\nmodel", "model\nin use", "nine in ten\nerr at most", "rounds", "sums", "clients\nin a sum",
        "MB sent\nby each",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    best = max(outcomes, key=lambda each: each.personal)
    for each in outcomes:
        table.add_row(*_row(each), style="green" if each is best else None)
    return table


def _row(each: Outcome) -> tuple[str, ...]:
    fewest, most = each.contributors
    return (
        each.label,
        f"{100 * each.common:.1f} %",
        f"{100 * each.personal:.1f} %",
        "-" if each.tail is None else f"{100 * each.tail:.0f} %",
        f"{each.completed} of {each.rounds}",
        str(each.sums),
        f"{fewest} to {most}",
        f"{each.bytes_up / _MEGA:.2f}",
    )


def _verdict(outcomes: Sequence[Outcome]) -> str:
    best, worst = (choose(outcomes, key=lambda each: each.personal) for choose in (max, min))
    return (
        f"[green]{best.label} kept {100 * best.personal:.1f} %[/green], [red]{worst.label} fell to "
        f"{100 * worst.personal:.1f} %[/red]."
    )


def _price(outcomes: Sequence[Outcome]) -> str:
    """What it cost in privacy: said so that nobody takes it for more."""
    noisy = [each for each in outcomes if each.epsilon is not None]
    if not noisy:
        return "No sum had noise: nothing here is differentially private."
    first = noisy[0]
    return (
        f"How errors spread was asked once for each, by a histogram with noise of the clients' own: epsilon "
        f"{first.epsilon:.2f} at a delta of {first.delta:g}. That covers the histogram alone. The training's "
        "sums have no noise: they hide a client among the others, and are not differentially private."
    )
