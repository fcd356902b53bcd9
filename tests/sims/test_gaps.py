"""Gaps to the optimum: of the model and of the mean of all models, against the objective itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl.crowd import Crowd
from fl.data.least_squares_problem import least_squares
from fl.data.logistic_problem import logistic
from fl.errors import FLError
from fl.models import build
from fl.training_settings import Training
from sims.simulation.metric_observers import ergodic_gap, optimality_gap

_SMALL: dict[str, Any] = {"users": 3, "features": 4, "rows": 30}


def crowd_of(problem: Any, loss: str, decay: float = 0.0) -> Crowd:
    training = Training(rate=0.1, loss=loss, precision="float64", weight_decay=decay)
    module = build("linear", features=4, bias=False)
    return Crowd(module, problem.federation().clients, training, device="cpu")


def run_at(model: Any, average: Any = None) -> Any:
    state = SimpleNamespace() if average is None else SimpleNamespace(average=np.asarray(average))
    return SimpleNamespace(model=np.asarray(model), state=state)


def test_it_is_the_objective_above_its_least() -> None:
    squares, logits = least_squares(**_SMALL), logistic(noise=0.6, **_SMALL)
    model = np.array([1.0, -1.0, 0.5, 2.0])
    for problem, loss, decay in ((squares, "squared", 0.0), (logits, "logistic", logits.decay / 30)):
        crowd, observe = crowd_of(problem, loss, decay), optimality_gap()
        everything: Any = problem
        expected = everything.objective(model) - everything.objective(everything.optimum)
        seen: Any = observe(1, run_at(model), None, crowd)  # type: ignore[arg-type]
        assert seen == pytest.approx(expected, rel=1e-4)
        last: Any = observe(2, run_at(everything.optimum), None, crowd)  # type: ignore[arg-type]
        assert 0 <= last < 1e-10


def test_small_gaps_keep_their_digits_and_models_that_diverged_are_said_to() -> None:
    problem: Any = least_squares(**_SMALL)
    crowd, observe = crowd_of(problem, "squared"), optimality_gap()
    near = problem.optimum + 1e-9
    squares = sum(each.T @ each for each in problem.a)
    small: Any = observe(1, run_at(near), None, crowd)  # type: ignore[arg-type]
    assert small == pytest.approx(0.5e-18 * squares.sum(), rel=1e-3)
    assert observe(2, run_at(np.full(4, np.nan)), None, crowd) == "diverged"  # type: ignore[arg-type]


def test_the_mean_of_models_is_seen_where_there_is_one() -> None:
    problem: Any = least_squares(**_SMALL)
    crowd = crowd_of(problem, "squared")
    model, average = np.ones(4), np.zeros(4)
    seen: Any = ergodic_gap()(1, run_at(model, average), None, crowd)  # type: ignore[arg-type]
    assert seen == pytest.approx(problem.objective(average) - problem.objective(problem.optimum), rel=1e-4)
    assert ergodic_gap()(1, run_at(model), None, crowd) is None  # type: ignore[arg-type]


def test_without_a_known_optimum_it_says_what_to_do() -> None:
    problem = logistic(**_SMALL)
    module = build("softmax", features=4, classes=2)
    crowd = Crowd(module, problem.federation().clients, Training(rate=0.1), device="cpu")
    with pytest.raises(FLError, match="linear model"):
        optimality_gap()(1, run_at(np.zeros(10)), None, crowd)  # type: ignore[arg-type]
