"""Whole scenarios over real processes: the results are those of the other channels."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sims.runtime.processes import ProcessesChannel
from sims.scenario.settings import Settings
from sims.simulation.progress import no_progress
from sims.simulation.simulate import Simulation, simulate

FEDPLUS = {"name": "fedgeomed+", "steps": 3}


def settings(kind: str, algorithm: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "rounds": 3,
            "insecure_seed": True,
            "data": {"kind": "digits"},
            "partition": {"kind": "iid", "clients": 6, "test": 0.2},
            "model": {"kind": "softmax"},
            # Together, clients train up to the last bits of floats as they do alone.
            "training": {"rate": 0.1, "epochs": 1, "batch": 16, "way": "one-by-one"},
            "algorithm": algorithm,
            "channel": {"kind": kind, "workers": 2, "dropout": 0.34, "sums": 4},
            "dropout": {"training": 0.1, "reveal": 0.05},
            "evaluation": {"every": 1, "what": "both"},
            "cohort": {"stragglers": 0.5},
            **more,
        }
    )


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if not name.startswith(("seconds", "bytes"))}


@pytest.mark.parametrize(
    "algorithm",
    [
        FEDPLUS,
        pytest.param({"name": "rfa"}, marks=pytest.mark.slow),
        pytest.param({"name": "fedavg", "clip": 10.0}, marks=pytest.mark.slow),
        pytest.param({"name": "ditto", "clip": 10.0}, marks=pytest.mark.slow),
    ],
    ids=lambda each: each["name"],
)
def test_all_channels_give_the_same_results(algorithm: dict[str, Any]) -> None:
    attack = {"kind": "gaussian", "fraction": 0.2}
    plain, secure, processes = (
        numbers(simulate(settings(kind, algorithm, attack=attack)))
        for kind in ("plain", "secure", "processes")
    )
    assert processes == secure == plain


@pytest.mark.slow
def test_message_attacks_and_noise_and_draws_are_the_same() -> None:
    more: dict[str, Any] = {
        "attack": {"kind": "overflow", "fraction": 0.2, "level": "message"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "dropouts": 2},
        "cohort": {"per_round": 5},
        "dropout": {"training": 0.1},
    }
    algorithm = {"name": "fedavg", "clip": 5.0, "weighted": False}
    secure, processes = (
        numbers(simulate(settings(kind, algorithm, **more))) for kind in ("secure", "processes")
    )
    assert processes == secure


@pytest.mark.slow
def test_a_killed_worker_ends_no_run() -> None:
    done: list[int] = []

    def kill(number: int) -> None:
        done.append(number)
        channel = simulation.setup.channel
        assert isinstance(channel, ProcessesChannel)
        os.kill(channel.pids[number % 2][-1], signal.SIGKILL)

    simulation = Simulation(settings("processes", FEDPLUS), Path(), None, no_progress)
    result = simulation.run(kill, lambda: False)
    assert done == [1, 2, 3]
    assert result["completed"] == 3
