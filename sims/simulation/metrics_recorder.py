"""Records the metrics of every round as a JSON object, called a line, and makes the final result from lines.
Except for clients' last scores, the result is made from lines alone, so a resumed run needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fl.errors import DataError
from protocols.run import RoundReport
from sims.coordination.run_writer import Line, plain
from sims.coordination.spending import Spending, epsilon_of, run_delta, total
from sims.records.sum_records import by_stage
from sims.scenario.settings import insecure_seed
from sims.simulation import client_metrics
from sims.simulation.metric_observers import OBSERVERS
from sims.simulation.setup import SimulationSetup
from sims.text_format import counted

# The default values of a line.
_NOTHING: Final[Mapping[str, Any]] = {
    "round": 0, "completed": True, "failure": None, "clients": 0, "sums": {}, "facts": {}, "silenced": 0,
    "observed": {},
}  # fmt: skip


class MetricsRecorder:
    """Makes the line (a JSON object of metrics) of each round; line 0 is from before round 1. A resumed run
    passes its earlier `lines` and its bytes `sent`: "bytes_up" or "bytes_down" -> stage -> bytes."""

    def __init__(
        self,
        setup: SimulationSetup,
        spendings: Mapping[str, Spending],
        lines: Sequence[Line] = (),
        *,
        sent: Mapping[str, Counter[str]],
    ) -> None:
        self._setup = setup
        self._spendings = spendings
        self._sent = sent  # bytes up and down before this process, by stage
        self._classes = setup.federation.classes is not None
        self._observers = {name: OBSERVERS[name]() for name in setup.settings.evaluation.observe}
        self._last: Mapping[str, client_metrics.Scores] = {}
        self.lines = list(lines)

    def set_setup(self, setup: SimulationSetup) -> None:
        """Replace the setup by the one that was restored from a checkpoint."""
        self._setup = setup

    # --- lines ---

    def first(self, seconds: float) -> Line:
        """Add and return line 0, before round 1. Raise `DataError` if no client has samples to measure."""
        measured = self._measure()
        self._check_measured()
        return self._add({}, measured, seconds)

    def after(self, number: int, report: RoundReport, seconds: float) -> Line:
        """Add and return the line of round `number`, counted from 1, which has just ended."""
        setup = self._setup
        silenced = sum(each.diverged == report.number for each in setup.watched.values())
        measured = self._measure_if_due(number)
        line = {
            "round": number,
            "completed": report.completed,
            "failure": None if report.completed else _why(report, silenced),
            "clients": report.clients,
            "sums": dict(report.sums),
            "facts": {name: plain(value) for name, value in report.facts.items()},
            "silenced": silenced,
            "observed": self._observe(number),
        }
        return self._add(line, measured, seconds)

    def lost(self, number: int, seconds: float) -> Line:
        """Add and return the line of an interrupted round, which is skipped: clients refuse to repeat it."""
        failure = "the run was cut off in the midst of this round, which clients would not repeat"
        line = {"round": number, "completed": False, "failure": failure, "lost": True}
        return self._add(line, self._measure_if_due(number), seconds)

    def _add(self, line: Line, measured: Any, seconds: float) -> Line:
        """Complete a round's line with traffic, privacy cost and metrics, add it to `lines` and return it."""
        found = {
            **_NOTHING,
            **line,
            **self.traffic(),
            **self.cost(),
            "measured": measured,
            "tail": None,
            "seconds": round(seconds, 4),
        }
        self.lines.append(found)
        return found

    def traffic(self) -> dict[str, int]:
        """Return the bytes that all clients have sent ("bytes_up") and received ("bytes_down") so far."""
        return {way: sum(self.sent(way).values()) for way in ("bytes_up", "bytes_down")}

    def cost(self) -> dict[str, Any]:
        """Return the privacy cost so far of all sums together, for a client that was in all of them."""
        spend = total(self._spendings.values())
        epsilon = epsilon_of(spend, run_delta(self._setup.settings))
        return {"rho": spend.rho, "epsilon": epsilon, "unnoised": spend.unnoised}

    def sent(self, way: str) -> Counter[str]:
        """Return the bytes sent ("bytes_up") or received ("bytes_down") by all clients so far, by stage."""
        channels = self._setup.channels.values()
        now = (Counter(by_stage(getattr(channel, way))) for channel in channels)
        return sum(now, Counter(self._sent[way]))

    def _observe(self, number: int) -> dict[str, Any]:
        setup = self._setup
        seen = {
            name: observer(number, setup.run, setup.channel, setup.crowd)
            for name, observer in self._observers.items()
        }
        return {name: fact for name, fact in seen.items() if fact is not None}

    # --- measuring ---

    def _measure_if_due(self, number: int) -> dict[str, Any] | None:
        settings = self._setup.settings
        due = number % settings.evaluation.every == 0 or number == settings.rounds
        return self._measure() if due else None

    def _measure(self) -> dict[str, Any]:
        self._last = client_metrics.measured(self._setup)
        found: dict[str, Any] = {}
        for name, scores in self._last.items():
            found[name] = client_metrics.summary(scores, classes=self._classes)
            if self._setup.corrupt and not name.startswith("held_out"):
                benign = client_metrics.only(scores, self._benign())
                found[f"{name}_benign"] = client_metrics.summary(benign, classes=self._classes)
        return found

    def _benign(self) -> frozenset[int]:
        return frozenset(self._setup.crowd) - self._setup.corrupt

    def _check_measured(self) -> None:
        part = self._setup.settings.evaluation.part
        for name, scores in self._last.items():
            if not scores:
                raise DataError(
                    f"{name}: no client has samples of the part {part!r}: set evaluation.part to another"
                )

    @property
    def accuracy(self) -> float | None:
        """Return the latest mean accuracy: of the common model, else of personal models; None if unknown."""
        for line in reversed(self.lines):
            for numbers in (line["measured"] or {}).values():
                found: float | None = numbers.get("mean_accuracy")
                return found
        return None

    # --- result ---

    def result(self) -> dict[str, Any]:
        """Return the result of the simulation after the last round, as JSON values."""
        setup, rounds = self._setup, self.lines[1:]
        if not self._last:  # The run was resumed after its last round.
            self._measure()
        seed = insecure_seed(setup.settings.seed).hex() if setup.settings.seeded else None
        return {
            "insecure_seed": seed,
            "dim": setup.crowd.dim,
            "samples": {str(client): member.samples for client, member in setup.crowd.items()},
            "corrupt": sorted(setup.corrupt),
            "rounds": [line["round"] for line in self.lines if line["measured"] is not None],
            "series": self._series(),
            "final": self.of_clients(),
            "completed": sum(line["completed"] for line in rounds),
            "clients": [line["clients"] for line in rounds],
            "failures": [[line["round"] - 1, line["failure"]] for line in rounds if not line["completed"]],
            "diverged": self._diverged(),
            "sums": dict(sum((Counter(line["sums"]) for line in rounds), Counter())),
            "bytes_up": _by_name(self.sent("bytes_up")),
            "bytes_down": _by_name(self.sent("bytes_down")),
            "observed": self._observed(),
        }

    def of_clients(self) -> dict[str, Any]:
        """Return the last scores of all clients: measure -> name of a number -> list with one per client."""
        return {name: client_metrics.arrays(each, classes=self._classes) for name, each in self._last.items()}

    def _series(self) -> dict[str, dict[str, list[Any]]]:
        series: dict[str, dict[str, list[Any]]] = {}
        for line in self.lines:
            for name, numbers in (line["measured"] or {}).items():
                for key, value in numbers.items():
                    series.setdefault(name, {}).setdefault(key, []).append(value)
        return series

    def _observed(self) -> dict[str, list[Any]]:
        observed: dict[str, list[Any]] = {name: [] for name in self._observers}
        for line in self.lines:
            for name, fact in line["observed"].items():
                observed[name].append([line["round"], fact])
        return observed

    def _diverged(self) -> int | None:
        """Return the first round that failed with diverged clients or has no finite loss; None if none."""
        failed = [line["round"] for line in self.lines if not line["completed"] and line["silenced"]]
        return min([*failed, *self._without_loss()], default=None)

    def _without_loss(self) -> Iterator[int]:
        for line in self.lines:
            numbers = (line["measured"] or {}).values()
            if any("pooled_loss" in each and each["pooled_loss"] is None for each in numbers):
                yield line["round"]


def _why(report: RoundReport, silenced: int) -> str:
    cause = f"training diverged on {counted(silenced, 'client')}: " if silenced else ""
    return f"{cause}{report.failure}"


def _by_name(sent: Mapping[str, int]) -> dict[str, int]:
    return {f"Stage.{stage.upper()}": count for stage, count in sent.items() if count}
