"""What secure sums add to a simulation of federated averaging: over plain sums, and beside Flower's engine.

The same rounds are run over plain sums and over real machines, taking turns in one process with one thread,
and the CPU time of each is split by stage. A round is one sum, and a session is as long as the benchmark, so
that what its set-up costs is shared by its sums. Nobody drops out; the graph is found for those who might.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.digits_task import DigitsTask
from benchmarks.flower_rounds import Comparison, FlowerRounds, compare
from benchmarks.stages import Part, StageClock
from fl.device_and_threads import one_thread
from protocols.run import Run
from protocols.serialisation import Vector
from secagg import Trust
from secagg.errors import LocalError
from secagg.graph_parameters import GraphChoice
from secagg.session_params import SessionParams
from secagg.topology import GraphPlan, plan
from sims.console_progress import OnProgress
from sims.runtime import Setting, insecure_plain_sum, secure_sum

MOST_MILLISECONDS: Final = 4.0  # of CPU that a ring may add, per client and sum
FASTER_THAN_FLOWER: Final = 3.0  # times its rounds per second
_FEW: Final = 4


@dataclass(frozen=True, kw_only=True)
class OverheadSetting:
    """How many clients, in how many sums, and for whom the graph is found.

    `runs`  sessions of plain sums and of a ring, of which medians are taken; the others take long, and are
            run once.
    `flower_clients`, `flower_rounds`  of the comparison with Flower, which has `flower_python` run it.
    """

    clients: int = 100
    sums: int = 16
    steps: int = 5
    corrupt: int = 10
    dropout: Fraction = Fraction(1, 10)
    runs: int = 3
    flower_clients: int = 20
    flower_rounds: int = 40
    flower_python: str | None = None


@dataclass(frozen=True)
class Way:
    """How sums are computed."""

    name: str
    trust: Trust | None  # None for plain sums
    graph: GraphChoice

    def setting(self, setting: OverheadSetting) -> Setting:
        return Setting(
            trust=self.trust or Trust.CURIOUS,
            corrupt=setting.corrupt,
            dropout=setting.dropout,
            sums=setting.sums,
            graph=self.graph,
        )


PLAIN: Final = Way("plain", None, GraphChoice.RING)
RING: Final = Way("ring", Trust.CURIOUS, GraphChoice.RING)
WAYS: Final = (
    PLAIN,
    RING,
    Way("complete", Trust.CURIOUS, GraphChoice.COMPLETE),
    Way("malicious", Trust.MALICIOUS, GraphChoice.COMPLETE),
)


@dataclass(frozen=True)
class WayCosts:
    """CPU milliseconds per client and sum, by stage: medians over the runs."""

    way: Way
    graph: GraphPlan | None  # None for plain sums
    milliseconds: Mapping[Part, float]
    model: Vector  # after all rounds, of the last run

    @property
    def total(self) -> float:
        return sum(self.milliseconds.values())


@dataclass(frozen=True)
class OverheadReport:
    """Plain sums, and the secure ways. `flower` is a comparison, or the reason why there is none."""

    setting: OverheadSetting
    dim: int
    costs: Sequence[WayCosts]
    flower: FlowerRounds | str

    def of(self, name: str) -> WayCosts:
        return next(each for each in self.costs if each.way.name == name)

    def overhead(self, costs: WayCosts) -> float:
        """Return the cost beyond plain sums, in milliseconds of CPU per client and sum."""
        return costs.total - self.of(PLAIN.name).total

    def overhead_of(self, costs: WayCosts, part: Part) -> float:
        return costs.milliseconds[part] - self.of(PLAIN.name).milliseconds[part]

    @property
    def holds(self) -> bool:
        """Whether a ring adds no more than it may."""
        return self.overhead(self.of(RING.name)) <= MOST_MILLISECONDS

    @property
    def flower_holds(self) -> bool | None:
        """Whether plain sums are as much faster than Flower as they should be; None if unknown."""
        return self.flower.ratio >= FASTER_THAN_FLOWER if isinstance(self.flower, FlowerRounds) else None

    @property
    def difference(self) -> float:
        """The largest difference between any two of the models, in their worst parameter."""
        plain = self.of(PLAIN.name).model
        return max(float(np.abs(each.model - plain).max()) for each in self.costs)

    def as_json(self) -> dict[str, Any]:
        setting = asdict(self.setting) | {"dropout": float(self.setting.dropout)}
        del setting["flower_python"]
        return {
            **setting,
            "dim": self.dim,
            "bar_ms": MOST_MILLISECONDS,
            "holds": self.holds,
            "model_difference": self.difference,
            "ways": {each.way.name: self._way(each) for each in self.costs},
            "flower": self._flower(),
        }

    def _way(self, costs: WayCosts) -> dict[str, Any]:
        plain = costs.way.trust is None
        graph = costs.graph
        return {
            "trust": None if plain else str(costs.way.trust),
            "graph": None if graph is None else graph_name(graph),
            "neighbours": None if graph is None else graph.neighbours,
            "threshold": None if graph is None else graph.threshold,
            "cpu_ms": {str(part): costs.milliseconds[part] for part in Part},
            "total_cpu_ms": costs.total,
            "overhead_cpu_ms": None if plain else self.overhead(costs),
            "overhead_by_stage_cpu_ms": None
            if plain
            else {str(part): self.overhead_of(costs, part) for part in Part},
        }

    def _flower(self) -> dict[str, Any]:
        if isinstance(self.flower, str):
            return {"left_out": self.flower}
        return {**self.flower.as_json(), "bar": FASTER_THAN_FLOWER, "holds": self.flower_holds}


def measure(setting: OverheadSetting, progress: OnProgress) -> OverheadReport:
    """Measure all ways. Raises `LocalError` if there is no ring for so many clients."""
    task = DigitsTask(setting.clients, setting.steps)
    runs: dict[Way, list[dict[Part, float]]] = {way: [] for way in WAYS}
    models: dict[Way, Vector] = {}
    graphs = {way: _graph(way, setting) for way in WAYS}
    with one_thread():
        _warm_up(setting)
        turns = [PLAIN, RING] * (setting.runs - 1) + list(WAYS)
        for done, way in enumerate(turns):
            progress(way.name, done, len(turns))
            found, models[way] = run_rounds(task, way, setting)
            runs[way].append(found)
    costs = [WayCosts(way, graphs[way], _medians(runs[way]), models[way]) for way in WAYS]
    progress("Flower", 0, 1)
    return OverheadReport(setting, len(task.start()), costs, _flower(setting))


def _warm_up(setting: OverheadSetting) -> None:
    """Run a few clients in one sum of each kind, so that one-time work is done."""
    few = replace(setting, clients=_FEW, sums=1, corrupt=0, dropout=Fraction(0))
    for way in WAYS:
        run_rounds(DigitsTask(_FEW, setting.steps), way, few)


def _graph(way: Way, setting: OverheadSetting) -> GraphPlan | None:
    """Return the result of the finder."""
    if way.trust is None:
        return None
    return plan(
        setting.clients,
        SessionParams(trust=way.trust, corrupt=setting.corrupt, dropout=setting.dropout, graph=way.graph),
    )


def run_rounds(task: DigitsTask, way: Way, setting: OverheadSetting) -> tuple[dict[Part, float], Vector]:
    """Run one session with a round for each sum. Return milliseconds per client and sum, and the model."""
    algorithm, crowd = task.algorithm(), task.crowd()
    crowd.train(task.start())  # the first time, much is set up
    make = insecure_plain_sum if way.trust is None else secure_sum
    clock = StageClock(signed=way.trust is Trust.MALICIOUS)
    with clock.running():
        channel = make(algorithm, crowd, way.setting(setting))
        run = Run(algorithm, channel, algorithm.start(task.start()))
        reports = [run.round() for _ in range(setting.sums)]
        channel.close()
    for report in reports:
        if report.failure is not None:
            raise LocalError(f"round {report.number} over {way.name} sums failed: {report.failure}")
    each = 1e3 / (setting.clients * setting.sums)
    return {part: each * clock.seconds[part] for part in Part}, run.model


def graph_name(graph: GraphPlan) -> str:
    return str(GraphChoice.RING if graph.is_ring else GraphChoice.COMPLETE)


def _medians(runs: Sequence[Mapping[Part, float]]) -> dict[Part, float]:
    return {part: median(run[part] for run in runs) for part in Part}


def _flower(setting: OverheadSetting) -> FlowerRounds | str:
    if setting.flower_clients == 0:
        return "it was not asked for"
    try:
        return compare(
            Comparison(
                clients=setting.flower_clients,
                rounds=setting.flower_rounds,
                steps=setting.steps,
                python=setting.flower_python,
            )
        )
    except LocalError as error:
        return str(error)
