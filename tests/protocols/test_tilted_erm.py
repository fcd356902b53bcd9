"""Tilted risk: the minimiser of its objective, its limits, and the shift that keeps weights near one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.averaging import UPDATE, WEIGHT
from protocols.fedavg import FedAvg
from protocols.tilted_erm import TERM, TILT
from secagg.errors import CorruptTotal, ParameterError
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from tests.protocols.baselines import assert_same_bits, quadratics, ran, settled

CENTRES = [[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]
CURVATURES = [1.0, 3.0, 0.5]


def term(dim: int = 2, clients: int = 3, **other: Any) -> TERM:
    settings: dict[str, Any] = {"loss_cap": 30.0, "clip": 10.0, "weighted": False, "bits": 48}
    return TERM(dim=dim, clients=clients, **(settings | other))


@pytest.mark.parametrize("t", [0.5, 1.0, -0.1])
def test_two_clients_meet_where_the_objective_is_least(t: float) -> None:
    # Of F = x^2 / 2 and 3 (2 - x)^2 / 2, found by halving the interval in which the slope changes its sign.
    def slope(x: float) -> float:
        return math.exp(t * x**2 / 2) * x - math.exp(t * 3 * (2 - x) ** 2 / 2) * 3 * (2 - x)

    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    model = settled(term(dim=1, clients=2, t=t), quadratics([[0.0], [2.0]], [1.0, 3.0], rate=0.05), 200)
    assert model[0] == pytest.approx(low, abs=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_vanishes_and_the_shift_is_the_tilted_loss(weighted: bool) -> None:
    samples = [1, 2, 4]
    learners = quadratics(CENTRES, CURVATURES, samples=samples)
    run, _ = ran(term(weighted=weighted, cap=4), learners, 200)
    counts = np.array(samples if weighted else [1, 1, 1]) / 4
    weights = counts * np.exp([each.loss(run.model) for each in learners.values()])
    slopes = [
        weight * each.gradient(run.model) for weight, each in zip(weights, learners.values(), strict=True)
    ]
    assert np.linalg.norm(np.sum(slopes, axis=0)) < 1e-6 * np.linalg.norm(slopes[0])
    assert run.state.shift == pytest.approx(math.log(weights.sum() / counts.sum()), abs=1e-8)
    assert run.round().facts["tilted_loss"] == pytest.approx(run.state.shift)


def test_the_larger_the_tilt_the_smaller_the_largest_loss() -> None:
    learners = quadratics(CENTRES, CURVATURES)
    models = [settled(term(t=t), learners, 60) for t in (-1.0, 0.0, 1.0)]
    worst = [max(each.loss(model) for each in learners.values()) for model in models]
    assert worst[0] > worst[1] + 0.1 > worst[2] + 0.1


@pytest.mark.parametrize("t", [0.0, 1e-12])
def test_without_a_tilt_it_is_federated_averaging(t: float) -> None:
    learners = quadratics(CENTRES, CURVATURES, samples=[1, 2, 4], steps=5)
    fedavg = FedAvg(dim=2, clients=3, clip=10.0, cap=4, bits=48)
    models = [settled(each, learners, 4) for each in (term(t=t, weighted=True, cap=4), fedavg)]
    assert models[0] == pytest.approx(models[1], abs=1e-9)


def test_the_shift_finds_losses_far_below_where_it_began() -> None:
    learners = quadratics(np.full((3, 2), 0.1))
    run, _ = ran(term(), learners, 3)
    assert run.state.shift == pytest.approx(30.0 - 3 * math.log(1e4))  # no round goes down by more
    for _ in range(6):
        run.round()
    assert run.state.shift == pytest.approx(0.0, abs=0.01)


@given(st.floats(-3, 3), st.floats(0, 1e300), st.floats(-1e300, 1e300))
def test_weights_stay_within_their_limits(t: float, loss: float, shift: float) -> None:
    algorithm = term(t=t)
    least = algorithm.sums()[0].least_weight
    assert min(least, 0.1) * (1 - 1e-12) <= algorithm.weight(loss, shift) <= 1 + 1e-12


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    learners = quadratics(CENTRES, CURVATURES, samples=[1, 20, 3000])
    assert_same_bits(term(bits=32, weighted=True, cap=1000), learners, rounds=8)


@pytest.mark.parametrize(("tilt", "samples"), [(0.0, 5), (1.0, 0)])
def test_weights_that_add_up_to_nothing_are_no_total(tilt: float, samples: int) -> None:
    algorithm = term(weighted=True)
    steps = algorithm.round(algorithm.start(np.zeros(2)))
    next(steps)
    parts = {UPDATE: np.ones(2), TILT: np.array([tilt]), WEIGHT: np.array([samples], np.uint64)}
    with pytest.raises(CorruptTotal, match="nothing"):
        steps.send(Total(parts, 3, 3))


def test_a_malicious_server_is_refused_unless_weights_have_a_floor() -> None:
    with pytest.raises(ParameterError, match=r"set least to 0\.1 of most"):
        term().check_trust(Trust.MALICIOUS)
    term(least=0.4, most=4.0).check_trust(Trust.MALICIOUS)
    term(t=0.0).check_trust(Trust.MALICIOUS)  # nobody weights anything
    assert term(least=0.4, most=5.0).sums()[0].least_weight == pytest.approx(0.08)


@pytest.mark.parametrize("name", ["loss_cap", "clip"])
def test_bounds_must_be_set(name: str) -> None:
    unset: dict[str, Any] = {name: None}
    with pytest.raises(ParameterError, match=f"{name} must be set: .*such as"):
        term(**unset)


@pytest.mark.parametrize("wrong", [{"t": math.inf}, {"least": 0.0}, {"least": 1.0}, {"most": 1.0}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        term(**wrong)


def test_one_client_may_weigh_as_much_as_all_together() -> None:
    """With a limit below the number of clients, another point would be found, and another loss reported."""
    centres = np.zeros((20, 1))
    centres[0] = 1.0
    t = 20.0
    run, _ = ran(term(dim=1, clients=20, t=t, loss_cap=2.0), quadratics(centres), 200)

    def tilted(w: float) -> float:
        losses = np.append(np.zeros(19) + w**2 / 2, (w - 1) ** 2 / 2)
        return float(np.log(np.mean(np.exp(t * losses))) / t)

    grid = np.linspace(0, 1, 4001)
    best = grid[np.argmin([tilted(w) for w in grid])]
    assert run.model[0] == pytest.approx(best, abs=1e-3)
    assert run.state.shift == pytest.approx(tilted(best), abs=1e-4)
