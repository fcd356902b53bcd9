"""Evaluation as sums, alone and beside any algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.algorithm import NoMemory
from protocols.averaging import Update
from protocols.ditto import Ditto
from protocols.evaluation import ErrorHistogram, Evaluation, EvaluationMetrics, Scores, WithEvaluation
from protocols.fedavg import FedAvg
from protocols.histogram_quantiles import one_hot, read_percentile
from protocols.learner import Score
from protocols.local_only_training import LocalTraining
from protocols.partial_personalisation import FedSim
from protocols.personal_model import OwnModel
from protocols.privacy_budget import HistogramBudget, PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.run import Run
from protocols.serialisation import Vector
from protocols.simplicial import SimplicialFL
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from secagg.noise.zcdp_cost import sum_rho
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum, no_dropouts, secure_sum

CENTRES = np.array([[2.0, 0.0], [0.5, 0.0], [0.0, 0.0], [0.0, -3.0], [0.2, 0.1], [1.0, 1.0]])
SEED = b"evaluation"


@dataclass
class Told(QuadraticLearner):
    """A learner that is told its score."""

    result: Score = field(default_factory=lambda: Score(0, 0, 0.0))
    scored = 0
    trained = 0

    def score(self, model: Vector) -> Score:
        self.scored += 1
        return self.result

    def train(self, *arguments: Any, **settings: Any) -> Vector:
        self.trained += 1
        return super().train(*arguments, **settings)


def told(scores: list[Score]) -> dict[int, Told]:
    return {k: Told(np.zeros(2), result=score) for k, score in enumerate(scores)}


def quadratic() -> dict[int, QuadraticLearner]:
    return {k: QuadraticLearner(centre, samples=k + 1) for k, centre in enumerate(CENTRES)}


def evaluation(clients: int = 6, **settings: Any) -> Evaluation:
    measures = EvaluationMetrics(**({"loss_bound": 10.0} | settings))
    return Evaluation(dim=2, clients=clients, measures=measures)


def evaluated(algorithm: Any = None, **settings: Any) -> WithEvaluation[Any, Any]:
    inner = FedAvg(dim=2, clients=6, clip=10.0) if algorithm is None else algorithm
    return WithEvaluation(algorithm=inner, measures=EvaluationMetrics(**({"loss_bound": 10.0} | settings)))


def run_of(algorithm: Any, cohort: Any, *, make: Any = insecure_plain_sum, **settings: Any) -> Run[Any]:
    channel = make(algorithm, cohort, Setting(**({"insecure_seed": SEED} | settings)))
    return Run(algorithm, channel, algorithm.start(np.zeros(2)))


def during(kind: int) -> Any:
    """A drop-out schedule: every client is missing from the sum of that number."""
    return lambda _member, stage, _round, number: stage is Stage.MASK and number == kind


# --- what is measured ---

SCORES = st.builds(
    lambda total, right, loss: Score(round(total * right), total, loss),
    st.integers(0, 50),
    st.floats(0, 1),
    st.floats(0, 10),
)


@settings(max_examples=30)
@given(st.lists(SCORES, min_size=2, max_size=8).filter(lambda all_: any(s.total for s in all_)))
def test_means_are_those_over_all_samples(scores: list[Score]) -> None:
    facts = run_of(evaluation(8, bins=0), told(scores)).round().facts
    samples = sum(score.total for score in scores)
    assert facts["accuracy"] == pytest.approx(sum(score.correct for score in scores) / samples)
    loss = sum(score.loss * score.total for score in scores) / samples
    assert facts["loss"] == pytest.approx(loss, abs=1e-9)


def test_a_histogram_can_be_all_that_is_asked_for() -> None:
    cohort = told([Score(90, 100, 1.0)] * 6)
    alone = evaluation(6, bins=10, scores=False, loss_bound=None)
    facts = run_of(alone, cohort).round().facts
    assert [each.query.kind for each in alone.sums()] == ["errors"]
    assert set(facts) == {"error_mean", "error_p50", "error_p90"}
    with pytest.raises(ParameterError, match="nothing is asked for"):
        evaluation(6, bins=0, scores=False)


def test_a_budget_for_a_histogram_alone_goes_to_it_whole() -> None:
    promise, goal = NoiseAssumptions(clients=6, dropouts=0, colluders=0), Goal(rho=1.0)
    whole = HistogramBudget(promise=promise, goal=goal, rounds=1, ratio=1.0)
    alone = evaluation(6, bins=4, scores=False, privacy=whole)
    assert alone.max_rho == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(ParameterError, match="set a ratio of 1"):
        evaluation(6, bins=4, scores=False, privacy=replace(whole, ratio=0.5))


def test_errors_are_told_to_the_width_of_a_bin() -> None:
    errors = np.random.default_rng(2).integers(0, 101, size=40)
    cohort = told([Score(100 - int(error), 100, 1.0) for error in errors])
    facts = run_of(evaluation(40, bins=50, percentiles=(10, 50, 90)), cohort).round().facts
    assert facts["error_mean"] == pytest.approx(errors.mean() / 100, abs=0.01)
    for p in (10, 50, 90):
        exact = np.percentile(errors, p, method="inverted_cdf") / 100
        assert facts[f"error_p{p}"] == pytest.approx(exact, abs=0.02 + 1e-9)


def test_samples_beyond_the_cap_count_in_proportion() -> None:
    cohort = told([Score(300, 1000, 4.0), Score(5, 10, 1.0)])
    facts = run_of(evaluation(2, cap=100, bins=0), cohort).round().facts
    assert facts["accuracy"] == pytest.approx(35 / 110)
    assert facts["loss"] == pytest.approx((4.0 * 100 + 1.0 * 10) / 110)


@pytest.mark.parametrize("loss", [np.nan, np.inf, 1e9])
def test_a_model_that_diverged_has_the_largest_loss(loss: float) -> None:
    cohort = told([Score(0, 10, loss), Score(10, 10, 2.0)])
    report = run_of(evaluation(2, bins=0), cohort).round()
    assert report.clients == 2
    assert report.facts["loss"] == pytest.approx(6.0)


def test_a_client_without_samples_adds_nothing() -> None:
    cohort = told([Score(0, 0, 0.0), Score(9, 10, 2.0), Score(9, 10, 2.0)])
    facts = run_of(evaluation(3, bins=10), cohort).round().facts
    assert facts["accuracy"] == pytest.approx(0.9)
    assert facts["error_p90"] == pytest.approx(0.2)  # the right edge of the bin from 0.1 on
    assert facts["error_mean"] == pytest.approx(0.15)


def test_without_any_samples_it_says_so() -> None:
    run = run_of(evaluation(2), told([Score(0, 0, 0.0)] * 2))
    facts = run.round().facts
    assert facts == {
        "evaluation": "there are no held-out samples to speak of",
        "errors": "the histogram holds too little to read",
    }


def test_two_sums_take_one_evaluation() -> None:
    cohort = told([Score(1, 2, 0.5)] * 3)
    report = run_of(evaluation(3), cohort).round()
    assert report.sums == {"scores": 1, "errors": 1}
    assert [learner.scored for learner in cohort.values()] == [1, 1, 1]


def test_every_model_that_is_asked_about_is_evaluated() -> None:
    learner = Told(np.zeros(2), result=Score(1, 2, 0.5))
    client = evaluation().client(learner, NoMemory())
    client.answer(Scores(np.zeros(2)))
    client.answer(ErrorHistogram(np.ones(2), 20))
    assert learner.scored == 2


def test_alone_it_leaves_the_model_as_it_is() -> None:
    algorithm = evaluation()
    run = Run(
        algorithm,
        insecure_plain_sum(algorithm, quadratic(), Setting(insecure_seed=SEED)),
        algorithm.start(np.array([0.5, 0.0])),
    )
    right = [learner.score(run.model) for learner in quadratic().values()]
    facts = run.round().facts
    assert facts["accuracy"] == pytest.approx(sum(s.correct for s in right) / 21)
    assert np.array_equal(run.model, [0.5, 0.0])


def test_alone_a_sum_that_fails_fails_the_round() -> None:
    report = run_of(evaluation(), quadratic(), dropouts=during(1)).round()
    assert isinstance(report.failure, TooFewClients)


# --- beside an algorithm ---


def test_the_new_model_is_evaluated_and_the_round_is_what_it_would_be_without() -> None:
    run, plain = run_of(evaluated(), quadratic()), run_of(FedAvg(dim=2, clients=6, clip=10.0), quadratic())
    for _ in range(3):
        report = run.round()
        plain.round()
    assert run.model.tobytes() == plain.model.tobytes()
    scores = [learner.score(run.model) for learner in quadratic().values()]
    assert report.facts["accuracy"] == pytest.approx(sum(s.correct for s in scores) / 21)
    loss = sum(s.loss * s.total for s in scores) / 21
    assert report.facts["loss"] == pytest.approx(loss, abs=1e-9)
    assert report.sums == {"update": 1, "scores": 1, "errors": 1}


def test_facts_of_the_algorithm_are_kept() -> None:
    inner = SimplicialFL(dim=2, clients=6, clip=10.0, loss_bound=10.0)
    facts = run_of(evaluated(inner), quadratic()).round().facts
    assert {"threshold", "tail", "accuracy", "loss", "error_p50", "error_p90"} <= set(facts)


def test_secure_equals_plain_bit_for_bit() -> None:
    secure, plain = (run_of(evaluated(), quadratic(), make=make) for make in (secure_sum, insecure_plain_sum))
    for _ in range(2):
        assert secure.round() == plain.round()
    assert secure.model.tobytes() == plain.model.tobytes()


def test_personal_models_are_those_that_the_round_leaves() -> None:
    """Everyone trains alone for ten steps from the origin: closer to its centre by 0.9^10."""
    cohort = quadratic()
    run = run_of(evaluated(LocalTraining(dim=2, clients=6), personal=True), cohort)
    loss = float(run.round().facts["loss"])
    own = [0.9**20 * learner.loss(np.zeros(2)) for learner in cohort.values()]
    assert loss == pytest.approx(np.average(own, weights=range(1, 7)), abs=1e-9)


def test_whoever_trains_alone_trains_once_in_a_round_and_keeps_what_was_evaluated() -> None:
    cohort = told([Score(1, 2, 0.5)] * 3)
    algorithm = evaluated(LocalTraining(dim=2, clients=3), personal=True)
    channel = insecure_plain_sum(algorithm, cohort, Setting(insecure_seed=SEED))
    run = Run(algorithm, channel, algorithm.start(np.ones(2)))
    for _ in range(2):
        run.round()
    assert [learner.trained for learner in cohort.values()] == [2, 2, 2]
    assert all(isinstance(each.memory, OwnModel) for each in channel.participants.values())
    assert all(each.memory.model is not None for each in channel.participants.values())


@dataclass
class Counting(QuadraticLearner):
    """A learner that counts its trainings, because its random choices depend on the count."""

    calls = 0

    def train(self, *arguments: Any, **settings: Any) -> Vector:
        self.calls += 1
        return super().train(*arguments, **settings)


def test_an_evaluation_that_trains_does_not_change_later_training() -> None:
    cohort = {k: Counting(centre) for k, centre in enumerate(CENTRES)}
    algorithm = FedSim(dim=2, clients=6, clip=10.0, personal_part="0:1", finetune=2)
    run = run_of(evaluated(algorithm, personal=True), cohort)
    run.round()
    assert {learner.calls for learner in cohort.values()} == {1}


@pytest.mark.parametrize("missing", [0, 1])
def test_a_round_has_as_many_clients_as_its_smallest_sum(missing: int) -> None:
    def law(member: int, stage: Stage, _round: int, number: int) -> bool:
        return member == 0 and stage is Stage.MASK and number == missing

    report = run_of(evaluated(), quadratic(), dropouts=law).round()
    assert (report.clients, len(report.sums)) == (5, 3)


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
@pytest.mark.parametrize("number", [1, 2])
def test_if_the_evaluation_fails_the_round_stands(make: Any, number: int) -> None:
    run = run_of(evaluated(), quadratic(), make=make, dropouts=during(number))
    report = run.round()
    assert report.completed
    assert str(report.facts["evaluation"]).startswith("failed: ")
    assert ("accuracy" in report.facts) is (number == 2)
    assert np.linalg.norm(run.model) > 0.1


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
def test_if_the_evaluation_fails_clients_keep_the_models_of_the_round(make: Any) -> None:
    """Everybody leaves after answering, so that no answer to the evaluation is ever confirmed."""

    def memories(algorithm: Any, dropouts: Any) -> list[Vector]:
        channel = make(algorithm, quadratic(), Setting(insecure_seed=SEED, dropouts=dropouts))
        assert Run(algorithm, channel, algorithm.start(np.zeros(2))).round().completed
        return [participant.memory.model for participant in channel.participants.values()]

    ditto = Ditto(dim=2, clients=6, clip=10.0)
    alone = memories(ditto, no_dropouts)
    watched = memories(
        evaluated(ditto, bins=0), lambda _m, stage, _round, number: stage is Stage.REVEAL and number == 1
    )
    assert all(np.array_equal(one, other) for one, other in zip(alone, watched, strict=True))


def test_whoever_was_not_counted_by_the_algorithm_keeps_nothing_for_being_evaluated() -> None:
    def dropouts(member: int, stage: Stage, _round: int, number: int) -> bool:
        return member == 2 and stage is Stage.MASK and number == 0

    algorithm = evaluated(Ditto(dim=2, clients=6, clip=10.0), bins=0)
    channel = insecure_plain_sum(
        algorithm, quadratic(), Setting(insecure_seed=SEED, dropouts=dropouts, dropout=0.3)
    )
    report = Run(algorithm, channel, algorithm.start(np.zeros(2))).round()
    assert report.clients == 5
    kept = [participant.memory.model is not None for participant in channel.participants.values()]
    assert kept == [True, True, False, True, True, True]


def test_if_the_evaluation_fails_clients_keep_what_they_made_alone() -> None:
    cohort = quadratic()
    algorithm = evaluated(LocalTraining(dim=2, clients=6))
    channel = insecure_plain_sum(
        algorithm, cohort, Setting(insecure_seed=SEED, dropouts=leave_after_answering)
    )
    run = Run(algorithm, channel, algorithm.start(np.zeros(2)))
    report = run.round()
    assert str(report.facts["evaluation"]).startswith("failed: ")
    for k, participant in channel.participants.items():
        assert participant.memory.model == pytest.approx((1 - 0.9**10) * CENTRES[k])


def leave_after_answering(_member: int, stage: Stage, _round: int, _sum: int) -> bool:
    return stage is Stage.REVEAL


def test_whoever_comes_only_to_the_evaluation_keeps_its_memory() -> None:
    algorithm = evaluated(personal=True)
    client = algorithm.client(quadratic()[0], "as it was")
    client.answer(Scores(np.zeros(2)))
    assert client.memory() == "as it was"


def test_it_is_as_safe_as_the_algorithm_itself() -> None:
    inner = SimplicialFL(dim=2, clients=6, clip=10.0, loss_bound=10.0)
    with pytest.raises(ParameterError, match="'tail'"):
        evaluated(inner).check_trust(Trust.MALICIOUS)
    evaluated().check_trust(Trust.MALICIOUS)


def test_what_is_saved_is_what_the_algorithm_saves() -> None:
    algorithm = evaluated(LocalTraining(dim=2, clients=6))
    assert (algorithm.memory_type, algorithm.dim, algorithm.clients) == (OwnModel, 2, 6)
    run = run_of(evaluated(), quadratic())
    run.round()
    resumed = Run.resume(evaluated(), run._channel, run.save())
    assert np.array_equal(resumed.model, run.model)


# --- private ---


def private(clients: int, **settings: Any) -> HistogramBudget:
    promise = NoiseAssumptions(clients=clients, dropouts=0, colluders=0)
    given: dict[str, Any] = {"goal": Goal(rho=8.0), "rounds": 4}
    return HistogramBudget(promise=promise, **(given | settings))


@pytest.mark.parametrize("bins", [0, 10])
def test_with_noise_everything_has_some_and_rounds_cost_the_goal(bins: int) -> None:
    sums = evaluation(20, bins=bins, privacy=private(20)).sums()
    assert all(each.spec.is_private for each in sums)
    costs = [sum_rho(each.spec, roster=20) for each in sums]
    assert sum(cost for cost in costs if cost is not None) == pytest.approx(8.0 / 4, rel=0.02)
    if bins:
        assert costs[1] == pytest.approx(0.25 * 8.0 / 4, rel=0.02)


def test_noisy_results_are_near_the_exact_ones() -> None:
    """200 clients, half with an error of 0.1 and half of 0.5, at a rho of 2 in a round.

    Noise has a standard deviation of 10 samples of 2000 (of those that are right, and of all), of 0.025 in
    the loss and of 1 count in a bin. A quantile moves to another group of clients if running sums of up to
    ten bins are off by 20, which is six standard deviations. The seed is fixed; without it, the test would
    fail in less than one of 10^7 runs.
    """
    cohort = told([Score(9, 10, 1.0)] * 100 + [Score(5, 10, 3.0)] * 100)
    measures = {"cap": 10, "bins": 10, "percentiles": (30, 80), "loss_bound": 5.0}
    facts = run_of(evaluation(200, privacy=private(200), **measures), cohort).round().facts
    assert facts["accuracy"] != 0.7
    assert facts["accuracy"] == pytest.approx(0.7, abs=0.07)
    assert facts["loss"] == pytest.approx(2.0, abs=0.2)
    assert facts["error_p30"] == pytest.approx(0.2, abs=0.31)
    assert facts["error_p80"] == pytest.approx(0.6, abs=0.41)


# --- parameters ---


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"loss_bound": None}, "loss_bound must be set"),
        ({"cap": 0}, "cap"),
        ({"bins": -1}, "bins"),
        ({"percentiles": (100,)}, "percentile"),
        ({"percentiles": (0.5,)}, "percentile"),
        ({"privacy": private(6, ratio=1.0)}, "ratio below 1"),
        ({"privacy": private(5)}, "set the promise's clients to 6"),
        ({"personal": True}, "evaluate it with WithEvaluation"),
    ],
)
def test_wrong_parameters_are_errors_that_say_what_to_set(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        evaluation(**settings)


def test_an_evaluation_is_not_evaluated_again() -> None:
    with pytest.raises(ParameterError, match="named errors, scores"):
        evaluated(evaluation())


@pytest.mark.parametrize("algorithm_has", [False, True])
def test_noise_is_everywhere_or_nowhere(algorithm_has: bool) -> None:
    budget = PrivacyBudget(
        promise=NoiseAssumptions(clients=6, dropouts=1, colluders=0), goal=Goal(rho=1.0), rounds=10
    )
    inner = FedAvg(dim=2, clients=6, clip=1.0, weighted=False, privacy=budget if algorithm_has else None)
    with pytest.raises(ParameterError, match="a budget each, or neither"):
        evaluated(inner, **({} if algorithm_has else {"privacy": private(6)}))
    both = evaluated(FedAvg(dim=2, clients=6, clip=1.0, weighted=False, privacy=budget), privacy=private(6))
    assert both.max_rho is not None
    alone = Evaluation(dim=2, clients=6, measures=both.measures)
    assert alone.max_rho is not None
    assert both.max_rho == pytest.approx(alone.max_rho + 1.0, rel=0.02)


@given(
    errors=st.lists(st.integers(0, 19), min_size=1, max_size=40),
    percent=st.integers(1, 99),
)
def test_a_percentile_without_noise_is_exact_to_a_bin(errors: list[int], percent: int) -> None:
    edges = np.linspace(0, 1, 21)
    heights = sum(one_hot((each + 0.5) / 20, edges).astype(np.int64) for each in errors)
    found = read_percentile(heights, edges, percent / 100)
    true = sorted(errors)[max(0, -(-percent * len(errors) // 100) - 1)]
    assert found == pytest.approx((true + 1) / 20)


def test_a_query_of_another_kind_is_no_evaluation() -> None:
    query: Any = Update(np.zeros(2))
    with pytest.raises(AssertionError):
        EvaluationMetrics(loss_bound=5.0).answer(query, Score(1, 2, 0.5))


def test_an_evaluation_without_noise_has_no_cost() -> None:
    assert evaluated(FedAvg(dim=2, clients=6, clip=1.0)).max_rho is None
