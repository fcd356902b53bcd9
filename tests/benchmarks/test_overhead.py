"""``overhead``: what is counted where, and what is compared. Nothing depends on the clock."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import flower_app, flower_rounds, overhead, stages
from benchmarks.__main__ import main
from benchmarks.digits_task import DigitsTask
from benchmarks.flower import FlowerError
from benchmarks.flower_rounds import Comparison, compare, write_task
from benchmarks.overhead import PLAIN, RING, WAYS, OverheadSetting, Way, measure, run_rounds
from benchmarks.overhead_view import show_overhead
from benchmarks.stages import Part, StageClock
from protocols.run import Run
from secagg import ClientMachine, ServerMachine, Trust
from secagg.errors import LocalError
from secagg.input_encoding import Encoding
from sims.console_progress import Console, quiet
from sims.runtime import SessionChannel, Setting, insecure_plain_sum
from tests.benchmarks.overhead_reports import ROUNDS, report

pytestmark = pytest.mark.slow  # measures real sums

SMALL = OverheadSetting(clients=6, sums=2, steps=1, corrupt=1, dropout=Fraction(0), runs=1, flower_clients=0)
TASK = DigitsTask(6, 1)
MALICIOUS = next(way for way in WAYS if way.name == "malicious")


class Ticks:
    """A clock that moves by one whenever something calls `work`, and never by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def process_time(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += 1.0


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    found = Ticks()
    monkeypatch.setattr(stages, "time", found)
    return found


# --- what counts where ---


def test_time_counts_for_the_innermost_call(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(_self: object) -> None:
        ticks.work()

    def answer(_self: object) -> None:
        ticks.work()
        Encoding.encode(None)  # type: ignore[call-arg, arg-type]
        ticks.work()

    monkeypatch.setattr(Encoding, "encode", encode)
    monkeypatch.setattr(ClientMachine, "answer", answer)
    clock = StageClock(signed=False)

    with clock.running():
        ticks.work()
        ClientMachine.answer(None)  # type: ignore[call-arg, arg-type]

    assert clock.seconds == {Part.REST: 1.0, Part.MASK: 2.0, Part.ENCODE: 1.0}
    assert ClientMachine.answer is answer  # type: ignore[comparison-overlap]


def test_what_set_up_calls_is_set_up(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    def close_stage(_self: object) -> None:
        ticks.work()

    def begin(_self: object) -> None:
        ServerMachine.close_stage(None)  # type: ignore[arg-type]
        ticks.work()

    monkeypatch.setattr(ServerMachine, "close_stage", close_stage)
    monkeypatch.setattr(SessionChannel, "begin", begin)
    clock = StageClock(signed=False)

    with clock.running():
        SessionChannel.begin(None)  # type: ignore[call-arg, arg-type]

    assert clock.seconds == {Part.SETUP: 2.0, Part.REST: 0.0}


def parts_of(way: Way, monkeypatch: pytest.MonkeyPatch) -> set[Part]:
    """The parts that some call counted for."""
    seen: set[Part] = set()
    switch = StageClock._switch

    def noted(clock: StageClock) -> None:
        seen.update(clock._open)
        switch(clock)

    monkeypatch.setattr(StageClock, "_switch", noted)
    run_rounds(TASK, way, SMALL)
    return seen


@pytest.mark.parametrize(
    ("way", "parts"),
    [
        (PLAIN, {Part.SETUP, Part.TRAIN, Part.ENCODE, Part.REST}),
        (RING, set(Part) - {Part.CONFIRM}),
        (MALICIOUS, set(Part)),
    ],
)
def test_every_stage_of_a_way_is_seen(way: Way, parts: set[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_of(way, monkeypatch) == parts


# --- the comparison of channels ---


def test_all_ways_train_the_same_model_over_the_graphs_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overhead, "_FEW", 3)

    found = measure(SMALL, quiet)

    assert [each.way.name for each in found.costs] == ["plain", "ring", "complete", "malicious"]
    assert 0 < found.difference < 1e-4
    ring, complete = found.of("ring").graph, found.of("complete").graph
    assert ring is not None
    assert complete is not None
    assert (ring.is_ring, complete.is_ring, complete.neighbours) == (True, False, 5)
    assert ring.neighbours < 5
    assert found.flower == "it was not asked for"


def test_plain_sums_and_rings_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counted(_task: object, way: Way, _setting: object) -> tuple[dict[Part, float], Any]:
        ran.append(way.name)
        return dict.fromkeys(Part, float(len(ran))), np.zeros(2)

    monkeypatch.setattr(overhead, "_warm_up", lambda _setting: None)
    monkeypatch.setattr(overhead, "run_rounds", counted)

    found = measure(replace(SMALL, runs=3), quiet)

    assert ran == ["plain", "ring"] * 3 + ["complete", "malicious"]
    assert found.of("plain").milliseconds[Part.MASK] == 3.0  # of 1, 3 and 5
    assert found.of("malicious").milliseconds[Part.MASK] == 8.0


def test_the_graph_is_the_one_that_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Setting] = []

    def stop(_algorithm: object, _learners: object, setting: Setting) -> Any:
        made.append(setting)
        raise InterruptedError

    monkeypatch.setattr(overhead, "secure_sum", stop)

    with pytest.raises(InterruptedError):
        run_rounds(TASK, RING, SMALL)

    (setting,) = made
    assert (setting.trust, setting.graph, setting.sums) == (Trust.CURIOUS, "ring", 2)
    assert setting.insecure_seed is None


def test_a_round_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(algorithm: Any, learners: Any, setting: Setting) -> SessionChannel:
        return insecure_plain_sum(algorithm, learners, replace(setting, dropouts=lambda *_: True))

    monkeypatch.setattr(overhead, "insecure_plain_sum", vanish)

    with pytest.raises(LocalError, match="round 0 over plain sums failed"):
        run_rounds(TASK, PLAIN, SMALL)


# --- the report ---


def test_overhead_is_the_difference_to_plain_sums() -> None:
    found = report()
    plain, ring = found.of("plain"), found.of("ring")

    assert found.overhead(ring) == pytest.approx(plain.total)
    assert found.holds
    assert not replace(found, costs=[plain, replace(found.of("malicious"), way=RING)]).holds
    by_stage = found.as_json()["ways"]["ring"]["overhead_by_stage_cpu_ms"]
    assert sum(by_stage.values()) == pytest.approx(found.overhead(ring))
    assert by_stage["confirm"] == 0


def test_the_graph_is_named() -> None:
    ways = report().as_json()["ways"]
    assert [ways[name]["graph"] for name in ways] == [None, "ring", "complete", "complete"]
    assert (ways["ring"]["neighbours"], ways["ring"]["threshold"]) == (22, 11)


def test_flower_has_a_bar_of_its_own() -> None:
    found = report()
    assert found.as_json()["flower"]["ratio"] == 8.0
    assert found.flower_holds
    assert not report(replace(ROUNDS, ours=29.0)).flower_holds
    left_out = report("there is none")
    assert left_out.flower_holds is None
    assert left_out.as_json()["flower"] == {"left_out": "there is none"}


def drawn(found: overhead.OverheadReport) -> str:
    page = io.StringIO()
    show_overhead(found, Console(file=page, width=120))
    return page.getvalue()


def test_what_is_drawn() -> None:
    text = drawn(report())
    assert "ring: curious_server, a ring with 22 neighbours, threshold 11" in text
    assert "80.0 against 10.0 rounds per second, 8.00 times as many" in text
    assert text.count("holds") == 2
    assert "does not hold" in drawn(report(replace(ROUNDS, ours=29.0)))
    assert "Flower's simulation is left out: there is none" in drawn(report("there is none"))


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[OverheadSetting] = []

    def fake(setting: OverheadSetting, _progress: object) -> overhead.OverheadReport:
        asked.append(setting)
        return report()

    monkeypatch.setattr(overhead, "measure", fake)
    options = ("--clients", "50", "--sums", "3", "--corrupt", "2", "--flower-clients", "5")

    assert main(["overhead", "--json", *options]) == 0

    assert asked == [OverheadSetting(clients=50, sums=3, corrupt=2, flower_clients=5)]
    assert json.loads(capsys.readouterr().out)["ways"]["ring"]["graph"] == "ring"


def test_too_many_clients_for_the_graph_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overhead", "--clients", "5", "--corrupt", "4"]) == 2
    assert capsys.readouterr().err.startswith("python -m benchmarks overhead: ")


# --- beside Flower ---


def test_flowers_clients_train_as_ours_do(tmp_path: Path) -> None:
    """Both apps by hand: the same data for every client, the same steps, and after rounds the same model."""
    comparison = Comparison(clients=5, rounds=2, steps=3)
    path = tmp_path / "task.npz"
    write_task(comparison, path)
    everything = flower_app.task(str(path))
    weight, bias = everything.weight, everything.bias
    for _ in range(int(everything.rounds)):
        sizes, models = [], []
        for client in range(5):
            x, y = flower_app.samples_of(str(path), client)
            rate, steps = float(everything.rate), int(everything.steps)
            models.append(flower_app.trained(weight, bias, x, y, steps=steps, rate=rate))
            sizes.append(len(y))
        weight = np.average([model[0] for model in models], axis=0, weights=sizes).astype(np.float32)
        bias = np.average([model[1] for model in models], axis=0, weights=sizes).astype(np.float32)

    task = comparison.task
    algorithm = task.algorithm()
    run = Run(
        algorithm, insecure_plain_sum(algorithm, task.crowd(), Setting()), algorithm.start(task.start())
    )
    for _ in range(3):
        assert run.round().completed

    assert sum(sizes) == 1797
    np.testing.assert_allclose(np.concatenate([weight.ravel(), bias]), run.model, atol=1e-5)
    assert np.abs(run.model).max() > 0.05


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Flower is said to have found, instead of running it."""
    comparison = Comparison(clients=3, rounds=2, steps=1)
    task = comparison.task
    algorithm = task.algorithm()
    run = Run(
        algorithm, insecure_plain_sum(algorithm, task.crowd(), Setting()), algorithm.start(task.start())
    )
    for _ in range(3):
        run.round()
    found: dict[str, Any] = {
        "version": "9.9",
        "startup_s": 10.0,
        "rounds_s": [0.25, 0.5, 0.25],
        "model": run.model.tolist(),
    }
    monkeypatch.setattr(flower_rounds, "_run", lambda _python, _place: found)
    monkeypatch.setattr(flower_rounds, "check_there", lambda _python: None)
    return found


@pytest.mark.usefixtures("beside")
def test_rounds_per_second_are_those_of_the_median_round() -> None:
    found = compare(Comparison(clients=3, rounds=2, steps=1))

    assert (found.flower, found.flower_startup_s, found.version) == (4.0, 10.0, "9.9")
    assert found.difference < 1e-5
    assert found.ours > 0
    assert found.ratio == found.ours / 4.0


def test_another_model_is_no_comparison(beside: dict[str, Any]) -> None:
    beside["model"][7] += 0.5
    with pytest.raises(FlowerError, match=r"differs from ours by 0\.5"):
        compare(Comparison(clients=3, rounds=2, steps=1))


def test_without_flower_the_comparison_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_rounds, "_NEEDED", ("no_such_module_anywhere",))
    with pytest.raises(FlowerError, match=r"not installed in .*: pip install 'flwr\[simulation\]'"):
        compare(Comparison(clients=3, rounds=2, steps=1))
    setting = replace(SMALL, flower_clients=3, flower_rounds=2)
    assert "pip install" in str(overhead._flower(setting))


def test_a_python_that_is_none_is_told() -> None:
    with pytest.raises(FlowerError, match="cannot be run"):
        compare(Comparison(clients=3, rounds=2, steps=1, python="/no/such/python"))


def test_what_flower_says_last_is_why_it_did_not_finish(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "flower_app.py"
    broken.write_text("import sys; sys.exit('the ray is out')")
    monkeypatch.setattr(flower_app, "__file__", str(broken))
    monkeypatch.setattr(flower_rounds, "check_there", lambda _python: None)
    with pytest.raises(FlowerError, match="Flower did not finish: the ray is out"):
        compare(Comparison(clients=3, rounds=2, steps=1, python=sys.executable))


@pytest.mark.slow  # starts Ray
@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation is not installed")
def test_flower_itself_trains_the_same_model() -> None:
    found = compare(Comparison(clients=3, rounds=2, steps=2))

    assert found.difference < 1e-4
    assert found.flower > 0
