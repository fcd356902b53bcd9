"""Fed+: its fixed points, its personal parts, and the algorithms that its parameters make of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.fedplus import FedPlus, PenaltyGroup, Psi
from protocols.learner import Learner
from protocols.local_only_training import LocalTraining
from protocols.personal_model import OwnModel
from protocols.privacy_budget import PublicStepBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum

CLIENTS, DIM = 8, 6
SIGMA = 1.0
CLOSE = 1e-4

_draw = np.random.default_rng(7)
CENTRES: Vector = _draw.normal(scale=2.0, size=(CLIENTS, DIM))
CURVATURES: Vector = _draw.uniform(0.5, 2.0, size=(CLIENTS, DIM))
START: Vector = _draw.normal(size=DIM)

Make: TypeAlias = Callable[[AnyAlgorithm, dict[int, Learner], Setting], SessionChannel]


def _learners(*, rate: float = 0.3, steps: int = 20, clients: int = CLIENTS) -> dict[int, Learner]:
    return {
        k: QuadraticLearner(CENTRES[k], CURVATURES[k], samples=k + 1, rate=rate, steps=steps)
        for k in range(clients)
    }


@dataclass
class _Ran:
    common: Vector
    own: Vector  # a row for every client
    reports: list[RoundReport]


def _run(
    algorithm: AnyAlgorithm,
    learners: dict[int, Learner],
    *,
    rounds: int,
    make: Make = insecure_plain_sum,
    dropouts: DropoutSchedule = no_dropouts,
) -> _Ran:
    channel = make(algorithm, learners, Setting(insecure_seed=b"fed+", dropouts=dropouts))
    run = Run(algorithm, channel, algorithm.start(START))
    reports = [run.round() for _ in range(rounds)]
    own = np.array([each.personal(run.model) for each in channel.participants.values()])
    return _Ran(run.model, own, reports)


def _settled(algorithm: FedPlus, *, rounds: int = 30) -> _Ran:
    """What a run comes to, the same to the last bit through real machines and without them."""
    secure, plain = (
        _run(algorithm, _learners(), rounds=rounds, make=m) for m in (secure_sum, insecure_plain_sum)
    )
    assert secure.common.tobytes() == plain.common.tobytes()
    assert secure.own.tobytes() == plain.own.tobytes()
    assert [each.facts for each in secure.reports] == [each.facts for each in plain.reports]
    return plain


def _plus(**settings: Any) -> FedPlus:
    return FedPlus(**{"dim": DIM, "clients": CLIENTS, "sigma": SIGMA, "bits": 48, **settings})


def _envelope_gradient(points: Vector) -> Vector:
    """Of the Moreau envelopes of all losses, with smoothing 1 / sigma: each at its row of `points`."""
    return CURVATURES * SIGMA / (CURVATURES + SIGMA) * (points - CENTRES)


# --- fixed points: Corollary 1, and Theorem 2 for the rest ---


def test_corollary_1a_without_a_penalty_everybody_finds_its_own_best_model() -> None:
    ran = _settled(_plus(delta=0.0, clip=100.0))
    np.testing.assert_allclose(ran.own, CENTRES, atol=CLOSE)


def test_corollary_1b_without_a_personal_part_the_common_model_balances_the_envelopes() -> None:
    ran = _settled(_plus(delta=math.inf, clip=100.0))
    gradients = _envelope_gradient(np.tile(ran.common, (CLIENTS, 1)))
    np.testing.assert_allclose(gradients.mean(axis=0), 0.0, atol=CLOSE)
    np.testing.assert_allclose(ran.own, ran.common - gradients / SIGMA, atol=CLOSE)


@pytest.mark.parametrize("delta", [0.1, 2.0])
def test_corollary_1c_fedavg_plus(delta: float) -> None:
    ran = _settled(_plus(delta=delta, clip=100.0))
    gradients = _envelope_gradient((ran.own + delta * ran.common) / (1 + delta))
    np.testing.assert_allclose(ran.own, ran.common - (1 + delta) / (SIGMA * delta) * gradients, atol=CLOSE)
    np.testing.assert_allclose(ran.common, ran.own.mean(axis=0), atol=CLOSE)


HYBRID = (
    PenaltyGroup(start=0, stop=2, psi="squared", delta=0.3, clip=100.0, bits=48),
    PenaltyGroup(start=2, stop=4, psi="norm", delta=0.5, bits=48),
    PenaltyGroup(start=4, stop=DIM, psi="coordinates", delta=0.2, bits=48),
)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"psi": "norm", "delta": 0.5}, marks=pytest.mark.slow, id="FedGeoMed+"),
        pytest.param({"psi": "coordinates", "delta": 0.3}, marks=pytest.mark.slow, id="FedCoMed+"),
        pytest.param({"groups": HYBRID}, id="hybrid"),
    ],
)
def test_theorem_2_for_medians_and_hybrids(settings: dict[str, Any]) -> None:
    algorithm = _plus(tolerance=1e-5, **settings)
    ran = _settled(algorithm, rounds=20)
    theta = np.array([algorithm.theta(own - ran.common) for own in ran.own])
    gradients = _envelope_gradient(ran.common + theta)
    np.testing.assert_allclose(gradients.mean(axis=0), 0.0, atol=CLOSE)
    np.testing.assert_allclose(ran.own, ran.common + theta - gradients / SIGMA, atol=CLOSE)
    assert np.abs(theta).max() > 0.1  # somebody is far enough away to have a part of its own
    assert all(each.sums["residuals"] <= 12 for each in ran.reports)
    first, last = ran.reports[0].sums["residuals"], ran.reports[-1].sums["residuals"]
    assert last <= 3 < first  # it starts where the last round ended


def test_samples_weigh_if_wanted() -> None:
    ran = _run(_plus(delta=0.5, clip=100.0, weighted=True, cap=CLIENTS - 2), _learners(), rounds=40)
    weights = np.minimum(np.arange(1, CLIENTS + 1), CLIENTS - 2)
    np.testing.assert_allclose(ran.common, np.average(ran.own, axis=0, weights=weights), atol=CLOSE)


# --- Table 1: other algorithms, by parameters ---


# Table 1 of the paper: special cases of the family. With sigma = 0 no client is drawn anywhere.
TABLE_1: dict[str, partial[FedPlus]] = {
    "Local SGD": partial(FedPlus, psi=Psi.SQUARED, sigma=0.0, start_mix=0.0),
    "FedAvg": partial(FedPlus, psi=Psi.SQUARED, sigma=0.0, start_mix=1.0),
    "RFA": partial(FedPlus, psi=Psi.NORM, delta=1e-6, sigma=0.0, start_mix=1.0),
    "Coordinate median": partial(FedPlus, psi=Psi.COORDINATES, delta=1e-4, sigma=0.0, start_mix=1.0),
    "FedProx": partial(FedPlus, psi=Psi.SQUARED, delta=math.inf, start_mix=1.0),
}


def _table(name: str, **settings: Any) -> FedPlus:
    return TABLE_1[name](**{"dim": DIM, "clients": CLIENTS, "bits": 48, **settings})


@pytest.mark.parametrize("weighted", [False, True])
def test_fedavg_is_a_special_case(weighted: bool) -> None:
    one = _run(_table("FedAvg", clip=50.0, weighted=weighted), _learners(steps=3), rounds=5)
    other = FedAvg(dim=DIM, clients=CLIENTS, clip=50.0, weighted=weighted, bits=48)
    np.testing.assert_allclose(one.common, _run(other, _learners(steps=3), rounds=5).common, atol=1e-9)


def test_fedprox_is_a_special_case_with_a_learning_rate_of_eta_kappa() -> None:
    eta, sigma = 0.3, 0.7
    kappa = 1 / (1 + eta * sigma)
    one = _run(_table("FedProx", clip=50.0, sigma=sigma), _learners(rate=eta, steps=3), rounds=5)
    other = FedAvg(dim=DIM, clients=CLIENTS, clip=50.0, weighted=False, mu=sigma, bits=48)
    expected = _run(other, _learners(rate=eta * kappa, steps=3), rounds=5)
    np.testing.assert_allclose(one.common, expected.common, atol=1e-9)


def test_fedprox_comes_to_its_biased_point() -> None:
    """The mean of the clients' proximal maps has a fixed point that is not the best common model."""
    mu = 0.5
    settings: dict[str, Any] = {
        "dim": DIM,
        "clients": CLIENTS,
        "clip": 50.0,
        "bits": 48,
        "mu": mu,
        "cap": CLIENTS,
    }
    secure, plain = (
        _run(FedAvg(**settings), _learners(steps=40), rounds=30, make=make)
        for make in (secure_sum, insecure_plain_sum)
    )
    assert secure.common.tobytes() == plain.common.tobytes()
    samples = np.arange(1.0, CLIENTS + 1)[:, None]
    pull = samples * CURVATURES * mu / (CURVATURES + mu)
    np.testing.assert_allclose(plain.common, (pull * CENTRES).sum(axis=0) / pull.sum(axis=0), atol=CLOSE)
    best = (samples * CURVATURES * CENTRES).sum(axis=0) / (samples * CURVATURES).sum(axis=0)
    assert np.abs(plain.common - best).max() > 100 * CLOSE


@pytest.mark.parametrize("weighted", [False, True])
def test_rfa_is_a_special_case_bit_by_bit(weighted: bool) -> None:
    same: dict[str, Any] = {"steps": 12, "tolerance": 1e-6, "fast": True, "weighted": weighted}
    one = _run(_table("RFA", **same), _learners(steps=3), rounds=4)
    other = RFA(dim=DIM, clients=CLIENTS, nu=1e-6, bits=48, **same)
    assert one.common.tobytes() == _run(other, _learners(steps=3), rounds=4).common.tobytes()


def test_the_coordinate_median_is_a_special_case() -> None:
    odd = CLIENTS - 1
    model, learners = START, _learners(steps=3, clients=odd)
    for _ in range(3):
        model = np.median([learner.train(model) for learner in learners.values()], axis=0)
    ran = _run(_table("Coordinate median", steps=40), learners, rounds=3)
    np.testing.assert_allclose(ran.common, model, atol=1e-3)


def test_local_training_is_a_special_case_exactly() -> None:
    one = _run(_table("Local SGD", clip=50.0), _learners(steps=3), rounds=4)
    alone = _run(LocalTraining(dim=DIM, clients=CLIENTS, initial=START), _learners(steps=3), rounds=4)
    assert one.own.tobytes() == alone.own.tobytes()


# --- personal parts ---


def _penalty(psi: Psi, theta: Vector, delta: float) -> float:
    """Psi / sigma, as the paper has it."""
    match psi:
        case Psi.SQUARED:
            return delta / 2 * float(theta @ theta)
        case Psi.NORM:
            return delta * float(np.linalg.norm(theta))
        case Psi.COORDINATES:
            return delta * float(np.abs(theta).sum())


def _objective(psi: Psi, theta: Vector, difference: Vector, delta: float) -> float:
    return _penalty(psi, theta, delta) + float(np.sum((theta - difference) ** 2)) / 2


@pytest.mark.parametrize("psi", Psi)
@pytest.mark.parametrize("delta", [0.1, 1.5])
def test_personal_parts_are_what_a_numeric_minimisation_finds(psi: Psi, delta: float) -> None:
    group = PenaltyGroup(start=0, stop=3, psi=psi, delta=delta)
    for seed in range(5):
        difference = np.random.default_rng(seed).normal(size=3)
        found = minimize(
            lambda theta, d=difference: _objective(psi, theta, d, delta),
            difference,
            method="Powell",
            options={"xtol": 1e-10, "ftol": 1e-15, "maxiter": 10_000},
        )
        np.testing.assert_allclose(group.theta(difference), found.x, atol=1e-5)


numbers = st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(np.array)


@given(psi=st.sampled_from(Psi), delta=st.floats(0.01, 4), difference=numbers, other=numbers)
def test_no_other_personal_part_is_better(psi: Psi, delta: float, difference: Vector, other: Vector) -> None:
    """The objective is strongly convex: what it rises by is at least half the squared distance."""
    theta = PenaltyGroup(start=0, stop=3, psi=psi, delta=delta).theta(difference)
    rise = _objective(psi, other, difference, delta) - _objective(psi, theta, difference, delta)
    assert rise >= float(np.sum((other - theta) ** 2)) / 2 - 1e-9


POINTS = np.array([-3.0, -1.0, 0.0, 1.0, 10.0])


def _as_printed(difference: Vector, delta: float) -> Vector:
    return np.maximum(0.0, difference - delta * np.sign(difference))


def test_equation_12_as_printed_does_not_lead_to_a_median_and_ours_does() -> None:
    group = PenaltyGroup(start=0, stop=5, psi="coordinates", delta=0.1)
    printed, ours = POINTS.mean(), POINTS.mean()
    for _ in range(400):  # iteration (13) of the paper
        printed = POINTS.mean() - _as_printed(POINTS - printed, 0.1).mean()
        ours = POINTS.mean() - group.theta(POINTS - ours).mean()
    assert printed == pytest.approx(-2.6, abs=0.05)
    assert ours == pytest.approx(0.0, abs=1e-9)


def test_the_paper_s_toy_through_sums() -> None:
    learners: dict[int, Learner] = {
        k: QuadraticLearner(np.array([point]), rate=1.0, steps=1) for k, point in enumerate(POINTS)
    }
    algorithm = TABLE_1["Coordinate median"](dim=1, clients=5, delta=0.1, bits=48)
    run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.array([3.0])))
    report = run.round()
    assert run.model == pytest.approx([0.0], abs=1e-6)
    assert report.sums == {"residuals": report.facts["steps"]}
    assert 1 < report.sums["residuals"] <= 12


# --- who is absent, and what is left of a round that fails ---


def _session(dropouts: DropoutSchedule, **settings: Any) -> tuple[Run[Any], SessionChannel]:
    algorithm = _plus(**{"clip": 100.0, **settings})
    channel = secure_sum(algorithm, _learners(steps=3), Setting(dropout=0.3, dropouts=dropouts))
    return Run(algorithm, channel, algorithm.start(START)), channel


def _models(channel: SessionChannel) -> list[Vector | None]:
    return [each.memory.model for each in channel.participants.values()]


def test_who_is_absent_keeps_its_model() -> None:
    run, channel = _session(lambda k, stage, number, _sum: k == 2 and stage is Stage.MASK and number == 1)
    assert run.round().clients == CLIENTS
    before = _models(channel)
    assert run.round().clients == CLIENTS - 1
    for k, (old, new) in enumerate(zip(before, _models(channel), strict=True)):
        assert (new is old) == (k == 2)


def test_before_the_first_time_the_personal_model_is_the_common_one() -> None:
    run, channel = _session(lambda k, _stage, _number, _sum: k == 2)
    run.round()
    assert channel.participants[2].memory == OwnModel(None)
    assert channel.participants[2].personal(run.model) is run.model


def test_a_round_that_fails_leaves_everybody_as_it_was() -> None:
    run, channel = _session(lambda k, stage, number, _sum: k > 1 and stage is Stage.REVEAL and number == 1)
    run.round()
    before, common = _models(channel), run.model
    assert isinstance(run.round().failure, TooFewClients)
    assert all(new is old for old, new in zip(before, _models(channel), strict=True))
    assert run.model is common
    assert run.round().completed
    assert not any(new is old for old, new in zip(before, _models(channel), strict=True))


def test_when_a_client_leaves_between_the_steps_the_last_point_stands_and_it_was_counted_there() -> None:
    run, channel = _session(
        lambda k, stage, number, index: k == 2 and stage is Stage.MASK and (number, index) >= (1, 1),
        psi="norm",
    )
    run.round()
    before, common = _models(channel), run.model
    report = run.round()
    assert report.facts["stopped"] == "a client left"
    assert report.facts["steps"] == 1
    assert np.linalg.norm(run.model - common) == pytest.approx(report.facts["moved"])
    assert _models(channel)[2] is not before[2]


# --- noise ---

PRIVACY = PublicStepBudget(
    promise=NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0),
    goal=Goal(rho=1e4),
    rounds=10,
    step=0.5,
)


@pytest.mark.parametrize("settings", [{"clip": 20.0}, {"psi": "norm", "delta": 0.5, "steps": 4}])
def test_a_private_variant_has_no_sum_of_weights_and_settles_near_the_exact_one(
    settings: dict[str, Any],
) -> None:
    algorithm = _plus(privacy=PRIVACY, **settings)
    (only,) = algorithm.sums()
    assert only.spec.is_private
    assert [part.name for part in only.spec.parts] == ["layer0"]
    noisy = _run(algorithm, _learners(), rounds=10)
    exact = _run(_plus(**settings), _learners(), rounds=10)
    np.testing.assert_allclose(noisy.common, exact.common, atol=0.2)
    assert np.abs(noisy.common - exact.common).max() > 1e-4  # there is noise


def test_groups_would_spend_a_private_goal_several_times() -> None:
    with pytest.raises(ParameterError, match="one group"):
        _plus(groups=HYBRID, privacy=PRIVACY)


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "clip must be set"),
        ({"psi": "cubed"}, "squared, norm, coordinates"),
        ({"psi": "norm", "delta": 0.0}, "delta"),
        ({"psi": "norm", "delta": math.inf}, "delta"),
        ({"clip": 1.0, "delta": -1.0}, "delta"),
        ({"clip": 1.0, "delta": math.nan}, "delta"),
        ({"clip": 1.0, "sigma": -1.0}, "sigma"),
        ({"clip": 1.0, "start_mix": 1.5}, "start_mix"),
        ({"clip": 1.0, "cap": 0}, "cap"),
        ({"groups": (PenaltyGroup(start=0, stop=3, psi="norm"),)}, "end at 6"),
        ({"groups": (PenaltyGroup(start=1, stop=6, psi="norm"),)}, "gap"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        FedPlus(dim=DIM, clients=CLIENTS, **settings)


def test_a_mean_takes_one_sum_and_medians_twelve_at_most() -> None:
    assert _plus(clip=1.0).most_sums == 1
    assert _plus(psi="norm").most_sums == 12
    assert _plus(groups=HYBRID).most_sums == 12


def test_a_form_that_is_not_handled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    group = PenaltyGroup(start=0, stop=1, delta=0.1, clip=1.0)
    monkeypatch.setattr(PenaltyGroup, "form", "cubic")
    with pytest.raises(AssertionError, match="cubic"):
        group.theta(np.ones(1))
    with pytest.raises(AssertionError, match="cubic"):
        _ = group.layer
