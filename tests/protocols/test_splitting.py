"""The grand scheme over sums: against numpy, closed forms, and what the chapter proves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.averaging import clipped
from protocols.learner import Learner
from protocols.participant import Participant
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from protocols.splitting import Splitting
from protocols.splitting_clients import AtPoint, Split, SplitClient
from protocols.splitting_formulas import ProximalLearner, ProximalSteps, StepSizes
from secagg.errors import MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from tests.protocols.contract import absent
from tests.protocols.splitting_central import Central
from tests.protocols.splitting_problem import (
    SETTINGS,
    LeastSquaresLearner,
    gap_of,
    learners_of,
    models,
    problem,
)

SMALL = {"users": 5, "features": 8, "rows": 60}
ETA = 3e-3


def small(noise: float = 2.0) -> Any:
    return problem(noise, **SMALL)


def settings_of(name: str) -> tuple[float, float, float]:
    each = SETTINGS[name]
    return each["alpha"], each["beta"], each["gamma"]


def maps_of(name: str, data: Any, steps: int, schedule: str = "constant") -> Any:
    """All users' maps, written once more."""
    sizes = StepSizes(eta=ETA, schedule=schedule)

    def gradient_steps(points: Vector, number: int) -> Vector:
        for _ in range(steps):
            points = points - sizes.at(number) * data.gradients(points)
        return points

    def proximal(points: Vector, number: int) -> Vector:
        found: Vector = data.proximal(points, sizes.at(number))
        return found

    return gradient_steps if SETTINGS[name]["local_map"] == "gradient" else proximal


@pytest.mark.parametrize("make", [insecure_plain_sum, secure_sum], ids=["plain", "secure"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_the_scheme_of_the_chapter(name: str, make: Any) -> None:
    data = small()
    found = models(data, 12, make, eta=ETA, steps=3, clip=10.0, **SETTINGS[name])
    central = Central(maps_of(name, data, 3), np.zeros(8), 5, settings_of(name)).run(12)
    assert np.allclose(found, central, rtol=0, atol=1e-13)


@pytest.mark.parametrize("schedule", ["log", "sqrt", "linear", "exponential"])
def test_step_sizes_diminish_as_rounds_are_completed(schedule: str) -> None:
    data = small()
    found = models(data, 12, eta=ETA, schedule=schedule, **SETTINGS["fedrp"])
    central = Central(maps_of("fedrp", data, 1, schedule), np.zeros(8), 5, settings_of("fedrp")).run(12)
    assert np.allclose(found, central, rtol=0, atol=1e-13)


def test_sizes_of_steps() -> None:
    def at(schedule: str, *steps: int) -> list[float]:
        return [StepSizes(eta=1.0, schedule=schedule, period=10).at(step) for step in steps]

    assert at("constant", 0, 99) == [1.0, 1.0]
    assert at("log", 0, 9, 99) == pytest.approx([1.0, 1 / 2, 1 / 3])
    assert at("sqrt", 0, 3, 99) == [1.0, 0.5, 0.1]
    assert at("linear", 0, 1, 99) == [1.0, 0.5, 0.01]
    assert at("exponential", 0, 9, 10, 19, 20) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert all(size > 0 and np.isfinite(1 / size) for size in at("exponential", 2**63 - 1))


# --- what the chapter proves ---


@pytest.mark.parametrize("k", [1, 5])
def test_federated_averaging_ends_where_the_closed_form_says(k: int) -> None:
    """(21), with uniform weights."""
    data = small()
    squares = [each.T @ each for each in data.a]
    powers = [sum(np.linalg.matrix_power(np.eye(8) - ETA * q, j) for j in range(k)) for q in squares]
    left = sum(q @ power for q, power in zip(squares, powers, strict=True))
    right = sum(power @ a.T @ b for power, a, b in zip(powers, data.a, data.b, strict=True))
    found = models(data, 120, eta=ETA, steps=k, **SETTINGS["splitting-fedavg"])[-1]
    assert np.allclose(found, np.linalg.solve(left, right), rtol=0, atol=1e-7)
    assert (gap_of(data, found) < 1e-12) == (k == 1)


def test_with_ever_more_steps_it_is_the_mean_of_the_clients_own_optima() -> None:
    """Theorem 2 and (20): k to infinity minimises the proximal average with eta to infinity."""
    data = small()
    alone = np.mean(
        [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(data.a, data.b, strict=True)], axis=0
    )
    found = models(data, 3, eta=ETA, steps=2000, **SETTINGS["splitting-fedavg"])[-1]
    assert np.allclose(found, alone, rtol=0, atol=1e-12)
    assert gap_of(data, found) > 0.01
    once = models(data, 120, eta=ETA, steps=1, **SETTINGS["splitting-fedavg"])[-1]
    assert np.allclose(once, data.optimum, rtol=0, atol=1e-7)


def two(curvature: float) -> dict[int, Learner]:
    """f+ with its minimum at -1, and f- with its minimum at 1, times `curvature`."""
    return {
        0: QuadraticLearner(as_vector([-1.0]), curvature=1.0),
        1: QuadraticLearner(as_vector([1.0]), curvature=curvature),
    }


def iterates(learners: dict[int, Learner], start: float, rounds: int, **settings: Any) -> list[float]:
    algorithm = Splitting(dim=1, clients=2, clip=10.0, **settings)
    channel = insecure_plain_sum(algorithm, learners, Setting(insecure_seed=b"two"))
    run = Run(algorithm, channel, algorithm.start(as_vector([start])))
    return [float(run.model[0]) for _ in range(rounds) if run.round().completed]


@pytest.mark.parametrize("schedule", ["constant", "linear", "exponential"])
def test_the_two_functions_shrink_by_the_product_of_their_step_sizes(schedule: str) -> None:
    fixed = SETTINGS["splitting-fedprox"]
    found = iterates(two(1.0), 2.0, 40, eta=0.5, schedule=schedule, period=1, **fixed)
    sizes = StepSizes(eta=0.5, schedule=schedule, period=1)
    product = np.cumprod([1 / (1 + sizes.at(t)) for t in range(40)])
    assert np.allclose(found, 2.0 * product, rtol=1e-12, atol=1e-14)
    assert (found[-1] < 0.5) == (schedule != "exponential"), (
        "the sum of its sizes is finite: it stops on its way"
    )


def test_a_constant_step_misses_the_optimum_of_two_unlike_functions_and_a_vanishing_one_does_not() -> None:
    """f+ and 2 f-, whose optimum is 1/3: 2 w = (w - eta) / (1 + eta) + (w + 2 eta) / (1 + 2 eta)."""
    eta, fixed = 0.5, SETTINGS["splitting-fedprox"]
    limit = (2 * eta / (1 + 2 * eta) - eta / (1 + eta)) / (2 - 1 / (1 + eta) - 1 / (1 + 2 * eta))
    constant = iterates(two(2.0), 0.0, 80, eta=eta, **fixed)[-1]
    assert constant == pytest.approx(limit, abs=1e-12)
    assert abs(constant - 1 / 3) > 0.04
    fading = iterates(two(2.0), 0.0, 250, eta=2.0, schedule="linear", **fixed)[-1]
    assert fading == pytest.approx(1 / 3, abs=8e-3)
    for name in ("fedsplit", "fedpi"):
        assert iterates(two(2.0), 0.0, 80, eta=eta, **SETTINGS[name])[-1] == pytest.approx(1 / 3, abs=1e-9)


def test_fedrp_and_fedprox_have_the_same_fixed_point() -> None:
    """Theorem 8."""
    data = small()
    one, other = (models(data, 160, eta=ETA, **SETTINGS[name])[-1] for name in ("fedrp", "splitting-fedprox"))
    assert np.allclose(one, other, rtol=0, atol=1e-8)
    assert gap_of(data, one) > 1e-3


def test_fedpi_is_the_method_of_multipliers() -> None:
    """(31)-(33): z <- P(w + u), w <- mean(z - u), u <- u + w - z, with dual variables that add up to zero."""
    data = small()
    w, u = np.zeros(8), np.zeros((5, 8))
    expected = []
    for _ in range(15):
        z = data.proximal(w + u, ETA)
        before, w = w + u, (z - u).mean(axis=0)
        expected.append((2 * z - before).mean(axis=0))
        u = u + w - z
    assert np.allclose(models(data, 15, eta=ETA, **SETTINGS["fedpi"]), expected, rtol=0, atol=1e-13)


def test_an_ergodic_average_weighs_means_by_their_step_sizes() -> None:
    data, fixed = small(), SETTINGS["splitting-fedprox"]
    plain = np.array(models(data, 9, eta=ETA, schedule="linear", **fixed))
    found = models(data, 9, eta=ETA, schedule="linear", ergodic=True, **fixed)
    weights = np.array([1 / (t + 1) for t in range(9)])
    expected = np.cumsum(weights[:, None] * plain, axis=0) / np.cumsum(weights)[:, None]
    assert np.allclose(found, expected, rtol=0, atol=1e-13)


# --- proximal maps ---


class Inexact:
    """A learner that does not know its proximal map. What it is asked passes on."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __getattr__(self, name: str) -> Any:
        if name == "proximal":
            raise AttributeError(name)
        return getattr(self._learner, name)


class Wrapped:
    """One around another learner, as an attack is."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def a_learner() -> LeastSquaresLearner:
    found = learners_of(small())[0]
    assert isinstance(found, LeastSquaresLearner)
    return found


def test_a_closed_form_is_used_where_there_is_one_even_through_a_wrapper() -> None:
    learner, point = a_learner(), as_vector(np.ones(8))
    exact = learner.proximal(point, ETA)
    for each in (learner, Wrapped(learner)):
        assert isinstance(each, ProximalLearner)
        assert (ProximalSteps().point(each, point, ETA, start=np.zeros(8)) == exact).all()
    quadratic = QuadraticLearner(np.ones(8), curvature=2.0)
    nearby = ProximalSteps(exact=False, steps=500, rate=0.1).point(quadratic, 3 * point, 0.5, start=point)
    assert np.allclose(quadratic.proximal(3 * point, 0.5), nearby, atol=1e-12)


def test_without_one_local_steps_come_near_and_nearer_when_they_are_accelerated() -> None:
    learner, point = Inexact(a_learner()), as_vector(np.ones(8))
    assert not isinstance(learner, ProximalLearner)
    exact = a_learner().proximal(point, 0.1)

    def away(**settings: Any) -> float:
        steps = ProximalSteps(steps=24, rate=8e-3, **settings)
        return float(np.linalg.norm(steps.point(learner, point, 0.1, start=np.zeros(8)) - exact))

    assert away() < 0.5 * np.linalg.norm(exact)
    assert away(memory=3) < 1e-2 * away()
    assert away(memory=2, chunk=2) < 0.1 * away()


def test_a_rate_is_never_above_eta_or_the_pull_would_make_steps_diverge() -> None:
    learner, point = Inexact(QuadraticLearner(np.zeros(3), rate=0.5)), np.ones(3)
    found = ProximalSteps(steps=50).point(learner, point, 1e-3, start=np.zeros(3))
    assert np.allclose(found, point / (1 + 1e-3), atol=1e-7)


@pytest.mark.parametrize("start_at", ["average", "point"])
def test_local_steps_begin_where_it_says(start_at: str) -> None:
    seen: list[Vector] = []

    class Noting(Inexact):
        def train(self, start: Vector, *args: Any, **more: Any) -> Vector:
            seen.append(start)
            return self._learner.train(start, *args, **more)

    data = small()
    learners: dict[int, Learner] = {user: Noting(each) for user, each in learners_of(data).items()}
    algorithm = Splitting(dim=8, clients=5, clip=10.0, eta=ETA, start_at=start_at, steps=5)
    channel = insecure_plain_sum(algorithm, learners, Setting(insecure_seed=b"start"))
    run = Run(algorithm, channel, algorithm.start(as_vector(np.zeros(8))))
    run.round()
    mean, first = run.model, len(seen)
    run.round()
    starts = np.array(seen[first:])
    assert len(starts) == 5
    assert (starts == mean).all() == (start_at == "average")


@pytest.mark.parametrize("name", ["fedsplit", "fedrp", "splitting-fedavg"])
@pytest.mark.parametrize("exact", [True, False])
def test_step_sizes_may_be_those_of_sums_over_samples(name: str, *, exact: bool) -> None:
    """The chapter's users minimise sums, learners have means: n times the step size is the same step."""
    learners: dict[int, Learner] = {
        k: QuadraticLearner(as_vector([float(k)]), samples=8, rate=0.08) for k in range(2)
    }
    if not exact:
        learners = {k: Inexact(each) for k, each in learners.items()}
    setting: dict[str, Any] = {"steps": 5, **SETTINGS[name]}
    rate, n_times = (0.01, 0.08) if setting["local_map"] == "proximal" else (None, None)
    summed = iterates(dict(learners), 3.0, 4, **{**setting, "eta": 0.05, "rate": rate, "summed": True})
    means = iterates(dict(learners), 3.0, 4, **{**setting, "eta": 0.4, "rate": n_times})
    other = iterates(dict(learners), 3.0, 4, **{**setting, "eta": 0.05, "rate": rate})
    assert summed == pytest.approx(means, rel=1e-12)
    assert other[-1] != pytest.approx(means[-1], rel=1e-3)


# --- who takes part, and how much it counts ---


def test_who_was_not_counted_keeps_its_state_and_hears_the_next_mean() -> None:
    """With gamma = 1 that is what the released scripts do: z stays, and the mean is that of who came."""
    data = small()
    dropouts = absent((3,), Stage.MASK, sum_index=0, round_number=2)
    algorithm = Splitting(dim=8, clients=5, clip=10.0, eta=ETA)
    channel = insecure_plain_sum(
        algorithm, learners_of(data), Setting(insecure_seed=b"who", dropouts=dropouts, sums=1)
    )
    run = Run(algorithm, channel, algorithm.start(as_vector(np.zeros(8))))
    z, mean = np.zeros((5, 8)), np.zeros(8)
    for number in range(5):
        assert run.round().completed
        here = [0, 1, 2, 4] if number == 2 else [0, 1, 2, 3, 4]
        u = 2 * mean - z
        z[here] = (2 * data.proximal(u, ETA) - u)[here]
        mean = z[here].mean(axis=0)
        assert np.allclose(run.model, mean, rtol=0, atol=1e-13), number


def test_a_round_that_fails_changes_nothing_and_does_not_count_as_a_step() -> None:
    data = small()
    dropouts = absent((0, 1, 2, 3), Stage.MASK, sum_index=0, round_number=1)
    algorithm = Splitting(dim=8, clients=5, clip=10.0, eta=ETA, schedule="linear")
    channel = insecure_plain_sum(
        algorithm, learners_of(data), Setting(insecure_seed=b"f", dropouts=dropouts, sums=1)
    )
    run = Run(algorithm, channel, algorithm.start(as_vector(np.zeros(8))))
    assert [run.round().completed for _ in range(4)] == [True, False, True, True]
    assert np.allclose(run.model, models(data, 3, eta=ETA, schedule="linear")[-1], rtol=0, atol=1e-13)


def test_clients_may_count_by_their_samples() -> None:
    learners = {k: QuadraticLearner(as_vector([float(k)]), samples=4**k) for k in range(2)}
    for name in ("fedpi", "fedsplit"):
        found = iterates(dict(learners), 0.0, 60, eta=0.7, weighted=True, cap=4, **SETTINGS[name])
        assert found[-1] == pytest.approx(0.8, abs=1e-9)


def test_who_is_clipped_goes_on_with_what_it_sent() -> None:
    """So that the mean of all points is what the server thinks it is."""
    data = small()
    algorithm = Splitting(dim=8, clients=5, clip=0.05, eta=ETA)
    channel = insecure_plain_sum(algorithm, learners_of(data), Setting(insecure_seed=b"clip"))
    run = Run(algorithm, channel, algorithm.start(as_vector(np.zeros(8))))
    for _ in range(6):
        before = run.model
        run.round()
        assert np.linalg.norm(run.model - before) <= 0.05 * (1 + 1e-9)
        sent = np.array([each.memory.sent for each in channel.participants.values()])
        assert np.allclose(sent.mean(axis=0), run.model, rtol=0, atol=1e-13)


# --- parameters and queries that make no sense ---


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"eta": None}, "eta must be set"),
        ({"clip": None}, "clip must be set"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"alpha": 2.5}, "alpha must be"),
        ({"beta": -1.0}, "beta must be"),
        ({"gamma": 1.5}, "gamma must be"),
        ({"local_map": "newton"}, "local_map must be one of proximal, gradient"),
        ({"schedule": "cosine"}, "schedule must be one of constant"),
        ({"start_at": "zero"}, "start_at must be one of"),
        ({"steps": 0}, "steps must be"),
        ({"rate": -1.0}, "rate must be"),
        ({"local_memory": -1}, "memory must be"),
        ({"local_chunk": 0}, "chunk must be"),
        ({"bits": 8}, "bits must be"),
    ],
)
def test_parameters_that_make_no_sense_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Splitting(**{"dim": 3, "clients": 5, "eta": 0.1, "clip": 1.0} | wrong)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_a_step_that_cannot_be_is_refused(beta: float) -> None:
    algorithm = Splitting(dim=1, clients=2, clip=1.0, eta=0.1, beta=beta)
    channel = insecure_plain_sum(algorithm, two(1.0), Setting())
    query = AtPoint(np.zeros(1), -1) if beta == 1 else Split(np.zeros(1), -1)
    with pytest.raises(MalformedMessage, match="-1"):
        channel.participants[0].answer(
            query.kind, encode_query(RoundInfo(), query), round_number=0, invited=2
        )


@pytest.mark.parametrize("name", [each for each in SETTINGS if SETTINGS[each]["beta"] != 1])
def test_a_far_mean_does_not_silence_who_hears_of_it(name: str) -> None:
    """If it took their u_i along, a clip would next leave one direction of them, and show the only other."""
    algorithm = Splitting(dim=3, clients=5, eta=0.5, clip=50.0, steps=2, **SETTINGS[name])
    centres = [as_vector([k, 2.0 - k, k % 2]) for k in range(5)]
    clients = [Participant(algorithm, QuadraticLearner(each), trust=Trust.MALICIOUS) for each in centres]
    far = encode_query(RoundInfo(), Split(as_vector([2.0**40, 0.0, 0.0]), 0))
    for client in clients[1:]:
        client.answer("split", far, round_number=0, invited=4)
        client.confirmed()
    honest = encode_query(RoundInfo().next(completed=True), Split(as_vector(np.zeros(3)), 1))
    answers = [each.answer("split", honest, round_number=1, invited=5) for each in clients]
    parts = [clipped(np.asarray(each["update"]), 50.0)[1:] for each in answers if each is not None]
    assert np.linalg.norm(sum(parts[1:])) > np.linalg.norm(parts[0])


@pytest.mark.parametrize("changes", [{}, {"gamma": 0.5}, {"alpha": 1.0}, {"beta": 1.5, "gamma": 0.7}])
def test_in_honest_rounds_no_point_is_moved_however_small_the_clip(
    changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"clip": 0.02, "eta": ETA, **changes}
    before = models(small(), 40, **found)
    monkeypatch.setattr(SplitClient, "near", lambda _self, point, _mean: point)
    assert np.allclose(before, models(small(), 40, **found), rtol=0, atol=1e-12)


def test_the_sum_of_z_is_enough_where_all_points_are_the_same() -> None:
    sums = {"dim": 1, "clients": 2, "clip": 1.0, "eta": 0.1, "gamma": 0.5}
    assert Splitting(**sums, beta=1.0).scheme.lean == 0.0  # type: ignore[arg-type]
    assert Splitting(**sums, beta=2.0).scheme.lean == 1.0  # type: ignore[arg-type]
