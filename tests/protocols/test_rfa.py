"""RFA and RFA-1: what a round does, why it stops, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocols.iterative_aggregation import Residuals, StopReason
from protocols.participant import Participant
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rfa import RFA, RFA1, Mean
from protocols.rounds import Outcome, RoundInfo
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from secagg.errors import CohortChanged, ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.sum_spec import Total
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum

DIM = 3
START = np.array([1.0, -2.0, 0.5])
POINTS = np.random.default_rng(5).normal(size=(8, DIM)) + START + 1
SAMPLES = [1, 7, 20, 3, 3, 9, 500, 4]
CAP = 20
SHARES = np.minimum(SAMPLES, CAP) / CAP


def weiszfeld(steps: int, begin: Vector, *, shares: Vector = SHARES, points: Vector = POINTS) -> Vector:
    point = begin
    for _ in range(steps):
        pulls = shares / np.maximum(1e-6, np.linalg.norm(points - point, axis=1))
        point = pulls @ points / pulls.sum()
    return point


def one_round(
    algorithm: RFA,
    points: Vector = POINTS,
    make: Callable[..., SessionChannel] = insecure_plain_sum,
    *,
    dropouts: DropoutSchedule = no_dropouts,
) -> tuple[Vector, RoundReport]:
    learners = {
        member: QuadraticLearner(point, samples=SAMPLES[member], rate=1.0, steps=1)
        for member, point in enumerate(points)
    }
    setting = Setting(insecure_seed=b"rfa", sums=algorithm.most_sums, dropouts=dropouts, dropout=0.3)
    run = Run(algorithm, make(algorithm, learners, setting), algorithm.start(START))
    report = run.round()
    return run.model, report


def rfa(kind: type[RFA] = RFA, **fields: Any) -> RFA:
    return kind(**{"dim": DIM, "clients": len(POINTS), "cap": CAP, "bits": 44} | fields)


# --- a round ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_from_the_model_are_weiszfelds(steps: int, make: Callable[..., SessionChannel]) -> None:
    model, report = one_round(rfa(steps=steps), make=make)
    assert model == pytest.approx(weiszfeld(steps, START), abs=1e-9)
    assert report.sums == {"residuals": steps}
    assert report.facts["steps"] == steps
    assert report.facts["stopped"] == StopReason.STEPS
    assert report.facts["moved"] == pytest.approx(np.linalg.norm(model - START))


def test_three_steps_are_the_default() -> None:
    assert rfa().most_sums == 3


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
def test_steps_from_the_mean_take_one_sum_more(make: Callable[..., SessionChannel]) -> None:
    model, report = one_round(rfa(steps=2, start_at="mean", clip=50.0), make=make)
    mean = np.average(POINTS, axis=0, weights=SHARES)
    assert model == pytest.approx(weiszfeld(2, mean), abs=1e-8)
    assert report.sums == {"mean": 1, "residuals": 2}


def test_all_sums_are_over_the_same_vectors() -> None:
    algorithm = rfa(start_at="mean", clip=50.0)
    assert len({each.spec.group for each in algorithm.sums()}) == 1
    assert algorithm.most_sums == 4


def test_the_mean_to_start_from_is_clipped() -> None:
    """A far outlier moves the start by its part of the clip, and no farther."""
    points, clip = POINTS.copy(), 2.0
    points[1] = START + np.array([0.0, 1e6, 0.0])
    updates = points - START
    clipped = updates * np.minimum(1, clip / np.linalg.norm(updates, axis=1))[:, None]
    begin = START + np.average(clipped, axis=0, weights=SHARES)
    model, _ = one_round(rfa(steps=1, start_at="mean", clip=clip), points)
    assert model == pytest.approx(weiszfeld(1, begin, points=points), abs=1e-7)


def test_without_weights_all_count_the_same() -> None:
    model, _ = one_round(rfa(steps=2, weighted=False))
    assert model == pytest.approx(weiszfeld(2, START, shares=np.ones(len(POINTS))), abs=1e-9)


def test_fast_steps_come_to_the_same_median_in_fewer_sums() -> None:
    median = weiszfeld(5000, START)
    distance = np.linalg.norm(POINTS - median, axis=1).mean()
    fast, report = one_round(rfa(steps=40, fast=True, tolerance=1e-7))
    assert np.linalg.norm(fast - median) < 1e-6 * distance
    assert report.facts["stopped"] == StopReason.TOLERANCE
    sums = report.sums["residuals"]
    assert np.linalg.norm(weiszfeld(2 * sums, START) - median) > np.linalg.norm(fast - median)


def test_a_step_within_the_tolerance_is_the_last() -> None:
    model, report = one_round(rfa(steps=30, tolerance=1e-2))
    taken = report.sums["residuals"]
    assert taken < 30
    assert np.linalg.norm(weiszfeld(taken, START) - weiszfeld(taken - 1, START)) <= 1e-2
    assert np.linalg.norm(weiszfeld(taken - 1, START) - weiszfeld(taken - 2, START)) > 1e-2
    assert model == pytest.approx(weiszfeld(taken, START), abs=1e-9)
    assert report.facts["stopped"] == StopReason.TOLERANCE


def test_a_client_trains_once_in_a_round() -> None:
    class Counting(QuadraticLearner):
        trained = 0

        def train(self, *args: Any, **settings: Any) -> Vector:
            self.trained += 1
            return super().train(*args, **settings)

    learner = Counting(POINTS[0])
    client = rfa(start_at="mean", clip=50.0).client(learner, rfa().first_memory())
    client.answer(Mean(START))
    for step in (1, 2):
        client.answer(Residuals(START + step, step))
    assert learner.trained == 1


# --- RFA-1 ------------------------------------------------------------------------------------------


def test_rfa1_is_one_mean_weighted_by_inverse_norms() -> None:
    model, report = one_round(rfa(RFA1), make=secure_sum)
    updates = POINTS - START
    weights = SHARES / np.linalg.norm(updates, axis=1)
    assert model == pytest.approx(START + weights @ updates / weights.sum(), abs=1e-9)
    assert report.sums == {"residuals": 1}


def test_in_rfa1_whoever_does_not_train_holds_everybody_back() -> None:
    """A zero update has the weight 1 / nu."""
    lazy = POINTS.copy()
    lazy[0] = START
    model, _ = one_round(rfa(RFA1, weighted=False, leave=False), lazy)
    assert np.linalg.norm(model - START) < 1e-4
    model, _ = one_round(rfa(RFA1, weighted=False), lazy)
    assert np.linalg.norm(model - START) > 0.1
    model, _ = one_round(rfa(RFA1, weighted=False, nu=10.0, leave=False), lazy)
    assert model == pytest.approx(lazy.mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("fields", [{"steps": 2}, {"start_at": "mean", "clip": 1.0}])
def test_rfa1_has_one_step_from_the_model(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="one step from the model"):
        rfa(RFA1, **fields)


# --- rounds that are cut short, or rejected ---------------------------------------------------------


def gone_from(sum_number: int, members: int = 1) -> DropoutSchedule:
    return lambda member, stage, _round, number: (
        member < members and stage is Stage.MASK and number >= sum_number
    )


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
def test_the_last_point_stands_when_a_client_leaves(make: Callable[..., SessionChannel]) -> None:
    model, report = one_round(rfa(steps=5), make=make, dropouts=gone_from(2))
    assert model == pytest.approx(weiszfeld(2, START), abs=1e-9)
    assert report.facts["stopped"] == StopReason.COHORT
    assert report.facts["steps"] == 2


def test_the_last_point_stands_when_too_few_stay() -> None:
    steps = rfa().round(rfa().start(START))
    next(steps)
    parts = {"layer0": np.ones(DIM), "layer0.weight": np.ones(1), "layer0.here": np.zeros(1)}
    steps.send(Total(parts, count=8, invited=8))
    with pytest.raises(StopIteration) as end:
        steps.throw(TooFewClients("only two"))
    outcome = end.value.value
    assert isinstance(outcome, Outcome)
    assert outcome.facts["stopped"] == StopReason.FEW
    assert list(outcome.state.model) == list(START + 1)


@pytest.mark.parametrize("failure", [CohortChanged("gone"), TooFewClients("few")])
def test_without_a_first_step_there_is_no_round(failure: Exception) -> None:
    steps = rfa().round(rfa().start(START))
    next(steps)
    with pytest.raises(type(failure)):
        steps.throw(failure)


def test_a_mean_without_a_step_is_given_up() -> None:
    """It is not robust: otherwise, to leave in time would be an attack."""
    model, report = one_round(rfa(start_at="mean", clip=50.0), dropouts=gone_from(1))
    assert isinstance(report.failure, CohortChanged)
    assert list(model) == list(START)


def test_too_long_a_step_is_rejected() -> None:
    length = float(np.linalg.norm(weiszfeld(3, START) - START))
    model, report = one_round(rfa(reject=0.99 * length))
    assert list(model) == list(START)
    assert "rejected" in report.facts
    assert report.completed
    model, report = one_round(rfa(reject=1.01 * length))
    assert model == pytest.approx(weiszfeld(3, START), abs=1e-9)
    assert "rejected" not in report.facts


def test_a_client_whose_training_diverged_declines() -> None:
    learner = QuadraticLearner(np.array([np.nan, 0.0, 0.0]))
    client = Participant(rfa(), learner, trust="malicious_server")
    query = Residuals(START, 0)
    assert client.answer(query.kind, encode_query(RoundInfo(), query), round_number=0, invited=5) is None


# --- parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"nu": 0.0}, "nu"),
        ({"steps": 0}, "steps"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"cap": 0}, "cap"),
        ({"start_at": "median"}, "start_at"),
        ({"start_at": "mean"}, "clip must be set"),
        ({"reject": 0.0}, "reject"),
        ({"bits": 65}, "bits"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        rfa(**fields)


# --- clients that did not train -------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("idle", [1, 5])
def test_clients_that_return_the_model_as_it_is_do_not_stop_it(idle: int, fast: bool) -> None:
    """Of 20 clients; each would have the weight 1 / nu at the point where all steps begin."""
    rng = np.random.default_rng(8)
    goal = np.array([1.0, 0.0, 0.0])
    centres = goal + 0.05 * rng.normal(size=(20, 3))
    distances = []
    for leave in (True, False):
        algorithm = RFA(dim=3, clients=20, weighted=False, leave=leave, fast=fast)
        learners = {k: QuadraticLearner(centres[k], steps=0 if k < idle else 100) for k in range(20)}
        channel = insecure_plain_sum(algorithm, learners, Setting(insecure_seed=b"idle"))
        run = Run(algorithm, channel, algorithm.start(np.zeros(3)))
        for _ in range(10):
            assert run.round().completed
        distances.append(float(np.linalg.norm(run.model - goal)))
    assert distances[0] < 0.06
    assert distances[1] > 0.2 or idle == 1


def test_a_point_at_a_client_is_kept_where_it_is_the_median() -> None:
    """A client with more than half of the weight is the median, and steps do not leave it."""
    learners = {k: QuadraticLearner(np.array([float(k), 1.0]), samples=10 if k == 0 else 1) for k in range(6)}
    learners[0].steps = 0
    algorithm = RFA(dim=2, clients=6, cap=10)
    run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.zeros(2)))
    assert run.round().completed
    assert np.linalg.norm(run.model) <= algorithm.nu


def test_if_nobody_trains_nothing_moves() -> None:
    learners = {k: QuadraticLearner(np.ones(2), steps=0) for k in range(4)}
    algorithm = RFA(dim=2, clients=4)
    run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.zeros(2)))
    assert run.round().completed
    assert run.model.tolist() == [0.0, 0.0]
