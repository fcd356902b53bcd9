"""What the page of benchmarks measures, and at which sizes. Only Flower is made up."""

import json
import platform
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import flower, machine, packing, sums
from benchmarks import page_measurements as surveys
from benchmarks.__main__ import main
from benchmarks.cores import Cores
from benchmarks.flower import FlowerCosts, FlowerError
from benchmarks.machine import Machine
from benchmarks.packing import measure_packing
from benchmarks.page_measurements import survey
from benchmarks.page_plan import FULL, LONG, QUICK, Plan
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from sims.console_progress import OnProgress, quiet
from tests.benchmarks.reports import FLOWER, made_up_survey, report_of

pytestmark = pytest.mark.slow  # measures real sums

# --- a survey of the smallest sums ---


@pytest.mark.slow
def test_quick_survey_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything runs, from the option to the plots, and every sum is there and exact."""
    monkeypatch.setattr(flower, "installed", lambda: True)
    monkeypatch.setattr(flower, "measure_flower", lambda **_: FLOWER)

    assert main(["--write", str(tmp_path / "page.md"), "--quick", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [each["dim"] for each in found["by_dim"]] == list(QUICK.lengths.dims)
    assert [row["dim"] for row in found["flower"]] == list(QUICK.lengths.dims)
    assert found["flower_majority"]["version"] == "9.9"
    assert [each["clients"] for each in found["by_clients"]] == list(QUICK.cohorts)
    assert (found["narrow"]["bits"], found["narrow"]["dim"]) == (20, QUICK.long_dim)
    assert (found["crowd"]["clients"], found["crowd"]["dim"]) == (QUICK.crowd.clients, QUICK.crowd.dim)
    processes = [*found["one_process"], *found["two_processes"]]
    assert [each["processes"] for each in processes] == [1, 2]
    assert found["processes_limit"]["ratio"] > 0
    assert [each["bits"] for each in found["packing"]] == list(range(1, 65))
    assert found["encoding"]["dim"] == QUICK.long_dim
    assert found["primitives"]["clients"] == QUICK.primitives.clients
    reports = [*found["by_dim"], found["narrow"], *processes, found["crowd"], *found["by_clients"]]
    assert all(each["exact"] for each in reports)
    links = re.findall(r"\]\((.*?)\)", (tmp_path / "page.md").read_text(encoding="utf-8"))
    assert len(links) == 3
    assert all((tmp_path / link).exists() for link in links)


class FakeFlower:
    """Fails at one of its calls."""

    def __init__(self, fails_at: int) -> None:
        self.asked: list[tuple[int, int]] = []  # length, threshold
        self._fails_at = fails_at

    def __call__(self, *, dim: int, threshold: int, **_: object) -> FlowerCosts:
        self.asked.append((dim, threshold))
        if len(self.asked) == self._fails_at:
            raise FlowerError("Flower was ended")
        return FLOWER


@pytest.fixture
def no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run, as far as it can be told."""
    made_up = made_up_survey()
    monkeypatch.setattr(flower, "installed", lambda: True)
    monkeypatch.setattr(sums, "measure", lambda setting, _: report_of(setting))
    monkeypatch.setattr(surveys, "measure_packing", lambda _: made_up.packing)
    monkeypatch.setattr(surveys, "primitives", SimpleNamespace(measure=lambda *_: made_up.primitives))


@pytest.mark.parametrize(
    ("fails_at", "asked", "rows", "majority"),
    [
        (0, [(10, 3), (10, 4), (100, 3)], [10, 100], True),
        (1, [(10, 3)], [], False),
        (2, [(10, 3), (10, 4)], [10], False),
        (3, [(10, 3), (10, 4), (100, 3)], [10], True),
    ],
)
@pytest.mark.usefixtures("no_sums")
def test_flower_that_failed_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
    asked: list[tuple[int, int]],
    rows: list[int],
    majority: bool,
) -> None:
    fake = FakeFlower(fails_at)
    monkeypatch.setattr(flower, "measure_flower", fake)

    found = survey(QUICK, quiet)

    assert fake.asked == asked
    assert [row.ours.dim for row in found.rows] == rows
    assert [each.dim for each in found.by_dim] == [10, 100], "ours are measured in any case"
    assert (found.majority is not None) is majority
    assert found.absent == ("Flower was ended" if fails_at else "")


@pytest.mark.usefixtures("no_sums")
def test_flower_that_is_missing_is_not_asked_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeFlower(0)
    monkeypatch.setattr(flower, "measure_flower", fake)
    monkeypatch.setattr(flower, "installed", lambda: False)

    found = survey(QUICK, quiet)

    assert (fake.asked, found.rows) == ([], [])
    assert found.absent == "Flower is not installed: pip install 'secagg[peers]'"


@pytest.mark.usefixtures("no_sums")
def test_processes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    class FakeCores(Cores):
        def sample(self) -> None:
            order.append(0)
            super().sample()

    def remembered(setting: SumSetting, _: OnProgress) -> SumReport:
        order.append(setting.processes)
        return report_of(setting)

    monkeypatch.setattr(flower, "installed", lambda: False)
    monkeypatch.setattr(sums, "measure", remembered)
    monkeypatch.setattr(surveys, "Cores", FakeCores)

    found = survey(replace(QUICK, turns=5), quiet)

    start = order.index(0)
    assert order[start : start + 21] == [0, 1, 0, 2] * 5 + [0]
    assert (order.count(0), order.count(2)) == (11, 5)
    assert {each.processes for each in found.one_process} == {1}
    assert {each.processes for each in found.two_processes} == {2}


@pytest.mark.usefixtures("no_sums")
def test_progress_tells_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def talkative(setting: SumSetting, progress: OnProgress) -> SumReport:
        progress("keys", 1, 2)
        return report_of(setting)

    monkeypatch.setattr(flower, "measure_flower", FakeFlower(0))
    monkeypatch.setattr(sums, "measure", talkative)

    survey(QUICK, lambda text, _done, _of: told.append(text))

    assert told[:4] == [
        "12 clients, 10 elements: keys",
        "12 clients, 10 elements: Flower",
        "Flower, with another threshold",
        "12 clients, 100 elements: keys",
    ]
    assert told[-1] == "16 clients, 10 elements: keys"


# --- the plan ---


@pytest.mark.parametrize("plan", [FULL, LONG, QUICK])
def test_plan_measures_what_it_promises(plan: Plan) -> None:
    assert {plan.long_dim, plan.peer_dim} <= set(plan.lengths.dims)
    assert set(plan.compared) <= set(plan.cohorts)
    assert plan.in_processes(2) == replace(plan.in_processes(1), processes=2)


def test_sizes_of_the_page() -> None:
    lengths = FULL.lengths
    assert (lengths.clients, lengths.neighbours, lengths.dropout) == (50, 24, Fraction(1, 10))
    assert lengths.dims == (10**3, 10**4, 10**5, 10**6)
    assert LONG.lengths.dims == (*lengths.dims, 10**7)
    assert (FULL.narrow.dim, FULL.narrow.bits) == (10**6, 20)
    assert (FULL.crowd.clients, FULL.crowd.dim, FULL.crowd.neighbours) == (1000, 10**5, None)
    assert (FULL.crowd.corrupt, FULL.crowd.dropped) == (100, 100)
    assert (FULL.cohorts[0], FULL.cohorts[-1], FULL.cohort_dim) == (50, 10_000, 1000)
    assert FULL.compared == (1000, 10_000)
    assert (FULL.rehearsal, LONG.rehearsal, QUICK.rehearsal) == (False, False, True)


def test_the_longer_a_sum_takes_the_less_often_it_is_run() -> None:
    assert [FULL.runs_of(LONG.lengths.sum_of(dim)) for dim in LONG.lengths.dims] == [5, 5, 5, 3, 1]
    assert [FULL.runs_of(FULL.cohort(clients)) for clients in (50, 1000, 2000)] == [5, 3, 1]
    assert QUICK.runs_of(QUICK.narrow) == 1


# --- packing, and the machine ---


def test_packing_takes_the_quickest_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every number of bits, seven rounds of packing and seven of adding."""
    rounds = [70, 60, 50, 10, 30, 20, 40, 140, 20, 100, 80, 60, 40, 120]
    readings = iter([reading for _ in range(64) for spent in rounds for reading in (0, spent)])
    monkeypatch.setattr(packing, "time", SimpleNamespace(thread_time_ns=lambda: next(readings)))

    costs = measure_packing(5)

    assert {(cost.pack_ns, cost.add_ns) for cost in costs} == {(2.0, 4.0)}
    assert next(readings, None) is None


def test_machine_tells_what_it_runs() -> None:
    here = Machine.here()

    assert here.cores >= 1
    assert platform.python_version() in here.python
    assert [each.split()[0] for each in here.packages] == list(machine.PACKAGES)


@pytest.mark.parametrize(
    ("cpuinfo", "processor"),
    [
        ("flags\t: aes\nmodel name\t: Some CPU 3000\n", "Some CPU 3000"),
        ("flags\t: aes\n", None),
        (None, None),
    ],
)
def test_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpuinfo: str | None, processor: str | None
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(machine, "_CPUINFO", path)

    assert Machine.here().processor == (processor or platform.machine())
