"""Represents the result of a drill (sums during which client processes are killed) as data, JSON and text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich import box
from rich.console import Console
from rich.table import Table

from sims.drill.config import DrillConfig
from sims.text_format import counted


def fingerprint(values: ArrayLike) -> str:
    """Return the SHA-256 hash of a total in hexadecimal. Each number is hashed as 8 bytes, little-endian."""
    return hashlib.sha256(np.asarray(values).astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SumOutcome:
    """The outcome of one sum of a drill: a total, or an abort, for example if too few clients are left."""

    sum: int
    contributors: int
    dropped: int  # clients of the cohort that are not in the total
    contributor_ids: tuple[int, ...] = ()
    expected_sha256: str | None = None  # of the sum of the contributors' vectors
    total_sha256: str | None = None  # of the total of the protocol
    aborted: bool = False
    survivors: int | None = None  # clients left, if too few were the reason of the abort
    threshold: int | None = None  # clients needed, in the same case
    reason: str = ""
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Return whether the total equals the expected one. A sum that was aborted counts as exact."""
        return self.expected_sha256 == self.total_sha256


@dataclass(kw_only=True)
class DrillReport:
    """The result of a drill (sums while client processes are killed): outcomes, counts, times and bytes."""

    setting: DrillConfig
    sums: list[SumOutcome] = field(default_factory=list)
    cohort: int = 0
    threshold: int = 0
    killed: int = 0  # clients whose process was killed
    crashed: int = 0  # clients whose process ended in any other way
    refused: int = 0  # clients that left, were dismissed or lost their session without being killed
    excluded: set[int] = field(default_factory=set)  # clients that the server says broke the protocol or lied
    # Client -> the sum in which its process is scheduled to be killed; -1: the set-up.
    kills: Mapping[int, int] = field(default_factory=dict)
    hung: int = 0  # sums and clients that did not end
    orphans: int = 0  # processes that remained
    released_after_abort: int = 0  # sums that released a total after they were aborted
    start_seconds: float = 0.0  # until all processes were connected
    setup_seconds: float = 0.0  # for keys and shares
    elapsed_seconds: float = 0.0  # of the session, including the check of the totals
    bytes_up: Mapping[str, int] = field(default_factory=dict)  # stage -> bytes that the server received
    bytes_down: Mapping[str, int] = field(default_factory=dict)  # stage -> bytes that the server sent
    server_peak_bytes: int = 0

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.sums)

    @property
    def seconds(self) -> float:
        """Return the seconds that set-up (keys and shares) and sums took, without the check of the totals."""
        return self.setup_seconds + sum(each.seconds for each in self.sums)

    @property
    def aborted(self) -> int:
        return sum(each.aborted for each in self.sums)

    @property
    def completed(self) -> int:
        return len(self.sums) - self.aborted

    @property
    def missed(self) -> int:
        """Return how many clients are missing from a total although no kill was scheduled for them by then,
        added up over all totals. All clients of the drill count, not only those that the server admitted."""
        return sum(
            len(set(range(self.setting.clients)) - set(each.contributor_ids) - self._dead_by(each.sum))
            for each in self.sums
            if not each.aborted
        )

    def _dead_by(self, sum_index: int) -> set[int]:
        """Return the clients that are scheduled to be killed in sum `sum_index` or earlier."""
        return {member for member, kill in self.kills.items() if kill <= sum_index}

    def _excused(self, each: SumOutcome) -> bool:
        """Return whether the kills that were scheduled up to the sum `each` explain why it was aborted."""
        dead = len(self._dead_by(each.sum))
        if each.threshold is None:
            return self.setting.neighbours > 0 and dead > 0  # A ring can be cut by any kill.
        few = each.survivors is not None and each.survivors < each.threshold
        return few and (self.setting.neighbours > 0 or self.setting.clients - dead < each.threshold)

    @property
    def as_promised(self) -> bool:
        """Return whether all totals are exact and nothing failed except sums that scheduled kills explain."""
        excused = all(self._excused(each) for each in self.sums if each.aborted)
        failures = (self.hung, self.orphans, self.released_after_abort, self.crashed, self.refused)
        return self.exact and excused and not any(failures) and not self.missed and not self.excluded

    def as_json(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "clients": setting.clients,
            "dim": setting.dim,
            "kill": str(setting.kill),
            "trust": str(setting.trust),
            "key_agreement": str(setting.params.key_agreement),
            "seed": setting.seed,
            "corrupt": setting.corrupt,
            "processes": len(setting.groups()),
            "tls": setting.tls,
            "cohort": self.cohort,
            "threshold": self.threshold,
            "sums": [asdict(each) for each in self.sums],
            "exact": self.exact,
            "completed": self.completed,
            "aborted": self.aborted,
            "missed": self.missed,
            "killed": self.killed,
            "crashed": self.crashed,
            "refused": self.refused,
            "excluded": sorted(self.excluded),
            "hung": self.hung,
            "orphans": self.orphans,
            "released_after_abort": self.released_after_abort,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            "setup_seconds": self.setup_seconds,
            "elapsed_seconds": self.elapsed_seconds,
            "bytes_up": dict(self.bytes_up),
            "bytes_down": dict(self.bytes_down),
            "server_peak_bytes": self.server_peak_bytes,
        }


def print_report(report: DrillReport, console: Console) -> None:
    setting = report.setting
    console.print(
        f"[bold]{setting.clients} clients in {len(setting.groups())} processes[/bold], "
        f"{'TLS' if setting.tls else 'plain TCP'}, {setting.trust}, {setting.params.key_agreement}, "
        f"threshold {report.threshold}; {counted(report.killed, 'client')} killed.",
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
        f"{report.refused} refused, {len(report.excluded)} excluded, {report.missed} missed; "
        f"start-up {report.start_seconds:.1f} s, session {report.seconds:.1f} s, "
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
