"""q-FFL: the minimiser of its objective, its limits, and the bounds of what is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.averaging import UPDATE, Update
from protocols.fedavg import FedAvg
from protocols.qffl import QFFL, STIFFNESS
from protocols.rounds import Outcome
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal, ParameterError
from secagg.sum_spec import LInf, Total
from secagg.trust_levels import Trust
from tests.protocols.baselines import assert_same_bits, quadratics, settled

RATE = 0.1
CENTRES = [[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]
CURVATURES = [1.0, 3.0, 0.5]


def qffl(dim: int = 2, clients: int = 3, **other: Any) -> QFFL:
    settings: dict[str, Any] = {
        "rate": RATE,
        "loss_cap": 30.0,
        "clip": 10.0,
        "weighted": False,
        "bits": 48,
    }
    return QFFL(dim=dim, clients=clients, **(settings | other))


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_two_clients_meet_where_the_objective_is_least(q: float) -> None:
    # F = a x^2 / 2 at the distances x and 4 - x: F^q F' is alike for both where
    # (a^(q+1) x^(2q+1)) is, so the distances have this ratio.
    near = (3.0 / 1.0) ** ((q + 1) / (2 * q + 1))
    expected = 4 * near / (1 + near)
    model = settled(qffl(dim=1, clients=2, q=q), quadratics([[0.0], [4.0]], [1.0, 3.0]), 150)
    assert model[0] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_the_objective_vanishes(weighted: bool) -> None:
    samples = [1, 2, 4]
    learners = quadratics(CENTRES, CURVATURES, samples=samples)
    model = settled(qffl(q=2.0, weighted=weighted, cap=4), learners, 300)
    counts = samples if weighted else [1, 1, 1]
    each_counts = zip(counts, learners.values(), strict=True)
    slopes = [n * each.loss(model) ** 2 * each.gradient(model) for n, each in each_counts]
    assert np.linalg.norm(np.sum(slopes, axis=0)) < 1e-5 * max(np.linalg.norm(each) for each in slopes)


def test_the_larger_q_the_smaller_the_largest_loss() -> None:
    learners = quadratics(CENTRES, CURVATURES)
    models = [settled(qffl(q=q), learners, 60) for q in (0.0, 1.0, 4.0)]
    worst = [max(each.loss(model) for each in learners.values()) for model in models]
    assert worst[0] > worst[1] + 0.1 > worst[2] + 0.1


def test_without_a_power_it_is_federated_averaging() -> None:
    learners = quadratics(CENTRES, CURVATURES, samples=[1, 2, 4], steps=5)
    fedavg = FedAvg(dim=2, clients=3, clip=10.0, cap=4, bits=48)
    models = [settled(each, learners, 4) for each in (qffl(q=0.0, weighted=True, cap=4), fedavg)]
    assert models[0] == pytest.approx(models[1], abs=1e-10)


@given(
    st.floats(0.0, 4.0),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 3)), min_size=2, max_size=5),
    st.floats(-2, 2),
)
def test_a_round_is_that_of_the_paper(q: float, clients: list[tuple[float, float]], at: float) -> None:
    learners = quadratics([[centre] for centre, _ in clients], [a for _, a in clients], steps=3)
    algorithm, model = qffl(dim=1, clients=len(clients), q=q, clip=100.0), as_vector([at])
    deltas, steepness = 0.0, 0.0
    for each in learners.values():
        loss = min(max(each.loss(model), algorithm.loss_floor), 30.0)
        gradient = float((model - each.train(model))[0]) / RATE
        deltas += loss**q * gradient
        steepness += q * loss ** (q - 1) * gradient**2 + loss**q / RATE
    answers = [
        algorithm.client(each, algorithm.first_memory()).answer(Update(model)) for each in learners.values()
    ]
    parts = {
        name: np.sum([np.asarray(each[name]) for each in answers], axis=0) for name in (UPDATE, STIFFNESS)
    }
    assert next_model(algorithm, at, parts)[0] == pytest.approx(at - deltas / steepness, abs=1e-9)


def next_model(algorithm: QFFL, at: float, parts: dict[str, Vector]) -> Vector:
    steps = algorithm.round(algorithm.start(as_vector([at])))
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(Total(parts, 3, 3))
    outcome = stop.value.value
    assert isinstance(outcome, Outcome)
    return algorithm.model(outcome.state)


@given(st.floats(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_no_client_exceeds_its_bound_and_one_can_reach_it(q: float, place: float, length: float) -> None:
    algorithm = qffl(q=q)
    bound = algorithm.sums()[0].spec.parts[1].bound
    assert isinstance(bound, LInf)
    loss = algorithm.within(algorithm.loss_floor + place * 30.0)
    assert algorithm.stiffness(loss, length * 10.0) <= bound.limit * (1 + 1e-12)
    ends = [algorithm.stiffness(end, 10.0) for end in (algorithm.loss_floor, 30.0)]
    assert max(ends) == bound.limit


def test_losses_beyond_the_limits_count_as_the_limits() -> None:
    algorithm = qffl()
    assert algorithm.weight(algorithm.within(1e9)) == 1.0
    assert algorithm.weight(algorithm.within(0.0)) == 1e-3 / 30.0


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(qffl(bits=32, weighted=True), quadratics(CENTRES, CURVATURES, samples=[1, 20, 3000]))


def test_weights_that_add_up_to_nothing_are_no_total() -> None:
    steps = qffl().round(qffl().start(np.zeros(2)))
    next(steps)
    with pytest.raises(CorruptTotal, match="nothing"):
        steps.send(Total({UPDATE: np.ones(2), STIFFNESS: np.zeros(1)}, 3, 3))


def test_a_malicious_server_is_refused_unless_all_weigh_the_same() -> None:
    """A floor on the loss is not enough: one client's squared norm may be most of the stiffness."""
    for floor in (1e-3, 3.0, 29.0):
        with pytest.raises(ParameterError, match="set q to 0"):
            qffl(loss_floor=floor).check_trust(Trust.MALICIOUS)
    qffl(q=0.0).check_trust(Trust.MALICIOUS)
    qffl().check_trust(Trust.CURIOUS)


@pytest.mark.parametrize("name", ["rate", "loss_cap", "clip"])
def test_bounds_must_be_set(name: str) -> None:
    unset: dict[str, Any] = {name: None}
    with pytest.raises(ParameterError, match=f"{name} must be set: .*such as"):
        qffl(**unset)


@pytest.mark.parametrize("wrong", [{"q": -1.0}, {"loss_floor": 0.0}, {"loss_floor": 30.0}, {"rate": 0.0}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        qffl(**wrong)


def test_bounds_that_no_sum_can_hold_are_refused() -> None:
    with pytest.raises(ParameterError, match="too large for any sum") as caught:
        qffl(q=1e100, clip=1e100)
    assert caught.value.parameter == "q"
