"""Private robust steps: what they cost, what noise they have, and that they still get somewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocols.influence_functions import (
    CoordinateMedian,
    GeometricMedian,
    Influence,
    MeanInfluence,
    NoisyInfluence,
)
from protocols.iterative_aggregation import Aggregation, Layer
from protocols.privacy_budget import PublicStepBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from secagg import Goal, NoiseAssumptions, sum_rho
from secagg.client_memory import VolatileMemory
from secagg.errors import ParameterError
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum

CLIENTS, STEPS, ROUNDS = 6, 2, 3
PROMISE = NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
RHO = 0.6


def privacy(**changes: Any) -> PublicStepBudget:
    return PublicStepBudget(
        **{"promise": PROMISE, "goal": Goal(rho=RHO), "rounds": ROUNDS, "step": 0.5} | changes  # type: ignore[arg-type]
    )


def private_rfa(dim: int = 4, **changes: Any) -> RFA:
    fields = {"dim": dim, "clients": CLIENTS, "nu": 1.0, "steps": STEPS, "weighted": False}
    return RFA(**fields | {"privacy": privacy()} | changes)


def private(inner: Influence, **changes: Any) -> NoisyInfluence:
    return NoisyInfluence(inner=inner, privacy=privacy(**changes), sums=STEPS)


def learners(points: Vector) -> dict[int, QuadraticLearner]:
    return {member: QuadraticLearner(point, rate=1.0, steps=1) for member, point in enumerate(points)}


def rounds(channel: SessionChannel, algorithm: RFA, number: int) -> list[RoundReport]:
    run = Run(algorithm, channel, algorithm.start(np.zeros(algorithm.dim)))
    return [run.round() for _ in range(number)]


# --- what it costs ----------------------------------------------------------------------------------


def test_every_step_of_every_round_is_charged() -> None:
    """By the real machines: after each round, clients have spent the rho of its steps."""
    algorithm = private_rfa()
    (each,) = algorithm.sums()
    rho = sum_rho(each.spec, roster=CLIENTS)
    assert rho is not None
    assert rho == pytest.approx(RHO / (STEPS * ROUNDS), rel=1e-6)
    channel = secure_sum(algorithm, learners(np.eye(CLIENTS, 4)), Setting(max_rho=RHO))
    run = Run(algorithm, channel, algorithm.start(np.zeros(4)))
    for done in range(1, ROUNDS + 1):
        assert run.round().completed
        for memory in memories(channel):
            assert memory.spend.rho == pytest.approx(done * STEPS * rho, rel=1e-6)
            assert memory.spend.unnoised == 0


def memories(channel: SessionChannel) -> list[VolatileMemory]:
    return list(channel._memories.values())


def test_a_spent_budget_ends_it() -> None:
    """A budget of three rounds buys three, and not one step of a fourth."""
    algorithm = private_rfa()
    channel = secure_sum(algorithm, learners(np.eye(CLIENTS, 4)), Setting(max_rho=RHO))
    reports = rounds(channel, algorithm, ROUNDS + 1)
    assert [report.completed for report in reports] == [True] * ROUNDS + [False]
    assert reports[-1].sums == {}
    assert all(memory.spend.noised == STEPS * ROUNDS for memory in memories(channel))


def test_all_that_is_summed_has_noise() -> None:
    """The weight, whose range is 1 / nu, is not summed at all."""
    (each,) = private_rfa().sums()
    assert each.spec.is_private
    assert [part.name for part in each.spec.parts] == ["layer0"]
    assert each.spec.promise == PROMISE
    assert "noise" in each.reveals


@pytest.mark.parametrize(
    ("inner", "norm"),
    [
        (GeometricMedian(nu=1.0), 1.0),
        (CoordinateMedian(delta=0.1), math.sqrt(9)),
        (MeanInfluence(clip=2.5), 2.5),
    ],
)
def test_noise_hides_the_most_that_a_client_can_add(inner: Influence, norm: float) -> None:
    """zCDP: rho is half of the squared sensitivity over the variance; rounding adds 2 % at most."""
    plan = private(inner).plan(9)
    assert plan.sensitivity == pytest.approx(norm, rel=0.02)
    rho = RHO / (STEPS * ROUNDS)
    assert plan.sigma_central == pytest.approx(norm / math.sqrt(2 * rho), rel=0.02)
    assert plan.rho <= rho
    (pull,) = private(inner).contribution(np.full(9, -1e6), 1.0)
    assert np.linalg.norm(np.asarray(pull)) == pytest.approx(norm)


# --- what it gives ----------------------------------------------------------------------------------

DIM, REPEATS = 512, 8
RARE = 1e-8
NORMAL_QUANTILE = 5.74  # of a standard normal value, which is larger in size with probability RARE


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
@pytest.mark.parametrize("inner", [GeometricMedian(nu=1.0), CoordinateMedian(delta=0.5)])
def test_a_step_is_the_exact_one_plus_the_noise_that_was_planned(make: Any, inner: Influence) -> None:
    """Seeds are fixed, so it always comes out the same; a right program would fail for one seed in 3e7.

    The mean of m standard normal values has the standard deviation 1 / sqrt(m). The mean of their squares is
    more than 2 sqrt(x / m) + 2 x / m away from 1 with a probability of at most exp(-x) on either side
    ("Adaptive estimation of a quadratic functional by model selection", Lemma 1).
    """
    points = np.random.default_rng(7).normal(size=(CLIENTS, DIM))
    influence = private(inner)
    noise = []
    for repeat in range(REPEATS):
        algorithm = one_step(influence, DIM)
        channel = make(algorithm, learners(points), Setting(insecure_seed=b"private %d" % repeat))
        run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
        assert run.round().completed
        pulls = sum(np.asarray(inner.contribution(point, 1.0)[0]) for point in points)
        exact = influence.privacy.length * pulls / CLIENTS
        noise.append(run.model - exact)
    sigma = influence.plan(DIM).sigma_released * influence.privacy.length / CLIENTS
    z = np.concatenate(noise) / sigma
    assert abs(z.mean()) < NORMAL_QUANTILE / math.sqrt(z.size)
    x = -math.log(RARE)
    assert abs((z**2).mean() - 1) < 2 * math.sqrt(x / z.size) + 2 * x / z.size


def one_step(influence: NoisyInfluence, dim: int) -> RFA:
    class OneStep(RFA):
        def _layers(self) -> tuple[Layer, ...]:
            return (Layer(0, dim, influence),)

    return OneStep(dim=dim, clients=CLIENTS, steps=1, weighted=False)


def test_private_steps_come_near_the_median_and_stay() -> None:
    """With a large budget, noise is small; what an outlier can do stays bounded by its one step of pull."""
    points = np.random.default_rng(3).normal(size=(CLIENTS, 3)) * 0.2 + [2.0, -1.0, 0.5]
    points[0] = 1e6
    algorithm = private_rfa(dim=3, steps=20, privacy=privacy(goal=Goal(rho=1e5), rounds=1, step=1.0))
    channel = secure_sum(algorithm, learners(points), Setting(insecure_seed=b"near"))
    run = Run(algorithm, channel, algorithm.start(np.zeros(3)))
    assert run.round().completed
    assert np.linalg.norm(run.model - points[1:].mean(axis=0)) < 0.5


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"goal": Goal(rho=1.0, sums=4)}, "set rounds"),
        ({"rounds": 0}, "rounds"),
        ({"step": 0.0}, "step"),
    ],
)
def test_privacy_that_makes_no_sense_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        privacy(**changes)


@pytest.mark.parametrize("changes", [{"fast": True}, {"start_at": "mean", "clip": 1.0}])
def test_private_steps_are_plain_and_start_at_the_model(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="private steps"):
        private_rfa(**changes)


def test_noise_for_fewer_clients_than_there_may_be_is_refused() -> None:
    with pytest.raises(ParameterError, match="promised for 6 clients, but there may be 7"):
        private_rfa(clients=CLIENTS + 1)


def test_noise_over_noise_has_no_private_variant() -> None:
    with pytest.raises(ParameterError, match="no private variant of NoisyInfluence"):
        private(private(GeometricMedian()))


def test_noise_in_one_layer_and_none_in_another_is_refused() -> None:
    layers = (Layer(0, 2, private(GeometricMedian())), Layer(2, 4, GeometricMedian()))
    with pytest.raises(ParameterError, match="for all of them alike"):
        Aggregation(layers=layers, clients=CLIENTS, steps=STEPS)
