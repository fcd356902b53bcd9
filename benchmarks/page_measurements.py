"""Measures everything on the page of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from benchmarks import peers, primitives, sums
from benchmarks.cores import Cores, Rates
from benchmarks.encoding import EncodingCosts, measure_encoding
from benchmarks.flower import FlowerCosts, FlowerError, check_installed
from benchmarks.machine import Machine
from benchmarks.packing import PackingCost, measure_packing
from benchmarks.page_plan import Plan
from benchmarks.peers import Row
from benchmarks.primitives import PrimitivesReport
from benchmarks.repeats import measure_often
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from sims.console_progress import OnProgress, labelled

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was found for each point of a plan.

    `rows`      the vectors' lengths for which Flower finished too.
    `absent`    why there are no others, or "" if there are.
    `majority`  Flower's costs for `plan.peer_dim` with a majority of the shares as its threshold.
    `cores`     what bare AES and additions reached in one process and in two, in turns with the sums.
    """

    plan: Plan
    machine: Machine
    by_dim: Sequence[SumReport]
    rows: Sequence[Row]
    absent: str
    majority: FlowerCosts | None
    narrow: SumReport
    one_process: Sequence[SumReport]
    two_processes: Sequence[SumReport]
    cores: Rates
    crowd: SumReport
    by_clients: Sequence[SumReport]
    packing: Sequence[PackingCost]
    encoding: EncodingCosts
    primitives: PrimitivesReport

    @property
    def long(self) -> SumReport:
        return self.of_dim(self.plan.long_dim)

    def of_dim(self, dim: int) -> SumReport:
        return next(each for each in self.by_dim if each.dim == dim)

    def beside_flower(self, dim: int) -> Row | None:
        return next((row for row in self.rows if row.ours.dim == dim), None)

    def of_cohort(self, clients: int) -> SumReport:
        return next(each for each in self.by_clients if each.clients == clients)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": asdict(self.machine),
            "by_dim": [each.as_json() for each in self.by_dim],
            "flower": [row.as_json() for row in self.rows],
            "flower_absent": self.absent,
            "flower_majority": self.majority and asdict(self.majority),
            "narrow": self.narrow.as_json(),
            "one_process": [each.as_json() for each in self.one_process],
            "two_processes": [each.as_json() for each in self.two_processes],
            "processes_limit": {**asdict(self.cores), "ratio": self.cores.ratio},
            "crowd": self.crowd.as_json(),
            "by_clients": [each.as_json() for each in self.by_clients],
            "packing": [asdict(each) for each in self.packing],
            "encoding": self.encoding.as_json(),
            "primitives": self.primitives.as_json(),
        }


def survey(plan: Plan, progress: OnProgress) -> Survey:
    """Measure everything, one after the other, because two at a time would disturb each other."""
    machine = Machine.here()
    told = labelled(progress, "primitives")
    balances = primitives.measure(plan.primitives, lambda text: told(text, 0, 1))
    packing = measure_packing(plan.packed)
    encoding = measure_encoding(plan.noisy)
    lengths = _Lengths(plan, progress)
    narrow = _often(plan, plan.narrow, progress)
    one, two, cores = _processes(plan, progress)
    crowd = sums.measure(plan.crowd, _labelled(progress, plan.crowd))
    by_clients = [_often(plan, plan.cohort(clients), progress) for clients in plan.cohorts]
    return Survey(
        plan=plan,
        machine=machine,
        by_dim=lengths.reports,
        rows=lengths.rows,
        absent=lengths.absent,
        majority=lengths.majority,
        narrow=narrow,
        one_process=one,
        two_processes=two,
        cores=cores,
        crowd=crowd,
        by_clients=by_clients,
        packing=packing,
        encoding=encoding,
        primitives=balances,
    )


def _labelled(progress: OnProgress, setting: SumSetting) -> OnProgress:
    return labelled(progress, f"{setting.clients:,} clients, {setting.dim:,} elements")


def _often(plan: Plan, setting: SumSetting, progress: OnProgress) -> SumReport:
    return measure_often(setting, _labelled(progress, setting), runs=plan.runs_of(setting))


def _processes(plan: Plan, progress: OnProgress) -> tuple[list[SumReport], list[SumReport], Rates]:
    """Measure the same sum in one process and in two, in turns, and between them the limit of the cores."""
    reports: list[SumReport] = []
    with Cores() as cores:
        for setting in [plan.in_processes(processes) for processes in (1, 2)] * plan.turns:
            cores.sample()
            reports.append(sums.measure(setting, _labelled(progress, setting)))
        cores.sample()
    return reports[::2], reports[1::2], cores.rates()


class _Lengths:
    """One cohort's vectors of all lengths, with Flower beside them while it is installed and finishes."""

    def __init__(self, plan: Plan, progress: OnProgress) -> None:
        self._plan = plan
        self._progress = progress
        self.reports: list[SumReport] = []
        self.rows: list[Row] = []
        self.absent = ""
        self.majority: FlowerCosts | None = None
        self._tried(check_installed)
        for dim in plan.lengths.dims:
            self._measure(plan.lengths.sum_of(dim))

    def _measure(self, setting: SumSetting) -> None:
        told, runs = _labelled(self._progress, setting), self._plan.runs_of(setting)
        row = self._tried(lambda: peers.compare(setting, told, runs=runs))
        if row is None:
            self.reports.append(measure_often(setting, told, runs=runs))
            return
        self.reports.append(row.ours)
        self.rows.append(row)
        if setting.dim == self._plan.peer_dim:
            self.majority = self._tried(lambda: self._of_majority(row))

    def _of_majority(self, row: Row) -> FlowerCosts:
        self._progress("Flower, with another threshold", 0, 1)
        return peers.measure_like(row.ours, self._plan.lengths.dropout, threshold=row.majority)

    def _tried(self, call: Callable[[], Result]) -> Result | None:
        """Return None if Flower fails; from then on, it is not run again."""
        if self.absent:
            return None
        try:
            return call()
        except FlowerError as error:
            self.absent = str(error)
            return None
