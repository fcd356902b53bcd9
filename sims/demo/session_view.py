"""How the story looks in a terminal: a screen and a half."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from secagg import Stage
from sims.demo.session_demo import DemoResult, DemoSetting, StageTraffic, SumResult, frames, run_session
from sims.demo.simulated_clients import BUCKETS, MEDIAN

_SETUP: Final = (Stage.ADVERTISE, Stage.SHARE)
_NAMED: Final = 3  # clients that fit into a column


def watch(setting: DemoSetting, console: Console) -> DemoResult:
    """Run the demo behind a progress bar, where there is a terminal to draw one."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{setting.clients} clients, {setting.sums} sums", total=frames(setting))
        return run_session(setting, lambda: progress.advance(task))


def show(story: DemoResult, console: Console) -> None:
    """Print the whole story."""
    _show_setting(story, console)
    _show_glimpse(story, console)
    _show_sums(story, console)
    _show_bytes(story, console)
    _show_knowledge(story, console)
    _show_endings(story, console)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _show_setting(story: DemoResult, console: Console) -> None:
    setting, outlook = story.setting, story.outlook
    console.print(
        f"[bold]One session, {setting.sums} secure sums[/bold] of {setting.dim:,} elements among "
        f"{setting.clients} clients, of whom {setting.corrupt} may collude with a {setting.trust}. "
        f"{outlook.quorum} must stay in each sum; {outlook.margin} may leave."
    )


def _show_glimpse(story: DemoResult, console: Console) -> None:
    glimpse = story.glimpse
    _heading(console, f"What client {glimpse.member} sent in the first sum")
    table = _table("its value", "as a residue", "what the server saw")
    for value, residue, seen in zip(glimpse.values, glimpse.residues, glimpse.seen, strict=True):
        table.add_row(f"{value:+.6f}", f"{residue:,}", Text(f"{seen:,}", style="cyan"))
    console.print(table)
    seen = story.masked
    console.print(f"All {seen.total:,} residues of that sum, counted in {BUCKETS} equal ranges of the ring:")
    console.print(f"  behind the masks  [yellow]{story.true.bars}[/yellow]")
    console.print(f"  server's view     [cyan]{seen.bars}[/cyan]")
    console.print(
        f"  against uniform: chi-square {seen.chi_square:.1f} on {BUCKETS - 1} degrees of freedom, "
        f"p = {seen.p_value:.2f}",
        highlight=False,
    )


def _show_sums(story: DemoResult, console: Console) -> None:
    _heading(console, "The sums")
    table = _table("sum", "invited", "left before\nmasking", "left before\nrevealing", "in total",
                   "total begins", "error in\nsteps")  # fmt: skip
    for number, each in enumerate(story.sums, 1):
        table.add_row(*_row(number, each))
    console.print(table)
    widest = max(story.sums, key=lambda each: each.steps)
    console.print(
        f"A step is what one client rounds to, {widest.step:.2g}. The error is the largest of all elements, "
        f"against the plain sum of the contributors' numbers, which only this demo knows: at most "
        f"{widest.error:.2g}, {_verdict(story)}.",
        highlight=False,
    )


def _verdict(story: DemoResult) -> str:
    if all(each.exact for each in story.sums):
        return "[green]less than a step for each contributor[/green]"
    return "[red]more than rounding explains[/red]"


def _row(number: int, each: SumResult) -> tuple[str, ...]:
    kind = f"{each.kind} {number - 1}" if each.kind == MEDIAN else each.kind
    return (
        kind,
        str(each.total.invited),
        _names(each.before_masking),
        _names(each.before_revealing),
        str(len(each.contributors)),
        " ".join(f"{value:+.3f}" for value in each.first[:2]),
        f"{each.steps:.1f}",
    )


def _names(members: Collection[int]) -> str:
    """A few of the clients' numbers, and how many more there are."""
    more = f" +{len(members) - _NAMED}" if len(members) > _NAMED else ""
    return " ".join(map(str, sorted(members)[:_NAMED])) + more or "-"


def _show_bytes(story: DemoResult, console: Console) -> None:
    _heading(console, "Bytes per client")
    table = _table("", *(stage.value for stage in Stage))
    table.add_row("up", *_bytes(story, "up"))
    table.add_row("down", *_bytes(story, "down"))
    console.print(table)
    console.print("advertise and share happen once in a session, the others in each sum.", style="dim")


def _bytes(story: DemoResult, direction: str) -> list[str]:
    def count(traffic: StageTraffic, stage: Stage) -> int:
        return traffic.up[stage] if direction == "up" else traffic.down[stage]

    cells = [count(story.setup if stage in _SETUP else story.each_sum, stage) for stage in Stage]
    return [f"{cell:,}" if cell else "-" for cell in cells]


def _show_knowledge(story: DemoResult, console: Console) -> None:
    _heading(console, "What the server learned")
    console.print(
        f"The {len(story.sums)} totals, who was in each of them, and who left when. Nothing else: no single "
        "client's numbers, not even of those who left. The median sums one private vector again and again, "
        "so its clients insist on the same company each time: two totals must not differ by one of them.",
        highlight=False,
    )


def _show_endings(story: DemoResult, console: Console) -> None:
    _heading(console, "When it must not work")
    text = f"{story.vanished} of {story.setting.clients} clients vanish before masking in one more sum:"
    _show_outcome(console, text, story.failure, "nothing was released", "a total was released")
    text = f"The server asks for the median's next sum without client {story.left_out}:"
    told = f"client {story.refuser}"
    _show_outcome(console, text, story.refusal, f"{told} refused before masking", f"{told} went along")


def _show_outcome(console: Console, text: str, error: Exception | None, good: str, bad: str) -> None:
    if error is None:
        console.print(f"{text} [red]{bad}[/red]", highlight=False)
    else:
        reason = f"{type(error).__name__} ({error})"
        console.print(f"{text} [green]{good}[/green], {reason}", highlight=False)
