"""The demo's second act: federated training in real processes over TLS, while some of the clients attack it.

It runs the scenario `demo` that is shipped, in the way in which anybody would: `secagg simulate`, `secagg
report`. What it tells comes from the directories of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.records import RunDirectory, find_runs

SCENARIO: Final = "demo"
_TRIES: Final = 1000


@dataclass(frozen=True)
class Outcome:
    """What came of one algorithm. Accuracies are those of honest clients, on their own test samples.

    `tail`  what the private histogram says: of all clients, nine in ten have at most this error. None if
            nothing was released.
    """

    label: str
    common: float
    personal: float
    completed: int
    rounds: int
    sums: int
    contributors: tuple[int, int]  # fewest and most, over all sums that were released
    bytes_up: float  # of a client
    bytes_down: float
    tail: float | None
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True)
class Cast:
    """Who plays: the same for all algorithms."""

    clients: int
    malicious: int
    dim: int
    trust: str
    threshold: int

    @classmethod
    def of(cls, run: RunDirectory) -> Cast:
        facts = run.facts()
        return cls(
            facts["clients"], facts["corrupt"], facts["dim"], facts["trust"], facts["graph"]["threshold"]
        )


def free_directory(parent: Path) -> Path:
    """Where nothing is yet: a demo is run anew each time, and never over somebody's results."""
    names = (parent / f"{SCENARIO}-{number}" for number in range(1, _TRIES))
    return next((path for path in names if not path.exists()), parent / SCENARIO)


def runs_in(directory: Path) -> list[RunDirectory]:
    """In the order in which they were run."""
    return sorted(find_runs(directory), key=lambda run: str(run.facts()["started"]))


def outcome(run: RunDirectory) -> Outcome:
    facts, lines, sums = run.facts(), run.read_lines("metrics.jsonl"), run.read_lines("sums.jsonl")
    last = lines[-1]
    measured = next(line["measured"] for line in reversed(lines) if line["measured"] is not None)
    released = [line for line in sums if line["entry"] == "sum" and line["count"] is not None]
    counts = [int(line["count"]) for line in released] or [0]
    tail = _tail(lines)
    return Outcome(
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
    """Of honest clients, where somebody attacks."""
    return float(measured.get(f"{what}_benign", measured[what])["mean_accuracy"])


def _tail(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    asked = (line["tail"] for line in reversed(lines) if line.get("tail") is not None)
    return next(asked, {})
