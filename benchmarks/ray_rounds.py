"""Rounds with clients in actors of Ray, beside the same rounds in one process and in worker processes.

The ways take turns, some rounds each, so that all of them meet the same load of the machine. The first round
of each, in which actors and sessions are set up, is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.ray_tasks import RoundTask
from fl.device_and_threads import one_thread
from protocols.run import Run
from protocols.serialisation import Vector
from sims.console_progress import OnProgress
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.processes import processes_sum
from sims.runtime.ray import RayPlace, ray_sum

MOST_OF_PLAIN: Final = 0.75  # of the time of plain sums on one thread, that plain sums on two cores may take
MOST_OF_PROCESSES: Final = 1.0  # of the time of worker processes, that secure sums may take
WAYS: Final = ("plain", "ray plain", "secure", "processes", "ray secure")


@dataclass(frozen=True, kw_only=True)
class RaySetting:
    """`actors` of Ray, or worker processes, share the clients of the `task`. Each way has `turns`, each of
    `rounds` in a row."""

    task: RoundTask
    actors: int = 2
    turns: int = 5
    rounds: int = 4
    data: Path | None = None
    ways: tuple[str, ...] = WAYS


@dataclass(frozen=True)
class RayReport:
    """Seconds per round in each turn, by way; those of the first round, with set-up; and the models."""

    setting: RaySetting
    dim: int
    first: Mapping[str, float]
    seconds: Mapping[str, list[float]]
    models: Mapping[str, Vector]

    def median(self, way: str) -> float:
        return median(self.seconds[way])

    def ratio(self, way: str, other: str) -> float | None:
        """Return the median over turns of the time of one way relative to another's; None if one is missing.
        Both turns of a pair were run one soon after the other."""
        if way not in self.seconds or other not in self.seconds:
            return None
        return median(a / b for a, b in zip(self.seconds[way], self.seconds[other], strict=True))

    @property
    def bars(self) -> dict[str, tuple[float, float]]:
        """By bar, the ratio and the most that it may be, for the ways that were measured."""
        found = {
            "ray plain / plain": (self.ratio("ray plain", "plain"), MOST_OF_PLAIN),
            "ray secure / processes": (self.ratio("ray secure", "processes"), MOST_OF_PROCESSES),
        }
        return {name: (ratio, most) for name, (ratio, most) in found.items() if ratio is not None}

    @property
    def difference(self) -> float:
        """The largest difference between any two of the models, in their worst parameter."""
        first, *others = self.models.values()
        return max((float(np.abs(each - first).max()) for each in others), default=0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setting.task),
            "actors": self.setting.actors,
            "turns": self.setting.turns,
            "rounds": self.setting.rounds,
            "real_data": self.setting.data is not None,
            "dim": self.dim,
            "first_s": dict(self.first),
            "round_s": {way: self.median(way) for way in self.seconds},
            "model_difference": self.difference,
            "ratios": {name: {"is": ratio, "most": most} for name, (ratio, most) in self.bars.items()},
        }


def measure(setting: RaySetting, progress: OnProgress) -> RayReport:
    task = setting.task
    with one_thread(), ExitStack() as stack:
        runs: dict[str, tuple[Run[Any], SessionChannel]] = {}
        for way, make in _channels(setting).items():
            channel = make()
            stack.callback(channel.close)
            algorithm = task.algorithm()
            runs[way] = Run(algorithm, channel, algorithm.start(task.start())), channel
        first = {way: _timed(*run, 1) for way, run in runs.items()}
        seconds: dict[str, list[float]] = {way: [] for way in runs}
        for number in range(setting.turns):
            for way, run in runs.items():
                progress(way, number, setting.turns)
                seconds[way].append(_timed(*run, setting.rounds))
        models = {way: np.array(run.model) for way, (run, _) in runs.items()}
    return RayReport(setting, len(task.start()), first, seconds, models)


def _channels(setting: RaySetting) -> dict[str, Callable[[], SessionChannel]]:
    """Return functions that make the channel of each way. All have the same seed, so all have one model."""
    task = setting.task
    data = task.data(setting.data)
    algorithm, clients = task.algorithm(), task.factory(data)
    given = Setting(
        corrupt=task.clients // 10,
        dropout=0.1,
        sums=min(1 + setting.turns * setting.rounds, 64),
        insecure_seed=b"for comparison",
    )

    def on_ray(secure: bool) -> SessionChannel:
        return ray_sum(
            algorithm,
            task.crowd(data),
            given,
            clients=clients,
            secure=secure,
            actors=setting.actors,
            place=RayPlace(num_cpus=0),
        )

    made: dict[str, Callable[[], SessionChannel]] = {
        "plain": lambda: insecure_plain_sum(algorithm, task.crowd(data), given),
        "ray plain": lambda: on_ray(secure=False),
        "secure": lambda: secure_sum(algorithm, task.crowd(data), given),
        "processes": lambda: processes_sum(
            algorithm, task.crowd(data), given, clients=clients, workers=setting.actors
        ),
        "ray secure": lambda: on_ray(secure=True),
    }
    return {way: made[way] for way in setting.ways}


def _timed(run: Run[Any], channel: SessionChannel, rounds: int) -> float:
    """Return the seconds per round, until the states of all clients are here, for observers."""
    started = time.perf_counter()
    for _ in range(rounds):
        report = run.round()
        assert report.completed, report.failure
    channel.memories()
    return (time.perf_counter() - started) / rounds
