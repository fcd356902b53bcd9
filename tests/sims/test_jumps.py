"""How models jump when a common one takes their place, as an observer sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl.crowd import Crowd
from fl.samples import Array
from protocols.run import Run
from sims.runtime import SessionChannel
from sims.scenario import Settings
from sims.simulation import OBSERVERS, metric_observers, simulate


def settings(algorithm: dict[str, Any], observe: list[str]) -> Settings:
    return Settings.model_validate(
        {
            "seed": 3,
            "rounds": 10,
            "data": {"kind": "digits"},
            "partition": {"kind": "iid", "clients": 4},
            "model": {"kind": "softmax"},
            "training": {"rate": 0.5, "steps": 3, "batch": 8},
            "algorithm": algorithm,
            "evaluation": {"every": 5, "observe": observe},
        }
    )


FEDAVG = {"name": "fedavg", "clip": 10.0, "weighted": False}


def test_the_last_training_is_done_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models that clients came to are those whose mean the common model is."""
    means: list[Array] = []
    commons: list[Array] = []

    def once_more(crowd: Crowd, start: Array | None) -> dict[int, Array]:
        local = real(crowd, start)
        means.append(np.mean(list(local.values()), axis=0))
        return local

    def keep(_number: int, run: Run[Any], _channel: SessionChannel, _crowd: Crowd) -> None:
        commons.append(np.array(run.model))

    real = metric_observers._once_more
    monkeypatch.setattr(metric_observers, "_once_more", once_more)
    monkeypatch.setitem(OBSERVERS, "keep", lambda: keep)
    simulate(settings(FEDAVG, ["jumps", "keep"]))
    assert len(means) == 9
    for mean, common in zip(means, commons[1:], strict=True):
        np.testing.assert_allclose(mean, common, atol=1e-6)


def test_it_changes_nothing() -> None:
    watched, alone = (simulate(settings(FEDAVG, observe)) for observe in (["jumps"], []))
    assert watched["series"] == alone["series"]


def test_a_line_leads_from_own_models_to_the_common_one() -> None:
    seen = dict(simulate(settings(FEDAVG, ["jumps", "training-loss"]))["observed"]["jumps"])
    losses = dict(simulate(settings(FEDAVG, ["training-loss"]))["observed"]["training-loss"])
    assert [number for number, each in seen.items() if "line" in each] == [10]
    assert all(each["mean"] > 0 for each in seen.values())
    assert len(seen[10]["line"]) == 11
    # All clients have as many samples, so that means over clients and over samples are one.
    assert seen[10]["line"][-1] == pytest.approx(losses[10], abs=1e-3)


def test_who_keeps_a_model_does_not_jump() -> None:
    plus = {"name": "fedgeomed+", "sigma": 1.0}
    seen = simulate(settings(plus, ["jumps"]))["observed"]["jumps"]
    assert [number for number, _ in seen] == list(range(1, 11))
    assert all(each["mean"] == each["std"] == 0.0 for _, each in seen)
    line = seen[-1][1]["line"]
    assert line[-1] != line[0]
