"""Exact proximal operators against gradients, other formulas and local steps; who has one, who has none."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
from torch import nn

from fl.attacks import attack, corrupt_learners, slow_down
from fl.crowd import Crowd
from fl.data.least_squares_problem import least_squares
from fl.data.logistic_problem import logistic
from fl.errors import DataError, TrainingError
from fl.exact_proximal import ExactLeastSquares, ExactLogistic
from fl.federation import ClientData
from fl.models import build
from fl.samples import Array, Samples
from fl.trainer import Trainer
from fl.training_settings import Training
from protocols.learner import Steering
from protocols.quadratic_learner import QuadraticLearner
from tests.fl.clients import amounts, client

FEATURES, ROWS = 4, 30


@runtime_checkable
class HasProximal(Protocol):
    def proximal(self, point: Array, eta: float) -> Array: ...


def data_of(loss: str, seed: int = 0, rows: int = ROWS) -> ClientData:
    part = amounts(rows, seed, features=FEATURES)
    if loss == "logistic":
        part = Samples(part.x, (part.y > np.median(part.y)).astype(np.int64))
    return ClientData(part, part.take(np.arange(0)), part.take(np.arange(0)))


def trainer_of(loss: str, *, bias: bool = False, **chosen: Any) -> Trainer:
    usual: dict[str, Any] = {"rate": 0.1, "precision": "float64", "weight_decay": 0.01}
    training = Training(loss=loss, **usual | chosen)
    module = build("linear", features=FEATURES, bias=bias)
    return Trainer.on(module, data_of(loss), training, device="cpu")


def point_of(trainer: Trainer, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=trainer.flat.dim)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eta", [1e-3, 0.5, 1e4])
def test_the_gradient_of_the_proximal_objective_is_zero(loss: str, *, bias: bool, eta: float) -> None:
    trainer = trainer_of(loss, bias=bias)
    point = point_of(trainer)
    found = trainer.proximal(point, eta)
    slope = trainer.gradient(found) + 0.01 * found + (found - point) / eta
    assert np.abs(slope).max() <= 1e-12 * max(1, 1 / eta)
    assert trainer.seconds > 0


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_many_local_steps_come_to_the_same_model(loss: str) -> None:
    trainer = trainer_of(loss, bias=True)
    point, eta = point_of(trainer), 2.0
    stepped = trainer.train(point, Steering(pull=1 / eta, anchor=point), steps=400, rate=0.3)
    np.testing.assert_allclose(trainer.proximal(point, eta), stepped, atol=1e-10)


def test_means_and_sums_differ_by_the_number_of_samples() -> None:
    """The chapter's eta belongs to a sum over samples; here it is that times their number."""
    sizes: dict[str, Any] = {"users": 2, "features": 3, "rows": 20}
    problems: tuple[Any, Any] = least_squares(**sizes), logistic(**sizes)
    for problem, loss in zip(problems, ("squared", "logistic"), strict=True):
        decay = 0.0 if loss == "squared" else 1 / (2 * 20) / 20
        training = Training(rate=0.1, loss=loss, precision="float64", weight_decay=decay)
        crowd = Crowd(
            build("linear", features=3, bias=False), problem.federation().clients, training, device="cpu"
        )
        points, eta = np.random.default_rng(0).normal(size=(2, 3)), 0.01
        expected = problem.proximal(points, eta)
        found = [crowd[user].proximal(points[user], 20 * eta) for user in range(2)]
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        pooled = crowd.pooled().exact
        assert pooled is not None
        np.testing.assert_allclose(pooled.optimum, problem.optimum, rtol=1e-9)
        gap = problem.objective(points[0]) - problem.objective(problem.optimum)
        assert 40 * pooled.excess(points[0]) == pytest.approx(gap, rel=1e-9)
        assert pooled.excess(pooled.optimum) == pytest.approx(0, abs=1e-14)


def test_single_precision_is_no_obstacle() -> None:
    point = np.ones(FEATURES)
    double = trainer_of("squared").proximal(point, 1.0)
    single = trainer_of("squared", precision="float32").proximal(point.astype(np.float32), 1.0)
    np.testing.assert_allclose(single, double, rtol=1e-5)
    assert single.dtype == np.float64


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (build("softmax", features=FEATURES, classes=3), "cross-entropy"),
        (build("mlp", features=FEATURES, classes=3), "cross-entropy"),
        (nn.Linear(FEATURES, 3), "cross-entropy"),
    ],
)
def test_nobody_claims_what_is_not_exact(module: nn.Module, loss: str) -> None:
    learner = Trainer.on(module, client(9), Training(rate=0.1, loss=loss), device="cpu")
    assert not isinstance(learner, HasProximal)
    assert not hasattr(learner, "proximal")
    wrapped = corrupt_learners({0: learner}, "sign-flip", [0], 0)[0]
    assert not isinstance(wrapped, HasProximal)
    assert learner.exact is None


def test_a_model_of_which_a_part_is_frozen_or_too_large_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build("linear", features=FEATURES, bias=True)
    next(iter(module.parameters())).requires_grad_(False)
    training = Training(rate=0.1, loss="squared", precision="float64")
    assert not hasattr(Trainer.on(module, data_of("squared"), training, device="cpu"), "proximal")
    assert isinstance(trainer_of("squared"), HasProximal)
    monkeypatch.setattr("fl.exact_proximal._MOST", FEATURES - 1)
    assert not hasattr(trainer_of("squared"), "proximal")


def test_members_of_a_crowd_have_it_and_attacks_change_what_it_finds() -> None:
    data = {user: data_of("squared", user) for user in range(3)}
    training = Training(rate=0.1, loss="squared", precision="float64")
    crowd = Crowd(build("linear", features=FEATURES, bias=False), data, training, device="cpu")
    point = np.ones(FEATURES)
    honest = {user: crowd[user].proximal(point, 0.5) for user in crowd}
    turned = corrupt_learners(crowd, attack("sign-flip", deviation=None), [1], 0)
    assert np.array_equal(turned[0].proximal(point, 0.5), honest[0])
    np.testing.assert_allclose(turned[1].proximal(point, 0.5) - point, point - honest[1], atol=1e-15)
    slow = slow_down(turned, fraction=1.0, epochs=2, seed=0)
    assert isinstance(slow[1], HasProximal)
    np.testing.assert_allclose(slow[1].proximal(point, 0.5) - point, point - honest[1], atol=1e-15)
    done = crowd.together({user: partial(crowd[user].proximal, point, 0.5) for user in crowd})
    assert all(np.array_equal(done[user].result(), honest[user]) for user in crowd)


def test_an_omniscient_attack_turns_the_mean_of_proximal_updates_around() -> None:
    data = {user: data_of("squared", user) for user in range(4)}
    training = Training(rate=0.1, loss="squared", precision="float64")
    crowd = Crowd(build("linear", features=FEATURES, bias=False), data, training, device="cpu")
    corrupt = corrupt_learners(crowd, "omniscient", [2], 0)
    point = np.ones(FEATURES)
    honest = np.mean([crowd[user].proximal(point, 0.5) - point for user in crowd], axis=0)
    done = crowd.together({user: partial(corrupt[user].proximal, point, 0.5) for user in crowd})
    submitted = np.mean([done[user].result() - point for user in crowd], axis=0)
    np.testing.assert_allclose(submitted, -honest, atol=1e-12)
    assert np.array_equal(corrupt[2].proximal(point, 0.5), crowd[2].proximal(point, 0.5))  # alone


def test_what_cannot_be_is_refused() -> None:
    trainer = trainer_of("squared")
    for eta in (0.0, -1.0, math.nan):
        with pytest.raises(TrainingError, match="above 0"):
            trainer.proximal(np.zeros(FEATURES), eta)
    with pytest.raises(TrainingError, match="4 parameters"):
        trainer.proximal(np.zeros(3), 1.0)
    diverged = np.full(FEATURES, np.inf)
    assert np.isnan(trainer.proximal(diverged, 1.0)).all()
    assert np.isnan(trainer_of("logistic").proximal(diverged, 1.0)).all()


def test_without_an_optimum_eta_must_be_finite() -> None:
    few = data_of("squared", rows=FEATURES - 1)
    training = Training(rate=0.1, loss="squared", precision="float64")
    module = build("linear", features=FEATURES, bias=False)
    trainer = Trainer.on(module, few, training, device="cpu")
    with pytest.raises(DataError, match="finite eta"):
        trainer.proximal(np.zeros(FEATURES), math.inf)
    nearest = trainer.proximal(np.zeros(FEATURES), 1e9)
    assert np.abs(trainer.gradient(nearest)).max() < 1e-7
    assert isinstance(trainer.exact, ExactLeastSquares)
    assert isinstance(trainer_of("logistic").exact, ExactLogistic)
    best = trainer_of("logistic").proximal(np.zeros(FEATURES), math.inf)
    exact = trainer_of("logistic").exact
    assert exact is not None
    np.testing.assert_allclose(best, exact.optimum, atol=1e-12)


def test_labels_may_be_classes() -> None:
    signs, classes = data_of("logistic").train, data_of("logistic").train
    signs = Samples(signs.x, 2.0 * signs.y - 1)
    training = Training(rate=0.1, loss="logistic", precision="float64")
    module = build("linear", features=FEATURES, bias=False)
    nothing = classes.take(np.arange(0))
    point = np.linspace(-1, 1, FEATURES)
    first, second = (
        Trainer.on(module, ClientData(each, nothing, nothing), training, device="cpu")
        for each in (signs, classes)
    )
    assert first.loss(point) == second.loss(point)
    assert np.array_equal(first.train(point), second.train(point))
    assert np.array_equal(first.proximal(point, 1.0), second.proximal(point, 1.0))
    assert first.score_on(point, signs) == second.score_on(point, classes)
    mixed = Samples(classes.x, np.arange(ROWS) % 3 - 1)
    with pytest.raises(TrainingError, match="two classes"):
        Trainer.on(module, ClientData(mixed, nothing, nothing), training, device="cpu")


def test_the_quadratic_learner_knows_its_own() -> None:
    learner = QuadraticLearner(np.array([1.0, -2.0]), curvature=np.array([1.0, 3.0]))
    point, eta = np.array([4.0, 0.5]), 0.7
    found = learner.proximal(point, eta)
    np.testing.assert_allclose(learner.gradient(found) + (found - point) / eta, 0, atol=1e-14)
    np.testing.assert_allclose(QuadraticLearner(point).proximal(np.zeros(2), 1.0), point / 2)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("bias", [False, True])
def test_steps_on_all_data_are_the_same_without_a_pass_over_it(precision: str, *, bias: bool) -> None:
    trainer = trainer_of("squared", bias=bias, precision=precision)
    with_passes = trainer_of("squared", bias=bias, precision=precision)
    with_passes.slope = None
    assert trainer.slope is not None
    start, tight = point_of(trainer), 1e-13 if precision == "float64" else 1e-5
    np.testing.assert_allclose(trainer.gradient(start), with_passes.gradient(start), rtol=tight, atol=tight)
    found, expected = (each.train(start, steps=20) for each in (trainer, with_passes))
    np.testing.assert_allclose(found, expected, rtol=tight, atol=tight)
    assert trainer.calls == with_passes.calls
    assert trainer_of("squared", batch=10).gradient(start[:FEATURES]).shape == (FEATURES,)


def test_a_crowd_goes_by_the_quick_way_where_it_is_not_told_otherwise() -> None:
    data = {user: data_of("squared", user) for user in range(5)}
    training = Training(rate=0.1, steps=7, loss="squared", precision="float64")
    start = np.ones(FEATURES)
    found = {}
    for batching in ("auto", "together", "one-by-one"):
        crowd = Crowd(
            build("linear", features=FEATURES, bias=False), data, training, device="cpu", batching=batching
        )
        found[batching] = np.array(list(crowd.train(start).values()))
    assert np.array_equal(found["auto"], found["one-by-one"])
    np.testing.assert_allclose(found["auto"], found["together"], rtol=1e-12)


def test_few_samples_are_passed_over() -> None:
    data = data_of("squared", rows=FEATURES)
    module = build("linear", features=FEATURES, bias=False)
    training = Training(rate=0.1, loss="squared", precision="float64")
    assert Trainer.on(module, data, training, device="cpu").slope is None
    assert trainer_of("logistic").slope is None
