"""The chances that ``secagg plan`` tells are those of real drop-outs, and so is the noise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import comb
from typing import Any, TypeAlias

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CATALOGUE
from protocols.evaluation import EvaluationMetrics, WithEvaluation
from protocols.fedavg import FedAvg
from protocols.privacy_budget import PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.run import Run
from secagg.distributed_noise import NoiseAssumptions
from secagg.local_session import Stage
from secagg.messages import MAX_SUMS
from secagg.noise.privacy_goal import Goal
from secagg.noise.vector_calibration import calibrate_vector
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from sims.cli import main
from sims.plan.completion_probability import CompletionProbability, dropouts_to_plan_for
from sims.plan.cost_plan import Conditions, plan_costs
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum

ChannelFactory: TypeAlias = Callable[[AnyAlgorithm, Mapping[int, Any], Setting], SessionChannel]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- noise --------------------------------------------------------------------------------------------


def test_noise_is_planned_for_more_than_the_mean_loss(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("fedavg", "--clients", "40", "--dropout-training", "0.1", "--rho", "1", "--removable")
    bounds = ("--set", "clip=1", "--set", "weighted=no")
    found = planned(capsys, *arguments, *bounds)
    assert found["quorum"] == 40 - 9
    assert 0.99 <= found["round_completes"] < 1
    assert found["groups"][0]["completes"] == found["round_completes"]
    fewer = planned(capsys, *arguments, *bounds, "--dropouts", "4")
    assert fewer["quorum"] == 36
    assert fewer["round_completes"] == pytest.approx(0.629, abs=0.001)  # at most 4 of 40
    assert main(["plan", *arguments, *bounds]) == 0
    shown = capsys.readouterr().out
    assert "a total is released only over at least 31 clients" in shown
    assert "noise of standard deviation" in shown


def test_the_noise_that_is_told_is_that_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "fedavg",
        "--clients",
        "40",
        "--dim",
        "100",
        "--rho",
        "1",
        "--rounds",
        "1",
        "--dropouts",
        "8",
    )
    found = planned(capsys, *arguments, "--set", "clip=3", "--set", "weighted=no")
    (part,) = found["sums"][0]["parts"]
    promise = NoiseAssumptions(clients=40, dropouts=8, colluders=0)
    plan = calibrate_vector(promise=promise, goal=Goal(rho=1.0), size=100, clip=3.0)
    assert part["sigma_total"] == pytest.approx(plan.sigma_released)
    assert part["sigma_mean"] == pytest.approx(plan.sigma_released / 40)


def test_a_sum_with_noise_beside_one_without_needs_more_clients(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "simplicial",
        "--set",
        "clip=1",
        "--set",
        "loss_bound=5",
        "--rho",
        "1",
        "--set",
        "ratio=1",
        "--dropouts",
        "10",
    )
    found = planned(capsys, *arguments)
    assert [each["least_clients"] for each in found["sums"]] == [90, 51]
    assert main(["plan", *arguments]) == 0
    assert "at least 90; with fewer, there is too little noise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("clients", "lost"), [(40, Fraction(1, 10)), (7, Fraction(1, 3)), (100, Fraction(9, 10))]
)
def test_the_margin_of_drop_outs_is_the_least(clients: int, lost: Fraction) -> None:
    margin = dropouts_to_plan_for(clients, lost)
    exceeded = [
        sum(comb(clients, k) * lost**k * (1 - lost) ** (clients - k) for k in range(most + 1, clients + 1))
        for most in (margin, margin - 1)
    ]
    assert exceeded[0] <= Fraction(1, 100) < exceeded[1]
    assert dropouts_to_plan_for(clients, Fraction(0)) == 0
    assert dropouts_to_plan_for(clients, 1 - Fraction(1, 10**400)) == clients


# --- chances ------------------------------------------------------------------------------------------


def exact_chance(clients: int, least: int, groups: tuple[int, ...], p: Fraction, q: Fraction) -> Fraction:
    """That all sums of all groups are released, one group after the other, in fractions."""

    def pmf(n: int, k: int, chance: Fraction) -> Fraction:
        return comb(n, k) * chance**k * (1 - chance) ** (n - k)

    there = {m: pmf(clients, m, 1 - p) for m in range(clients + 1)}
    for sums in groups:
        after: dict[int, Fraction] = {}
        for m, chance in there.items():
            for stay in range(least, m + 1):
                passed = chance * (1 - q) ** (m * (sums - 1)) * pmf(m, stay, 1 - q)
                after[stay] = after.get(stay, Fraction(0)) + passed
        there = after
    return sum(there.values(), Fraction(0))


@pytest.mark.parametrize("p", [Fraction(0), Fraction(1, 10), Fraction(2, 5)])
@pytest.mark.parametrize("q", [Fraction(0), Fraction(1, 100), Fraction(1, 5)])
@pytest.mark.parametrize("clients", [5, 12])
def test_the_chance_that_a_group_completes_is_exact(clients: int, p: Fraction, q: Fraction) -> None:
    algorithm = CATALOGUE["rfa"].build(dim=3, clients=clients)
    outlook = plan_costs(algorithm, Conditions(dropout_training=p, dropout_sum=q))
    (group,) = outlook.groups
    exact = [float(exact_chance(clients, outlook.quorum, (sums,), p, q)) for sums in (1, 2, 3)]
    assert group.completes == pytest.approx(exact[-1], rel=1e-9)
    assert group.expected == pytest.approx(sum(exact), rel=1e-9)
    assert outlook.round_completes == pytest.approx(exact[0], rel=1e-9)  # one step is enough


@pytest.mark.parametrize("q", [Fraction(0), Fraction(1, 20)])
def test_later_groups_depend_on_those_before(q: Fraction) -> None:
    p, measures = Fraction(1, 4), EvaluationMetrics(loss_bound=5.0)
    rfa = CATALOGUE["rfa"].build(dim=3, clients=9)
    algorithm = WithEvaluation(algorithm=rfa, measures=measures)
    outlook = plan_costs(algorithm, Conditions(dropout_training=p, dropout_sum=q))
    exact = [
        float(exact_chance(9, outlook.quorum, groups, p, q)) for groups in ((3,), (3, 1), (3, 1, 1), (1,))
    ]
    assert [group.completes for group in outlook.groups] == pytest.approx(exact[:3], rel=1e-9)
    assert outlook.round_completes == pytest.approx(exact[3], rel=1e-9)  # whatever is measured then
    alone = WithEvaluation(algorithm=CATALOGUE["local"].build(dim=3, clients=9), measures=measures)
    assert plan_costs(alone, Conditions(dropout_sum=q)).round_completes == 1
    tail = CATALOGUE["simplicial"].build(dim=3, clients=9, clip=1.0, loss_bound=5.0)
    outlook = plan_costs(tail, Conditions(dropout_training=p, dropout_sum=q))
    assert (
        outlook.round_completes
        == outlook.groups[1].completes
        == pytest.approx(
            exact[3] if not q else float(exact_chance(9, outlook.quorum, (1, 1), p, q)), rel=1e-9
        )
    )


def test_one_absentee_ends_a_round_that_needs_all_clients(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("afl", "--set", "clip=1", "--set", "loss_cap=4", "--clients", "10")
    losses = ("--dropout-training", "0.01", "--dropout-sum", "0.02")
    found = planned(capsys, *arguments, *losses)
    assert found["round_completes"] == pytest.approx(0.99**10 * 0.98**20)
    assert main(["plan", *arguments, *losses]) == 0
    assert "if one client is missing, the round ends" in capsys.readouterr().out
    assert planned(capsys, *arguments)["round_completes"] == 1


def test_chances_at_their_ends() -> None:
    sure = CompletionProbability(5, training=Fraction(0), in_sum=Fraction(0))
    assert [sure.released([3], least) for least in (5, 6)] == [1, 0]
    assert (
        CompletionProbability(5, training=1 - Fraction(1, 10**400), in_sum=Fraction(0)).released([1], 2) == 0
    )


class Losses:
    """Who is lost: in training, or at `stage` of a sum; and then for the rest of the round."""

    def __init__(self, stage: Stage, *, training: float, in_sum: float) -> None:
        self._stage, self._training, self._in_sum = stage, training, in_sum
        self._rng = np.random.default_rng(11)
        self._last: dict[tuple[int, int], int] = {}  # the sum in which a client is lost; -1 for training

    def __call__(self, member: int, stage: Stage, round_number: int, sum_number: int) -> bool:
        if sum_number < 0:
            return False  # at the set-up everybody is there
        last = self._last.setdefault((member, round_number), self._draw())
        if sum_number == last:
            return self._stage is Stage.MASK or stage is Stage.REVEAL
        return sum_number > last

    def _draw(self) -> int:
        if self._rng.random() < self._training:
            return -1
        return int(self._rng.geometric(self._in_sum)) - 1 if self._in_sum else 1000


def simulate(
    algorithm: AnyAlgorithm, make: ChannelFactory, conditions: Conditions, *, stage: Stage, rounds: int
) -> list[dict[str, int]]:
    """The sums of every round that was completed, and none of the others."""
    dropouts = Losses(
        stage, training=float(conditions.dropout_training), in_sum=float(conditions.dropout_sum)
    )
    rng = np.random.default_rng(2)
    few = {k: QuadraticLearner(rng.normal(size=2), steps=1) for k in range(algorithm.clients)}
    setting = Setting(
        dropouts=dropouts,
        trust=conditions.params.trust,
        corrupt=conditions.params.corrupt,
        dropout=conditions.dropout,
    )
    channel = make(algorithm, few, setting)
    run = Run(algorithm, channel, algorithm.start(np.zeros(2)))
    found = []
    for _ in range(rounds):
        report = run.round()
        found.append(dict(report.sums) if report.completed else {})
        channel.close()  # in the next round everybody is back
    return found


def deviations(hits: int, rounds: int, chance: float) -> float:
    """How many standard deviations are between what happened and what was planned."""
    return (hits - rounds * chance) / max(math.sqrt(rounds * chance * (1 - chance)), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.REVEAL])
def test_simulated_drop_outs_stop_groups_as_often_as_planned(stage: Stage) -> None:
    """400 rounds; 5 standard deviations are off with a chance below 1e-6.

    The plan holds for losses after an input was sent, and is a bound from below for losses before.
    """
    algorithm = CATALOGUE["rfa"].build(dim=2, clients=8)
    conditions = Conditions(dropout_training=Fraction(1, 5), dropout_sum=Fraction(1, 25))
    outlook = plan_costs(algorithm, conditions)
    runs = simulate(algorithm, insecure_plain_sum, conditions, stage=stage, rounds=400)
    (group,) = outlook.groups
    whole = deviations(sum(each.get("residuals") == 3 for each in runs), 400, group.completes)
    some = deviations(sum(bool(each) for each in runs), 400, outlook.round_completes)
    assert whole > -5
    assert some > -5
    assert some < 5  # one sum completes a round
    if stage is Stage.REVEAL:
        assert whole < 5


@pytest.mark.parametrize("corrupt", [6, 7])
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.REVEAL])
def test_with_many_colluders_real_sums_need_the_quorum(corrupt: int, stage: Stage) -> None:
    """The quorum is above the threshold there, and the threshold is only about who reveals shares."""
    algorithm = CATALOGUE["fedavg"].build(dim=2, clients=10, clip=10.0)
    conditions = Conditions(
        params=SessionParams(trust=Trust.CURIOUS, corrupt=corrupt, sums=MAX_SUMS), dropout_sum=Fraction(1, 10)
    )
    outlook = plan_costs(algorithm, conditions)
    assert outlook.quorum == corrupt + 2 > outlook.threshold
    rng = np.random.default_rng(2)
    few = {k: QuadraticLearner(rng.normal(size=2), steps=1) for k in range(10)}

    def lost(member: int, now: Stage, round_number: int, sum_number: int) -> bool:
        """In round k, the first k clients."""
        return now is stage and sum_number >= 0 and member < round_number

    channel = secure_sum(algorithm, few, Setting(dropouts=lost, corrupt=corrupt, dropout=conditions.dropout))
    run = Run(algorithm, channel, algorithm.start(np.zeros(2)))
    completed = []
    for _ in range(5):
        completed.append(run.round().completed)
        channel.close()  # in the next round everybody is back
    least = outlook.quorum if stage is Stage.MASK else outlook.threshold
    assert completed == [10 - gone >= least for gone in range(5)]


@pytest.mark.slow
def test_rounds_with_noise_fail_as_seldom_as_planned() -> None:
    """150 rounds, with noise for a tenth of clients that are lost on average, and with the margin."""
    lost = Fraction(1, 10)
    for dropouts, least in ((4, 0.6), (dropouts_to_plan_for(40, lost), 0.99)):
        promise = NoiseAssumptions(clients=40, dropouts=dropouts, colluders=0)
        privacy = PrivacyBudget(promise=promise, goal=Goal(rho=1.0), rounds=300)
        algorithm = FedAvg(dim=2, clients=40, clip=1.0, weighted=False, privacy=privacy)
        conditions = Conditions(dropout_training=lost)
        planned_chance = plan_costs(algorithm, conditions).round_completes
        assert planned_chance >= least
        runs = simulate(algorithm, insecure_plain_sum, conditions, stage=Stage.MASK, rounds=150)
        assert abs(deviations(sum(bool(each) for each in runs), 150, planned_chance)) < 5
