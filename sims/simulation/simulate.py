"""One simulation from its settings to its results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fl.errors import DataError, FLError
from fl.threads import one_thread
from protocols.run import Report
from secagg.errors import SecaggError
from sims.scenario.settings import Settings
from sims.simulation import measuring
from sims.simulation.observers import OBSERVERS
from sims.simulation.streams import insecure_seed
from sims.simulation.world import World
from sims.sweep.tasks import Explained
from sims.words import counted

_HERE: Final = Path()


def _nobody(_round: int) -> None:
    pass


def simulate(
    settings: Settings, tell: Callable[[int], None] = _nobody, *, root: Path = _HERE
) -> dict[str, Any]:
    """Run all rounds, and say what came of them, in what JSON can hold.

    `tell`  is called with the number of every round that is over.
    `root`  is where directories of data are looked for.

    Raises `Explained` for what the settings, or the data, do not allow.
    """
    started, cpu = time.perf_counter(), time.process_time()
    try:
        with one_thread():
            log = _Log(World.of(settings, root))
            for number in range(1, settings.rounds + 1):
                log.round(number)
                tell(number)
            result = log.result()
    except (FLError, SecaggError) as error:
        raise Explained(str(error)) from error
    seconds = {"wall": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    return {**result, "seconds": {name: round(value, 2) for name, value in seconds.items()}}


class _Log:
    """Runs rounds, and keeps what there is to know of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._classes = world.federation.classes is not None
        self._observers = {name: OBSERVERS[name]() for name in world.settings.evaluation.observe}
        self._observed: dict[str, list[Any]] = {name: [] for name in self._observers}
        self._reports: list[Report] = []
        self._silenced: dict[int, int] = {}  # by round, how many of its clients' trainings diverged
        self._measured: list[int] = []
        self._series: dict[str, dict[str, list[Any]]] = {}
        self._last: Mapping[str, measuring.Scores] = {}
        self._measure(0)
        self._check_measured()

    def round(self, number: int) -> None:
        world = self._world
        world.crowd.begin_round(number - 1)
        report = world.run.round()
        self._reports.append(report)
        self._silenced[report.number] = sum(each.diverged == report.number for each in world.watched.values())
        if number % world.settings.evaluation.every == 0 or number == world.settings.rounds:
            self._measure(number)
        for name, observer in self._observers.items():
            fact = observer(number, world.run, world.channel, world.crowd)
            if fact is not None:
                self._observed[name].append([number, fact])

    def _check_measured(self) -> None:
        part = self._world.settings.evaluation.part
        for name, scores in self._last.items():
            if not scores:
                raise DataError(
                    f"{name}: nobody has samples of the part {part!r}: set evaluation.part to another"
                )

    def _measure(self, number: int) -> None:
        self._measured.append(number)
        self._last = measuring.measured(self._world)
        for name, scores in self._last.items():
            self._add(name, scores)
            if self._world.corrupt and not name.startswith("held_out"):
                self._add(f"{name}_benign", measuring.only(scores, self._benign()))

    def _benign(self) -> frozenset[int]:
        return frozenset(self._world.crowd) - self._world.corrupt

    def _add(self, name: str, scores: measuring.Scores) -> None:
        series = self._series.setdefault(name, {})
        for key, value in measuring.summary(scores, classes=self._classes).items():
            series.setdefault(key, []).append(value)

    def result(self) -> dict[str, Any]:
        world = self._world
        world.channel.close()
        failures = [[each.number, self._why(each)] for each in self._reports if not each.completed]
        return {
            "insecure_seed": insecure_seed(world.settings.seed).hex(),
            "dim": world.crowd.dim,
            "samples": {str(client): member.samples for client, member in world.crowd.items()},
            "corrupt": sorted(world.corrupt),
            "rounds": self._measured,
            "series": self._series,
            "final": {name: self._of_clients(scores) for name, scores in self._last.items()},
            "completed": sum(each.completed for each in self._reports),
            "clients": [each.clients for each in self._reports],
            "failures": failures,
            "diverged": self._diverged(),
            "sums": dict(sum((Counter(each.sums) for each in self._reports), Counter())),
            "bytes_up": _bytes(world.channel.bytes_up),
            "bytes_down": _bytes(world.channel.bytes_down),
            "observed": self._observed,
        }

    def _of_clients(self, scores: measuring.Scores) -> dict[str, list[Any]]:
        return measuring.arrays(scores, classes=self._classes)

    def _why(self, report: Report) -> str:
        silenced = self._silenced[report.number]
        return (
            f"training diverged on {counted(silenced, 'client')}: {report.failure}"
            if silenced
            else str(report.failure)
        )

    def _diverged(self) -> int | None:
        """The first round that failed as trainings diverged, or whose measured loss is no longer a number."""
        failed = (each.number + 1 for each in self._reports if not each.completed)
        rounds = [number for number in failed if self._silenced[number - 1]]
        return min([*rounds, *self._without_loss()], default=None)

    def _without_loss(self) -> Iterator[int]:
        losses = [series["pooled_loss"] for series in self._series.values() if "pooled_loss" in series]
        for place, number in enumerate(self._measured):
            if any(each[place] is None for each in losses):
                yield number


def _bytes(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(stage): count for stage, count in counts.items() if count}
