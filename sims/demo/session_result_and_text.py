"""The result of the demo's session of secure sums, and the functions that print it to a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy.stats import chisquare

from secagg import Preflight, Stage, Total, Trust
from secagg.errors import GroupChanged, SumFailed
from secagg.residue_packing import Residues

_SETUP: Final = (Stage.ADVERTISE, Stage.SHARE)
_NAMED: Final = 3  # clients whose numbers are printed in a column
SHOWN: Final = 4  # elements of a vector that are printed
Vector: TypeAlias = NDArray[np.float64]
BUCKETS: Final = 32
_BARS: Final = "▁▂▃▄▅▆▇█"
MEAN: Final = "mean"
MEDIAN: Final = "median"


@dataclass(frozen=True)
class Histogram:
    """Counts of residues in `BUCKETS` ranges of equal size, which together cover all residues of the ring."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, residues: Residues, bits: int) -> Histogram:
        """Count residues modulo 2^`bits`. The five leading bits of a residue are the number of its bucket."""
        buckets = residues.astype(np.uint64) >> np.uint64(bits - BUCKETS.bit_length() + 1)
        return cls(tuple(int(n) for n in np.bincount(buckets.astype(np.int64), minlength=BUCKETS)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def bars(self) -> str:
        """Return a bar chart with one block character per bucket. The largest count has a full block."""
        most = max(self.counts)
        return "".join(_BARS[round(count / most * (len(_BARS) - 1))] for count in self.counts)

    @property
    def chi_square(self) -> float:
        """Return the chi-square statistic against equal counts; about `BUCKETS - 1` for uniform residues."""
        return float(chisquare(self.counts).statistic)

    @property
    def p_value(self) -> float:
        """Return the probability that uniform residues have a chi-square statistic at least this large."""
        return float(chisquare(self.counts).pvalue)


@dataclass(frozen=True)
class DemoSetting:
    """Options of the demo's session of `sums` sums. Data and drop-outs follow from `seed`; keys do not."""

    clients: int
    dim: int
    sums: int
    trust: Trust
    seed: int

    @property
    def corrupt(self) -> int:
        return self.clients // 10


@dataclass(frozen=True, eq=False)
class MaskedExample:
    """A client's first input elements: `values`, encoded as `residues`, and masked (`seen` by the server)."""

    member: int
    values: Vector
    residues: Residues  # the values, encoded
    seen: Residues  # the masked residues, which the server received


@dataclass(frozen=True, eq=False)
class SumResult:
    """One sum: its contributors, its total, and the total's error against the sum of the true vectors."""

    kind: str
    total: Total
    contributors: tuple[int, ...]
    before_masking: frozenset[int]  # clients that left before they sent a masked input
    before_revealing: frozenset[int]  # clients that left after that and before they revealed shares
    first: Vector  # the first elements of the total
    error: float  # the largest absolute error of an element
    step: float  # the distance of two points of the grid to which clients round

    @property
    def steps(self) -> float:
        """Return the total's largest error in steps of the grid to which clients round."""
        return self.error / self.step

    @property
    def exact(self) -> bool:
        """Return whether rounding explains the total's error: it is below one grid step per contributor."""
        return self.steps < len(self.contributors)


@dataclass(frozen=True)
class StageTraffic:
    """Mean bytes that a client sends (`up`) and receives (`down`) in one set-up or sum, by stage."""

    up: Counter[Stage]
    down: Counter[Stage]


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The result of the demo's session: its sums, its traffic, a failed sum, and an attempt to cheat."""

    setting: DemoSetting
    session_plan: Preflight
    masked_example: MaskedExample
    masked: Histogram  # of the masked residues of the first sum
    true: Histogram  # of the same residues without masks
    sums: tuple[SumResult, ...]
    setup: StageTraffic
    each_sum: StageTraffic
    vanished: int  # clients that leave the sum that fails
    failure: SumFailed | None  # why that sum released nothing; None if it released a total
    left_out: int  # the client that the cheating server left out of a roster
    refuser: int  # the client that received this roster
    refusal: GroupChanged | None  # why it refused; None if it did not refuse

    @property
    def as_promised(self) -> bool:
        """Whether all totals are right, the sum that had to fail did, and the cheating query was refused."""
        totals = all(each.exact for each in self.sums)
        return totals and self.failure is not None and self.refusal is not None


def show(result: DemoResult, console: Console) -> None:
    """Print the result of the demo's session to the console, with headings and tables."""
    _show_setting(result, console)
    _show_masked_example(result, console)
    _show_sums(result, console)
    _show_bytes(result, console)
    _show_knowledge(result, console)
    _show_endings(result, console)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _show_setting(result: DemoResult, console: Console) -> None:
    setting, session_plan = result.setting, result.session_plan
    console.print(
        f"[bold]One session, {setting.sums} secure sums[/bold] of {setting.dim:,} elements among "
        f"{setting.clients} clients, of whom {setting.corrupt} may collude with a {setting.trust}. "
        f"{session_plan.quorum} must stay in each sum; {session_plan.margin} may leave."
    )


def _show_masked_example(result: DemoResult, console: Console) -> None:
    masked_example = result.masked_example
    _heading(console, f"What client {masked_example.member} sent in the first sum")
    table = _table("its value", "as a residue", "what the server saw")
    for value, residue, seen in zip(
        masked_example.values, masked_example.residues, masked_example.seen, strict=True
    ):
        table.add_row(f"{value:+.6f}", f"{residue:,}", Text(f"{seen:,}", style="cyan"))
    console.print(table)
    seen = result.masked
    console.print(f"All {seen.total:,} residues of that sum, counted in {BUCKETS} equal ranges of the ring:")
    console.print(f"  behind the masks  [yellow]{result.true.bars}[/yellow]")
    console.print(f"  server's view     [cyan]{seen.bars}[/cyan]")
    console.print(
        f"  against uniform: chi-square {seen.chi_square:.1f} on {BUCKETS - 1} degrees of freedom, "
        f"p = {seen.p_value:.2f}",
        highlight=False,
    )


def _show_sums(result: DemoResult, console: Console) -> None:
    _heading(console, "The sums")
    table = _table("sum", "invited", "left before\nmasking", "left before\nrevealing", "in total",
                   "total begins", "error in\nsteps")  # fmt: skip
    for number, each in enumerate(result.sums, 1):
        table.add_row(*_row(number, each))
    console.print(table)
    widest = max(result.sums, key=lambda each: each.steps)
    verdict = "[red]more than rounding explains[/red]"
    if all(each.exact for each in result.sums):
        verdict = "[green]less than a step for each contributor[/green]"
    console.print(
        f"A step is what one client rounds to, {widest.step:.2g}. The error is the largest of all elements, "
        f"against the plain sum of the contributors' numbers, which only this demo knows: at most "
        f"{widest.error:.2g}, {verdict}.",
        highlight=False,
    )


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
    """Return the ids of the first `_NAMED` clients and the number of the others as text; "-" for none."""
    more = f" +{len(members) - _NAMED}" if len(members) > _NAMED else ""
    return " ".join(map(str, sorted(members)[:_NAMED])) + more or "-"


def _show_bytes(result: DemoResult, console: Console) -> None:
    _heading(console, "Bytes per client")
    table = _table("", *(stage.value for stage in Stage))
    table.add_row("up", *_bytes(result, "up"))
    table.add_row("down", *_bytes(result, "down"))
    console.print(table)
    console.print("advertise and share happen once in a session, the others in each sum.", style="dim")


def _bytes(result: DemoResult, direction: str) -> list[str]:
    def count(traffic: StageTraffic, stage: Stage) -> int:
        return traffic.up[stage] if direction == "up" else traffic.down[stage]

    cells = [count(result.setup if stage in _SETUP else result.each_sum, stage) for stage in Stage]
    return [f"{cell:,}" if cell else "-" for cell in cells]


def _show_knowledge(result: DemoResult, console: Console) -> None:
    _heading(console, "What the server learned")
    console.print(
        f"The {len(result.sums)} totals, who was in each of them, and who left when. Nothing else: no single "
        "client's numbers, not even of those who left. The median sums one private vector again and again, "
        "so its clients insist on the same company each time: two totals must not differ by one of them.",
        highlight=False,
    )


def _show_endings(result: DemoResult, console: Console) -> None:
    _heading(console, "When it must not work")
    text = f"{result.vanished} of {result.setting.clients} clients vanish before masking in one more sum:"
    _show_outcome(console, text, result.failure, "nothing was released", "a total was released")
    text = f"The server asks for the median's next sum without client {result.left_out}:"
    refuser = f"client {result.refuser}"
    _show_outcome(console, text, result.refusal, f"{refuser} refused before masking", f"{refuser} went along")


def _show_outcome(console: Console, text: str, error: Exception | None, good: str, bad: str) -> None:
    if error is None:
        console.print(f"{text} [red]{bad}[/red]", highlight=False)
    else:
        reason = f"{type(error).__name__} ({error})"
        console.print(f"{text} [green]{good}[/green], {reason}", highlight=False)
