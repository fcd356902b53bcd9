"""Prints the second part of the demo: federated training over TLS while some clients attack. `sims.cli.demo`
runs the shipped scenario `demo`, with one run directory for each algorithm. The functions here read all
numbers from these run directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from sims.records import RunDirectory, find_runs
from sims.records.run_file_names import METRICS, SUMS

SCENARIO: Final = "demo"
_TRIES: Final = 1000


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of training with one algorithm: accuracy, rounds, sums, bytes and privacy."""

    label: str
    common: float  # mean accuracy of honest clients on their own test samples, with the common model
    personal: float  # the same, with the model that each client uses
    completed: int
    rounds: int
    sums: int
    contributors: tuple[int, int]  # fewest and most, over all sums that were released
    bytes_up: float  # mean over clients
    bytes_down: float
    # The error that nine in ten clients do not exceed, from the private histogram; None without a histogram.
    tail: float | None
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True)
class TrainingSetting:
    """The settings that all training runs of the demo share, whatever their algorithm."""

    clients: int
    malicious: int
    dim: int
    trust: str
    threshold: int

    @classmethod
    def of(cls, run: RunDirectory) -> TrainingSetting:
        facts = run.facts()
        return cls(
            facts["clients"], facts["corrupt"], facts["dim"], facts["trust"], facts["graph"]["threshold"]
        )


def free_directory(parent: Path) -> Path:
    """Return the first of `demo-1` to `demo-999` in `parent` that does not exist, or `demo` if all exist."""
    names = (parent / f"{SCENARIO}-{number}" for number in range(1, _TRIES))
    return next((path for path in names if not path.exists()), parent / SCENARIO)


def runs_in(directory: Path) -> list[RunDirectory]:
    """Return the runs in `directory`, sorted by the time at which they started."""
    return sorted(find_runs(directory), key=lambda run: str(run.facts()["started"]))


def outcome(run: RunDirectory) -> TrainingOutcome:
    """Return the accuracy, rounds, sums, bytes and privacy of a finished training run, from its files."""
    facts, lines, sums = run.facts(), run.read_lines(METRICS), run.read_lines(SUMS)
    last = lines[-1]
    measured = next(line["measured"] for line in reversed(lines) if line["measured"] is not None)
    released = [line for line in sums if line["entry"] == "sum" and line["count"] is not None]
    counts = [int(line["count"]) for line in released] or [0]
    tail: Mapping[str, Any] = next(
        (line["tail"] for line in reversed(lines) if line.get("tail") is not None), {}
    )
    return TrainingOutcome(
        label=str(next(iter(facts["cell"].values()), facts["algorithm"])),
        common=_accuracy(measured, "common"),
        personal=_accuracy(measured, "personal"),
        completed=sum(bool(line["completed"]) for line in lines if line["round"]),
        rounds=facts["rounds"],
        sums=len(released),
        contributors=(min(counts), max(counts)),
        bytes_up=last["bytes_up"] / facts["clients"],
        bytes_down=last["bytes_down"] / facts["clients"],
        tail=tail.get("error_p90"),
        epsilon=tail.get("epsilon"),
        delta=tail.get("delta"),
    )


def _accuracy(measured: Mapping[str, Any], what: str) -> float:
    """Return the mean accuracy of model `what` ("common" or "personal") over clients that do not attack."""
    return float(measured.get(f"{what}_benign", measured[what])["mean_accuracy"])


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


def show(console: Console, cast: TrainingSetting, outcomes: Sequence[TrainingOutcome], report: Path) -> None:
    console.print()
    console.print(_outcome_table(outcomes))
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
    console.print(f"\nThe whole report: [bold]{report}[/bold]", highlight=False, soft_wrap=True)
    console.print(f"$ secagg audit {report.parent}", style="dim", highlight=False, soft_wrap=True)


def _outcome_table(outcomes: Sequence[TrainingOutcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in (
        "common\nmodel", "model\nin use", "nine in ten\nerr at most", "rounds", "sums", "clients\nin a sum",
        "MB sent\nby each",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    best = max(outcomes, key=lambda each: each.personal)
    for each in outcomes:
        table.add_row(*_outcome_row(each), style="green" if each is best else None)
    return table


def _outcome_row(each: TrainingOutcome) -> tuple[str, ...]:
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


def _verdict(outcomes: Sequence[TrainingOutcome]) -> str:
    best, worst = (choose(outcomes, key=lambda each: each.personal) for choose in (max, min))
    return (
        f"[green]{best.label} kept {100 * best.personal:.1f} %[/green], [red]{worst.label} fell to "
        f"{100 * worst.personal:.1f} %[/red]."
    )


def _price(outcomes: Sequence[TrainingOutcome]) -> str:
    """Return a text for the user: that no epsilon holds, as the training's sums have no noise, and what the
    histogram of clients' errors, if there is one, would cost alone."""
    noisy = [each for each in outcomes if each.epsilon is not None]
    if not noisy:
        return "No sum had noise: nothing here is differentially private."
    first = noisy[0]
    return (
        "No epsilon holds for these runs: the training's sums have no noise. They hide a client among the "
        "others, and are not differentially private. How errors spread was asked once for each, by a "
        f"histogram with noise of the clients' own, which alone would have an epsilon of {first.epsilon:.2f} "
        f"at a delta of {first.delta:g}."
    )
