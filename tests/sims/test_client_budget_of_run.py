"""One client has one budget: for the training and for the histograms of errors, over every channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import ParameterError
from secagg.noise.rho_and_epsilon import rho_for
from sims.records import RunDirectory
from sims.scenario.algorithm_builder import build
from sims.scenario.settings import Settings
from sims.simulation import simulate
from sims.simulation.setup import SimulationSetup
from tests.sims.small_runs import PRIVATE, settings

TAIL = {"epsilon": 20.0, "delta": 1e-4, "every": 1}
ROUNDS = 2
PROCESSES = pytest.param("processes", marks=pytest.mark.slow)
_ALLOWANCE = 1 + 2.0**-20  # by which clients forgive what rounding adds


def given(kind: str = "secure", **more: Any) -> Settings:
    channel = {"kind": kind, "dropout": 0.4} | ({"workers": 1} if kind == "processes" else {})
    changes = {"rounds": ROUNDS, "dropout": {}, "tail": TAIL, "channel": channel}
    return settings(**{**PRIVATE, **changes, **more})


@contextmanager
def begun(found: Settings) -> Iterator[SimulationSetup]:
    setup = SimulationSetup.of(found, Path())
    try:
        yield setup
    finally:
        setup.close()


def spent(setup: SimulationSetup) -> list[float]:
    return [each.rho for each in setup.channel.spends().values()]


@pytest.mark.parametrize("kind", ["plain", "secure", PROCESSES])
def test_a_server_that_asks_the_tail_again_and_again_is_refused(kind: str) -> None:
    """It spends what the training has left, and then nothing more, whatever it asks for."""
    with begun(given(kind)) as setup:
        assert setup.tail is not None
        limit = setup.budget.max_rho
        assert limit is not None
        assert setup.run.round().completed
        outcomes = [setup.tail.ask(setup.run.model)["completed"] for _ in range(40)]
        assert outcomes[0]
        assert not outcomes[-1]
        first = outcomes.index(False)
        assert not any(outcomes[first:])
        assert limit * 0.8 < max(spent(setup)) <= limit * _ALLOWANCE
        assert not setup.run.round().completed
        assert max(spent(setup)) <= limit * _ALLOWANCE
        assert setup.tail.channel.spends() == setup.channel.spends()


def test_a_server_that_goes_on_training_leaves_nothing_for_the_tail() -> None:
    with begun(given()) as setup:
        assert setup.tail is not None
        limit = setup.budget.max_rho
        assert limit is not None
        completed = [setup.run.round().completed for _ in range(ROUNDS + 3)]
        assert completed[:ROUNDS] == [True] * ROUNDS
        assert not completed[-1]
        assert max(spent(setup)) <= limit * _ALLOWANCE


def test_the_tail_has_a_limit_where_the_training_has_no_noise() -> None:
    with begun(given(privacy=None)) as setup:
        assert setup.tail is not None
        assert setup.budget.also_unnoised
        limit = setup.budget.max_rho
        assert limit == pytest.approx(rho_for(20.0, delta=1e-4), rel=1e-6)
        for _ in range(ROUNDS):
            assert setup.run.round().completed
            assert setup.tail.ask(setup.run.model)["completed"]
        assert not setup.tail.ask(setup.run.model)["completed"]
        assert setup.run.round().completed
        assert max(spent(setup)) <= (limit or 0.0) * _ALLOWANCE


@pytest.mark.parametrize("kind", ["secure", PROCESSES])
def test_all_channels_spend_the_same(kind: str, tmp_path: Path) -> None:
    spends = []
    for name in ("plain", kind):
        run = RunDirectory(tmp_path / name)
        simulate(given(name), directory=run)
        spends.append(run.read_json("spend.json"))
        lines = run.read_lines("metrics.jsonl")
        assert lines[-1]["epsilon"] == pytest.approx(50.0, rel=1e-3)
        assert lines[-1]["rho"] == spends[-1]["server"]["rho"]
    assert spends[0] == spends[1]
    assert spends[0]["clients"]["least"]["noised"] == 2 * ROUNDS
    assert spends[0]["clients"]["most"]["rho"] <= spends[0]["max_rho"] * _ALLOWANCE


def test_the_training_gets_what_the_tail_leaves() -> None:
    whole, tail = rho_for(50.0, delta=1e-5), rho_for(20.0, delta=1e-4)
    found = given()
    algorithm = build(found, dim=10, clients=10, known={})
    assert algorithm.max_rho == pytest.approx(whole - tail, rel=1e-6)
    alone = build(found.model_copy(update={"tail": None}), dim=10, clients=10, known={})
    assert alone.max_rho == pytest.approx(whole, rel=1e-6)


def test_a_tail_that_leaves_nothing_is_refused() -> None:
    greedy = {**TAIL, "epsilon": 60.0}
    with pytest.raises(ParameterError, match="nothing is left for the training"):
        build(given(tail=greedy), dim=10, clients=10, known={})
