"""The convex problems of "A unifying framework for federated learning", and measures of heterogeneity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fl.data.least_squares_problem import LeastSquaresProblem, least_squares
from fl.data.logistic_problem import LogisticProblem, logistic
from fl.errors import DataError, FLError
from fl.samples import Array
from papers.heterogeneity import (
    at_optimum,
    dissimilarity,
    diversity,
    input_spread,
    largest_difference,
    model_spread,
)

_SMALL: dict[str, Any] = {"users": 4, "features": 6, "rows": 40}


@pytest.mark.parametrize(("noise", "published"), [(0.25, 118e3), (2.0, 7.62e6), (10.0, 190.31e6)])
def test_heterogeneity_is_that_of_figure_6(noise: float, published: float) -> None:
    problem = least_squares(noise=noise, matrices_first=True)
    gradients = problem.gradients(problem.optimum)
    found = at_optimum(gradients, doubled=True)
    assert found == pytest.approx(published, rel=0.01)
    # What the published numbers were rounded from, by an independent computation of the same recipe.
    assert found == pytest.approx(118960.443 * (noise / 0.25) ** 2, rel=1e-6)
    assert at_optimum(gradients) == pytest.approx(found / 4)


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 3287.135), (0.257, 7985.04)])
def test_heterogeneity_of_the_logistic_regression(noise: float, expected: float) -> None:
    # The chapter has no values; these are from an independent computation of the same recipe.
    problem = logistic(noise=noise)
    gradients = problem.gradients(problem.optimum)
    assert at_optimum(gradients) == pytest.approx(expected, rel=1e-5)
    assert np.abs(gradients.sum(axis=0)).max() < 1e-9


@pytest.mark.parametrize("matrices_first", [True, False])
def test_least_squares_is_drawn_in_the_order_of_the_scripts(matrices_first: bool) -> None:
    rng = np.random.RandomState(100)
    truth = rng.randn(6)
    if matrices_first:
        matrices = [rng.normal(0, 1, 240).reshape(40, 6) for _ in range(4)]
        errors = [rng.normal(0, 0.5, 40) for _ in range(4)]
    else:
        pairs = [(rng.normal(0, 1, 240).reshape(40, 6), rng.normal(0, 0.5, 40)) for _ in range(4)]
        matrices, errors = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    made = least_squares(noise=0.5, matrices_first=matrices_first, **_SMALL)
    assert np.array_equal(made.truth, truth)
    assert np.array_equal(made.a, np.array(matrices))
    targets = [matrix @ truth + error for matrix, error in zip(matrices, errors, strict=True)]
    assert made.b == pytest.approx(np.array(targets), rel=1e-12)


def test_logistic_is_drawn_in_the_order_of_the_script() -> None:
    made = logistic(noise=0.257, **_SMALL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100)
        truth = torch.randn(6).reshape(-1, 1)
        matrices = [torch.randn(240).reshape(40, 6) for _ in range(4)]
        for user, matrix in enumerate(matrices):
            noise = 0.257 * torch.randn(40, 1)
            labels = torch.bernoulli(torch.sigmoid(matrix @ truth)) * 2 - 1
            labels[noise.abs() >= 0.5] *= -1
            assert made.b[user].tolist() == labels[:, 0].tolist()
            assert np.array_equal(made.a[user], matrix.double().numpy())
    assert made.truth.tolist() == truth[:, 0].tolist()


def test_about_one_label_in_twenty_is_flipped() -> None:
    # The noise is drawn before it is scaled, so that the labels before flipping are the same.
    assert np.mean(logistic().b != logistic(noise=0.257).b) == pytest.approx(0.0517, abs=0.007)


def _numerical(function: Any, at: Array) -> Array:
    steps = np.eye(len(at)) * 1e-5
    return np.array([(function(at + step) - function(at - step)) / 2e-5 for step in steps])


@pytest.mark.parametrize("make", [least_squares, logistic])
def test_gradients_are_those_of_the_objective(make: Any) -> None:
    problem = make(noise=0.3, **_SMALL)
    model = np.linspace(-1, 1, 6)
    assert problem.gradients(model).sum(axis=0) == pytest.approx(
        _numerical(problem.objective, model), rel=1e-6, abs=1e-6
    )
    each = np.random.default_rng(0).normal(size=(4, 6))
    alone = [problem.gradients(own)[user] for user, own in enumerate(each)]
    assert problem.gradients(each) == pytest.approx(np.array(alone), rel=1e-12)


@pytest.mark.parametrize("make", [least_squares, logistic])
def test_the_optimum_is_where_the_gradients_cancel(make: Any) -> None:
    problem = make(noise=0.5, **_SMALL)
    assert np.abs(problem.gradients(problem.optimum).sum(axis=0)).max() < 1e-10
    best = problem.objective(problem.optimum)
    nearby = problem.optimum + np.random.default_rng(0).normal(0, 1e-3, (5, 6))
    assert all(problem.objective(model) > best for model in nearby)


@pytest.mark.parametrize("make", [least_squares, logistic])
@pytest.mark.parametrize("eta", [1e-3, 1.0, 1e3])
def test_a_proximal_point_balances_the_gradient_and_the_way(make: Any, eta: float) -> None:
    problem = make(noise=0.5, **_SMALL)
    points = np.random.default_rng(1).normal(size=(4, 6))
    found = problem.proximal(points, eta)
    assert problem.gradients(found) == pytest.approx((points - found) / eta, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("make", [least_squares, logistic])
def test_without_a_limit_a_proximal_point_is_the_user_s_own_optimum(make: Any) -> None:
    problem = make(noise=0.5, **_SMALL)
    found = problem.proximal(np.zeros(6), np.inf)
    assert np.abs(problem.gradients(found)).max() < 1e-9


def test_the_exact_proximal_operator_of_least_squares() -> None:
    problem = least_squares(**_SMALL)
    point = np.arange(6.0)
    for user, found in enumerate(problem.proximal(point, 0.01)):
        a, b = problem.a[user], problem.b[user]
        expected = np.linalg.solve(a.T @ a + np.eye(6) / 0.01, a.T @ b + point / 0.01)
        assert found == pytest.approx(expected, rel=1e-10)


# Gaps to the optimum by an independent computation of the same recipe.
@pytest.mark.parametrize(
    ("rounds", "prox_gap", "average_gap"),
    [
        (10, 2.24e6, 3.49e4),
        pytest.param(50, 4.47e4, 6.4e-4, marks=pytest.mark.slow),
        pytest.param(605, 1.365e-4, 6.01e-4, marks=pytest.mark.slow),
    ],
)
def test_algorithms_get_as_near_as_they_should(rounds: int, prox_gap: float, average_gap: float) -> None:
    """FedProx, and FedAvg with five local steps, on the chapter's least squares."""
    problem = least_squares()
    best = problem.objective(problem.optimum)
    prox = average = np.zeros(100)
    for _ in range(rounds):
        prox = problem.proximal(prox, 1e-5).mean(axis=0)
        users = np.broadcast_to(average, (25, 100))
        for _ in range(5):
            users = users - 1e-5 * problem.gradients(users)
        average = users.mean(axis=0)
    assert problem.objective(prox) - best == pytest.approx(prox_gap, rel=0.01)
    assert problem.objective(average) - best == pytest.approx(average_gap, rel=0.01)


def test_problems_are_federations_too() -> None:
    squares, logits = least_squares(**_SMALL), logistic(**_SMALL)
    regression, classes = squares.federation(), logits.federation()
    assert (regression.classes, classes.classes) == (None, 2)
    assert regression.samples == classes.samples == dict.fromkeys(range(4), 40)
    assert np.array_equal(regression.clients[2].train.x, squares.a[2])
    assert np.array_equal(regression.clients[2].train.y, squares.b[2])
    assert np.array_equal(classes.clients[1].train.y * 2 - 1, logits.b[1])
    assert not len(regression.clients[0].test)
    assert squares.users == logits.users == 4


def test_the_seed_decides() -> None:
    assert np.array_equal(least_squares(**_SMALL).b, least_squares(**_SMALL).b)
    assert not np.array_equal(least_squares(**_SMALL).b, least_squares(seed=1, **_SMALL).b)
    assert np.array_equal(logistic(**_SMALL).b, logistic(**_SMALL).b)
    assert not np.array_equal(logistic(**_SMALL).a, logistic(seed=1, **_SMALL).a)


@pytest.mark.parametrize("make", [least_squares, logistic])
@pytest.mark.parametrize(
    "bad", [{"users": 0}, {"rows": -1}, {"features": 1.5}, {"noise": -1.0}, {"seed": "x"}]
)
def test_bad_problems_are_refused(make: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"{next(iter(bad))} must be"):
        make(**{**_SMALL, **bad})


@pytest.mark.parametrize("make", [least_squares, logistic])
@pytest.mark.parametrize("eta", [0.0, -1.0, float("nan")])
def test_a_step_is_above_zero(make: Any, eta: float) -> None:
    with pytest.raises(DataError, match="eta must be above zero"):
        make(**_SMALL).proximal(np.zeros(6), eta)


def test_problems_without_an_optimum_are_refused() -> None:
    with pytest.raises(DataError, match="more rows"):
        least_squares(users=2, rows=2, features=5)
    lonely = LeastSquaresProblem(np.ones((2, 3, 2)), np.ones((2, 3)), np.ones(2))
    with pytest.raises(DataError, match="dependent columns"):
        lonely.proximal(np.zeros(2), np.inf)


def test_shapes_and_labels_are_checked() -> None:
    with pytest.raises(DataError, match="do not fit"):
        LeastSquaresProblem(np.ones((2, 3, 2)), np.ones((2, 2)), np.ones(2))
    with pytest.raises(DataError, match="must be -1 and 1"):
        LogisticProblem(np.ones((2, 3, 2)), np.zeros((2, 3)), np.ones(2))


def test_labels_that_can_be_told_apart_still_have_an_optimum() -> None:
    made = logistic(**_SMALL)
    labels = np.where(made.a @ made.truth > 0, 1.0, -1.0)
    apart = LogisticProblem(made.a, labels, made.truth)
    assert np.abs(apart.gradients(apart.optimum).sum(axis=0)).max() < 1e-10
    # Longer models that point the way of the truth have ever lower losses; only the penalty is against them.
    ways = [apart.objective(length * made.truth) for length in (1, 10, 100, 1000)]
    assert apart.objective(apart.optimum) < min(ways)
    assert ways[1] < ways[0] < ways[3]


def test_an_optimum_that_is_not_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl.exact_proximal._STEPS", 2)
    with pytest.raises(DataError, match="no optimum was found"):
        assert logistic(**_SMALL).optimum is None


def test_measures_of_gradients_by_hand() -> None:
    gradients = [[3.0, 4.0], [1.0, 0.0], [-1.0, 2.0]]
    assert at_optimum(gradients) == pytest.approx((25 + 1 + 5) / 3)
    assert at_optimum(gradients, doubled=True) == pytest.approx(4 * 31 / 3)
    assert diversity(gradients) == pytest.approx(((2**2 + 2**2) + (0 + 2**2) + 2**2) / 3)
    assert dissimilarity(gradients) == pytest.approx(np.sqrt(31 / 3) / np.sqrt(5))
    assert largest_difference(gradients) == pytest.approx(np.sqrt(20))
    assert model_spread(gradients) == pytest.approx(np.sqrt(20))


def test_multipliers_enlarge_differences_at_their_bounds() -> None:
    gradients = np.random.default_rng(3).normal(size=(5, 4))
    found = largest_difference(gradients, least=0.5, most=2.0)
    grid = np.linspace(0.5, 2.0, 7)
    by_hand = max(
        np.linalg.norm(a * gradients[i] - b * gradients[j])
        for a in grid
        for b in grid
        for i in range(5)
        for j in range(5)
        if i != j
    )
    assert found == pytest.approx(by_hand)
    # The same pair counts twice: one may have the larger multiplier, or the other.
    lopsided = [[1.0], [10.0]]
    assert largest_difference(lopsided, least=0.0, most=1.0) == pytest.approx(10.0)


def test_clients_that_agree_show_no_heterogeneity() -> None:
    same = np.ones((4, 3))
    assert diversity(same) == 0
    assert dissimilarity(same) == pytest.approx(1.0)
    assert largest_difference(same) == 0
    assert model_spread(same[:1]) == 0
    assert at_optimum(np.zeros((2, 3))) == 0
    assert dissimilarity(np.zeros((2, 3))) == 1.0
    assert dissimilarity([[1.0], [-1.0]]) == np.inf
    assert input_spread([np.eye(2)] * 3) == pytest.approx(1.0)


def test_at_the_optimum_the_measures_agree() -> None:
    problem = least_squares(**_SMALL)
    gradients = problem.gradients(problem.optimum)
    assert diversity(gradients) == pytest.approx(at_optimum(gradients), rel=1e-10)


def test_input_spread_by_hand() -> None:
    moments = np.array([np.diag([3.0, 1.0]), np.diag([1.0, 1.0])])
    assert input_spread(moments) == pytest.approx(1.5)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    assert input_spread(turn @ moments @ turn.T) == pytest.approx(1.5)


@pytest.mark.parametrize("measure", [at_optimum, diversity, dissimilarity, largest_difference, model_spread])
def test_measures_refuse_what_is_not_clients_by_elements(measure: Any) -> None:
    with pytest.raises(FLError, match="one client to a row"):
        measure([1.0, 2.0])
    with pytest.raises(FLError, match="one client to a row"):
        measure(np.empty((0, 3)))
    with pytest.raises(FLError, match="of client 1 are not finite"):
        measure([[1.0], [float("nan")]])


def test_bad_multipliers_and_moments_are_refused() -> None:
    with pytest.raises(FLError, match="least must be zero or above"):
        largest_difference([[1.0]], least=2.0, most=1.0)
    with pytest.raises(FLError, match="clients x features x features"):
        input_spread(np.ones((2, 3)))
    with pytest.raises(FLError, match="not finite"):
        input_spread(np.full((2, 3, 3), np.inf))
    with pytest.raises(FLError, match="subspace"):
        input_spread(np.zeros((2, 3, 3)))


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_where_federated_averaging_ends(steps: int) -> None:
    """By the closed form, and after as many rounds as it takes."""
    problem = least_squares(**_SMALL)
    eta = 0.5 / np.linalg.eigvalsh(problem.a[0].T @ problem.a[0]).max()
    model = np.zeros_like(problem.truth)
    for _ in range(400):
        models: Any = np.tile(model, (problem.users, 1))
        for _ in range(steps):
            models = models - eta * problem.gradients(models)
        model = models.mean(axis=0)
    np.testing.assert_allclose(problem.averaged(steps, eta), model, rtol=1e-9)
    if steps == 1:
        np.testing.assert_allclose(problem.averaged(1, eta / 7), problem.optimum, rtol=1e-9)


def test_with_ever_more_local_steps_it_ends_at_the_mean_of_optima() -> None:
    problem = least_squares(**_SMALL)
    own = [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(problem.a, problem.b, strict=True)]
    eta = 0.5 / np.linalg.eigvalsh(problem.a[0].T @ problem.a[0]).max()
    np.testing.assert_allclose(problem.averaged(np.inf, eta), np.mean(own, axis=0), rtol=1e-9)
    np.testing.assert_allclose(problem.averaged(10**5, eta), np.mean(own, axis=0), rtol=1e-9)
