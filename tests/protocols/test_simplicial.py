"""Simplicial-FL: who is in the tail, where it settles, what it costs, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from protocols.algorithm import LEAST_WEIGHT
from protocols.fedavg import FedAvg
from protocols.histogram_quantiles import read_boundary
from protocols.privacy_budget import HistogramBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from protocols.simplicial import LossHistogram, SimplicialFL, TailUpdate
from protocols.superquantile_formulas import (
    LossTail,
    TailRule,
    TailThreshold,
)
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from secagg.noise.zcdp_cost import sum_rho
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from tests.protocols.exact_superquantile import entropic_weights, quadratic_weights, tail_weights

SEED = b"simplicial"
# Two clients far out to either side, one less so, and two near the origin.
CENTRES = np.array([[6.0, 1.0], [-4.0, 1.0], [0.0, -1.5], [0.1, -0.2], [-0.2, 0.1]])


def learners(centres: Vector = CENTRES, **settings: Any) -> dict[int, QuadraticLearner]:
    return {k: QuadraticLearner(centre, **settings) for k, centre in enumerate(centres)}


def simplicial(**settings: Any) -> SimplicialFL:
    given = {"dim": 2, "clients": 5, "clip": 20.0, "loss_bound": 20.0, "bins": 400}
    return SimplicialFL(**(given | settings))


def run_of(
    algorithm: SimplicialFL | FedAvg, cohort: Any = None, *, make: Any = insecure_plain_sum, **settings: Any
) -> Run[Any]:
    setting = Setting(**({"insecure_seed": SEED} | settings))
    channel = make(algorithm, learners() if cohort is None else cohort, setting)
    return Run(algorithm, channel, algorithm.start(np.zeros(algorithm.dim)))


def rounds(run: Run[Any], count: int) -> RoundReport:
    for _ in range(count):
        report = run.round()
    return report


def losses_at(model: Vector) -> Vector:
    return np.array([learner.loss(model) for learner in learners().values()])


# --- the tail ---


def tail(rule: TailRule = TailRule.SHARE, **settings: Any) -> LossTail:
    given: dict[str, Any] = {"theta": 0.4, "loss_bound": 10.0, "bins": 4096, "rule": rule}
    return LossTail(**(given | settings))


def shares(rule: LossTail, losses: Vector, *, count: float | None = None) -> Vector:
    heights = sum((rule.histogram(loss) for loss in losses), np.zeros(rule.bins, np.uint64))
    cut = rule.cut(heights, count)
    return np.array([rule.share(loss, cut) for loss in losses])


@given(
    st.lists(st.integers(0, 4095), min_size=1, max_size=40, unique=True),
    st.floats(0.02, 1.0, exclude_max=True),
)
def test_one_loss_in_a_bin_makes_shares_the_weights_of_the_knapsack(places: list[int], theta: float) -> None:
    losses = (np.array(places) + 0.5) * 10 / 4096
    found = shares(tail(theta=theta), losses)
    exact = tail_weights(losses, theta)
    assert found / found.sum() == pytest.approx(exact, abs=1e-9)
    assert found.sum() == pytest.approx(theta * len(losses))


@given(st.lists(st.floats(0, 12), min_size=1, max_size=40), st.floats(0.02, 1.0), st.integers(2, 40))
def test_shares_add_up_however_losses_fall_into_bins(losses: list[float], theta: float, bins: int) -> None:
    found = shares(tail(theta=theta, bins=bins), np.array(losses), count=len(losses))
    expected = 1.0 if theta == 1 else theta
    assert found.sum() == pytest.approx(expected * len(losses))


@pytest.mark.parametrize("loss", [0.0, 3.3, 10.0, 99.0])
def test_all_losses_in_one_bin_share_the_tail(loss: float) -> None:
    assert shares(tail(), np.full(5, loss)) == pytest.approx(np.full(5, 0.4))


def test_the_indicator_takes_who_reaches_the_quantile() -> None:
    losses = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert shares(tail(TailRule.INDICATOR), losses).tolist() == [0, 0, 0, 1, 1]
    coarse = tail(TailRule.INDICATOR, bins=10)
    assert coarse.share(99.0, TailThreshold(10.0)) == 1  # what is clipped to the bound reaches it


@pytest.mark.parametrize(
    ("rule", "exact"), [(TailRule.QUADRATIC, quadratic_weights), (TailRule.ENTROPIC, entropic_weights)]
)
def test_smoothed_shares_are_smoothed_weights_to_the_width_of_a_bin(rule: TailRule, exact: Any) -> None:
    losses = np.random.default_rng(3).uniform(0, 9, size=20)
    found = shares(tail(rule, nu=1.5), losses) / (0.4 * 20)
    assert found == pytest.approx(exact(losses, 0.4, 1.5), abs=2e-4)
    assert np.count_nonzero((found > 1e-3) & (found < 0.1)) > 3  # more than one client is between


def test_noise_may_push_bins_below_zero_and_a_share_stays_a_share() -> None:
    rng, edges = np.random.default_rng(5), np.linspace(0, 1, 17)
    for _ in range(300):
        heights = rng.normal(1, 3, size=16)
        place, share = read_boundary(heights, edges, 0.3, count=16)
        assert 0 <= place < 16
        assert 0 <= share <= 1


def test_the_boundary_is_sought_up_and_down_from_the_quantile() -> None:
    edges = np.arange(7.0)
    assert read_boundary([2, 0, 0, 0, 2, 0], edges, 0.25) == (4, 0.5)
    assert read_boundary([1, 0, 4, 0, 0, 1], edges, 0.75) == (2, 0.875)
    assert read_boundary([3, -1, 3], np.arange(4.0), 0.6) == (1, 0.0)
    assert read_boundary([1, -1, 0.5], np.arange(4.0), 0.9, count=10) == (0, 1.0)
    assert read_boundary([-1, 3], np.arange(3.0), 1.0, count=5) == (0, 0.0)


@pytest.mark.parametrize("share", [-5.0, 7.0])
def test_a_server_cannot_make_a_client_count_more_than_once(share: float) -> None:
    rule = tail(bins=10)
    assert rule.share(3.5, TailThreshold(3.0, share)) == (1.0 if share > 0 else 0.0)
    assert [rule.share(loss, TailThreshold(1e300, share)) for loss in (1.0, 9.5)] == [
        0.0,
        1.0 if share > 0 else 0.0,
    ]


# --- where it settles ---


@pytest.mark.parametrize("theta", [0.4, 0.5])
def test_it_settles_where_the_weights_of_the_tail_balance(theta: float) -> None:
    """With theta 0.5, the tail is two clients and a half."""
    run = run_of(simplicial(theta=theta))
    report = rounds(run, 60)
    weights = tail_weights(losses_at(run.model), theta)
    assert run.model == pytest.approx(weights @ CENTRES, abs=1e-5)
    assert report.facts["tail"] == pytest.approx(theta * 5)
    assert losses_at(run.model)[weights > 0].min() >= float(report.facts["threshold"])
    assert not np.allclose(run.model, CENTRES.mean(axis=0), atol=0.1)


def test_samples_weigh_in_the_quantile_and_in_the_mean() -> None:
    """Of 10 samples, the tail is 4: all three of the first client, and one of the two of the second."""
    cohort = learners()
    for learner, samples in zip(cohort.values(), [3, 2, 1, 1, 3], strict=True):
        learner.samples = samples
    run = run_of(simplicial(theta=0.4, weighted=True, cap=4), cohort)
    report = run.round()
    moved = 1 - 0.9**10
    assert run.model == pytest.approx(moved * (3 * CENTRES[0] + CENTRES[1]) / 4, abs=1e-5)
    assert report.facts["tail"] == pytest.approx(4)


def test_samples_count_up_to_the_cap() -> None:
    cohort = learners(samples=100)
    cohort[0].samples = 7
    run = run_of(simplicial(theta=0.9, weighted=True, cap=10), cohort)
    assert run.round().facts["tail"] == pytest.approx(0.9 * 47)


@pytest.mark.parametrize("rule", list(TailRule))
def test_with_everybody_in_the_tail_it_is_federated_averaging(rule: TailRule) -> None:
    nu = 0.1 if rule in (TailRule.QUADRATIC, TailRule.ENTROPIC) else None
    run = run_of(simplicial(theta=1.0, rule=rule, nu=nu))
    plain = run_of(FedAvg(dim=2, clients=5, clip=20.0, weighted=False))
    report = rounds(run, 5)
    rounds(plain, 5)
    assert run.model == pytest.approx(plain.model, abs=1e-6)
    assert report.sums == {"tail": 1}


def test_a_floor_mixes_in_the_mean_of_all() -> None:
    run = run_of(simplicial(theta=0.4, floor=0.25))
    report = rounds(run, 60)
    weights = 0.25 + 0.75 * np.array([1, 1, 0, 0, 0])
    assert run.model == pytest.approx(weights @ CENTRES / weights.sum(), abs=1e-5)
    assert report.facts["tail"] == pytest.approx(weights.sum())


@pytest.mark.parametrize("rule", ["quadratic", "entropic"])
def test_smoothed_weights_lead_to_a_point_between(rule: str) -> None:
    run = run_of(simplicial(theta=0.4, rule=rule, nu=50.0, bins=4000))
    rounds(run, 60)
    exact = quadratic_weights if rule == "quadratic" else entropic_weights
    assert run.model == pytest.approx(exact(losses_at(run.model), 0.4, 50.0) @ CENTRES, abs=1e-3)


# --- over channels ---


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rule": "indicator"},
        {"rule": "quadratic", "nu": 2.0},
        {"rule": "entropic", "nu": 2.0},
        {"weighted": True, "cap": 3},
        {"theta": 1.0},
    ],
    ids=str,
)
def test_secure_equals_plain_bit_for_bit(settings: dict[str, Any]) -> None:
    algorithm = simplicial(**({"theta": 0.5} | settings))
    secure, plain = (
        run_of(algorithm, learners(samples=2), make=make) for make in (secure_sum, insecure_plain_sum)
    )
    for _ in range(3):
        assert secure.round() == plain.round()
    assert secure.model.tobytes() == plain.model.tobytes()
    assert np.linalg.norm(secure.model) > 0.1


def test_a_noisy_histogram_is_the_same_over_both_channels() -> None:
    algorithm = simplicial(theta=0.5, bins=8, privacy=budget(clients=5, ratio=1.0))
    secure, plain = (run_of(algorithm, make=make) for make in (secure_sum, insecure_plain_sum))
    for _ in range(3):
        assert secure.round() == plain.round()
    assert secure.model.tobytes() == plain.model.tobytes()


class Recording(QuadraticLearner):
    """Counts how often it trains, and how often its loss is computed."""

    trained = 0
    judged = 0

    def loss(self, model: Vector) -> float:
        self.judged += 1
        return super().loss(model)

    def train(self, *arguments: Any, **settings: Any) -> Vector:
        self.trained += 1
        return super().train(*arguments, **settings)


def test_whoever_is_outside_trains_as_well_and_sends_zeros() -> None:
    algorithm, learner = simplicial(theta=0.4), Recording(CENTRES[2])
    client = algorithm.client(learner, algorithm.first_memory())
    model = np.zeros(2)
    histogram = client.answer(LossHistogram(model))["losses"]
    assert np.sum(histogram) == 1
    values = client.answer(TailUpdate(model, 5.0, 0.5))
    assert np.array_equal(values["update"], np.zeros(2))
    assert np.array_equal(values["weight"], [0.0])
    assert (learner.trained, learner.judged) == (1, 1)


def test_a_client_whose_loss_is_no_number_declines_both_sums() -> None:
    class Broken(QuadraticLearner):
        def loss(self, model: Vector) -> float:
            return float("nan")

    cohort: dict[int, QuadraticLearner] = learners()
    cohort[0] = Broken(CENTRES[0])
    run = run_of(simplicial(theta=0.5), cohort, make=secure_sum, dropout=0.3)
    report = run.round()
    assert report.clients == 4
    assert report.facts["tail"] == pytest.approx(2)
    assert report.completed


def test_if_the_tail_has_left_the_model_stays() -> None:
    def gone(member: int, stage: Stage, _round: int, number: int) -> bool:
        return member < 2 and stage is Stage.MASK and number == 1

    run = run_of(simplicial(theta=0.4), dropouts=gone, dropout=0.4)
    report = run.round()
    assert report.completed
    assert report.facts["stopped"] == "nobody is in the tail"
    assert np.array_equal(run.model, np.zeros(2))


def test_the_indicator_may_leave_nobody() -> None:
    """All losses are in one bin, whose right edge nobody reaches."""
    run = run_of(simplicial(theta=0.3, rule="indicator", bins=2, loss_bound=1000.0))
    assert run.round().facts["stopped"] == "nobody is in the tail"
    assert np.array_equal(run.model, np.zeros(2))


def test_whoever_drops_out_between_the_sums_is_not_counted() -> None:
    def gone(member: int, stage: Stage, _round: int, number: int) -> bool:
        return member == 0 and stage is Stage.MASK and number == 1

    run = run_of(simplicial(theta=0.4), dropouts=gone, dropout=0.3)
    run.round()
    assert run.model == pytest.approx((1 - 0.9**10) * CENTRES[1], abs=1e-6)


# --- a server that may be malicious ---


def test_a_tail_that_a_malicious_server_draws_is_refused() -> None:
    for floor in (0.0, LEAST_WEIGHT / 2):
        with pytest.raises(ParameterError, match="'tail', a value that the server chooses"):
            simplicial(floor=floor).check_trust(Trust.MALICIOUS)
    with pytest.raises(ParameterError, match="floor"):
        simplicial(bins=8, privacy=budget(ratio=1.0)).check_trust(Trust.MALICIOUS)
    simplicial().check_trust(Trust.CURIOUS)


def test_a_floor_or_noise_or_nobody_outside_is_accepted() -> None:
    simplicial(floor=LEAST_WEIGHT).check_trust(Trust.MALICIOUS)
    simplicial(privacy=budget()).check_trust(Trust.MALICIOUS)
    simplicial(theta=1.0).check_trust(Trust.MALICIOUS)


def test_with_a_floor_it_runs_under_a_malicious_server() -> None:
    run = run_of(simplicial(theta=0.4, floor=0.25), make=secure_sum, trust="malicious_server")
    assert run.round().completed
    assert np.linalg.norm(run.model) > 0.1


# --- private ---


def budget(*, clients: int = 20, rho: float = 1.0, rounds: int = 4, ratio: float = 0.25) -> HistogramBudget:
    promise = NoiseAssumptions(clients=clients, dropouts=0, colluders=0)
    return HistogramBudget(promise=promise, goal=Goal(rho=rho), rounds=rounds, ratio=ratio)


def private(**settings: Any) -> SimplicialFL:
    return simplicial(**({"clients": 20, "bins": 8, "privacy": budget()} | settings))


def test_every_part_of_every_sum_has_noise_and_the_rounds_cost_the_goal() -> None:
    algorithm = private()
    histogram, update = (each.spec for each in algorithm.sums())
    assert [part.name for spec in (histogram, update) for part in spec.parts] == ["losses", "update"]
    assert histogram.is_private
    assert update.is_private
    costs = [sum_rho(spec, roster=20) for spec in (histogram, update)]
    assert costs == [pytest.approx(0.25 / 4, rel=0.02), pytest.approx(0.75 / 4, rel=0.02)]
    assert 4 * sum(cost for cost in costs if cost is not None) <= 1.0 * (1 + 1e-9)


def test_a_budget_buys_the_rounds_it_was_planned_for_and_no_more() -> None:
    algorithm = private(privacy=budget(rounds=2))
    cohort = learners(np.random.default_rng(1).normal(size=(20, 2)))
    run = run_of(algorithm, cohort, make=secure_sum, max_rho=1.0)
    assert run.round().completed
    assert run.round().completed
    assert isinstance(run.round().failure, TooFewClients)


def test_the_sum_of_the_updates_holds_the_planned_noise() -> None:
    """The model moves by noise alone if all clients are content.

    Of 512 coordinates, the sum of squares follows chi-square. Seeds are fixed; were they not, a correct
    program would fail in one of 10^6 runs.
    """
    algorithm = private(dim=512, theta=0.5)
    run = run_of(algorithm, learners(np.zeros((20, 512))))
    report = run.round()
    plan = algorithm.update_noise
    assert plan is not None
    assert report.facts["tail"] == 10
    squares = float(np.sum((run.model * 10 / plan.sigma_released) ** 2))
    low, high = chi2.ppf(5e-7, 512), chi2.isf(5e-7, 512)
    assert low < squares < high


def test_the_private_divisor_is_public() -> None:
    """Theta of all, also where a floor lets everybody count, and whoever the noise says is in the tail."""
    for floor, weight in ((0.0, 10.0), (0.2, 12.0)):
        run = run_of(private(theta=0.5, floor=floor), learners(np.ones((20, 2))))
        assert run.round().facts["tail"] == pytest.approx(weight)


def test_the_private_tail_is_found_through_the_noise() -> None:
    """Of 20 clients, 10 are far away, and the tail is 5: each of the far ones counts by half.

    At a rho of 200 in a round, a bin has noise of 0.1, so the share is 0.5 to within 0.02. The mean has noise
    of 0.24 at most in each coordinate. The seed is fixed; without it, the test would fail in less than one
    of 10^7 runs.
    """
    centres = np.concatenate([np.full((10, 2), 3.0), np.zeros((10, 2))])
    algorithm = private(theta=0.25, loss_bound=18.0, privacy=budget(rho=800.0))
    run = run_of(algorithm, learners(centres))
    report = run.round()
    assert report.facts["threshold"] == 9.0
    assert report.facts["share"] == pytest.approx(0.5, abs=0.2)
    assert np.linalg.norm(run.model - 3.0 * (1 - 0.9**10)) < 1.5


def test_a_goal_may_be_epsilon() -> None:
    goal = Goal(epsilon=5.0, delta=1e-5)
    algorithm = private(privacy=replace(budget(), goal=goal, rounds=100))
    costs = [sum_rho(each.spec, roster=20) for each in algorithm.sums()]
    assert 100 * sum(cost for cost in costs if cost is not None) == pytest.approx(goal.rho_per_sum, rel=0.02)


def test_the_quantile_is_read_with_the_known_or_the_estimated_count() -> None:
    """Noise has left 4 of 8 clients in the histogram."""
    heights, rule = [1.0, 1.0, 1.0, 1.0], tail(TailRule.INDICATOR, theta=0.5, bins=4)
    assert rule.cut(heights, None).level == 5.0
    assert rule.cut(heights, 8).level == 10.0


def test_with_everybody_in_the_tail_all_of_the_budget_is_for_the_update() -> None:
    algorithm = private(theta=1.0)
    (only,) = algorithm.sums()
    assert sum_rho(only.spec, roster=20) == pytest.approx(1 / 4, rel=0.02)
    assert only.least_weight == 1


def test_a_histogram_of_noise_alone_moves_nothing() -> None:
    """With the estimated count, which the seed makes negative here."""
    algorithm = simplicial(known_count=False, bins=8, privacy=budget(clients=5, rho=1e-4))
    found = []
    for seed in range(24):
        run = run_of(algorithm, insecure_seed=bytes([seed]))
        report = run.round()
        assert report.completed
        if "stopped" in report.facts:
            assert np.array_equal(run.model, np.zeros(2))
            found.append(seed)
    assert found  # the chance that no sum of noise is negative is 2^-24, and the seeds are fixed


# --- parameters ---


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clip": None}, "clip must be set"),
        ({"loss_bound": None}, "loss_bound must be set"),
        ({"theta": 0.0}, "theta"),
        ({"theta": 1.1}, "theta"),
        ({"bins": 1}, "bins"),
        ({"floor": 1.1}, "floor"),
        ({"cap": 0}, "cap"),
        ({"bits": 1}, "bits"),
        ({"rule": "median"}, "rule must be one of share, indicator, quadratic, entropic"),
        ({"rule": "quadratic"}, "nu must be set"),
        ({"nu": 1.0}, "no smoothing"),
        ({"clients": 21, "privacy": budget()}, "set the promise's clients to 21"),
        ({"weighted": True, "privacy": budget()}, "Set weighted to False"),
    ],
)
def test_wrong_parameters_are_errors_that_say_what_to_set(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        simplicial(**settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"ratio": 1.5}, "ratio"),
        ({"rounds": 0}, "rounds"),
        ({"goal": Goal(rho=1.0, sums=3)}, "leave the sums of the goal at 1"),
    ],
)
def test_wrong_budgets_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        replace(budget(), **settings)
