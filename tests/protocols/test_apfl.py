"""APFL: mixtures that end at every client's own optimum, and how much of them is its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.apfl import APFL, Mixture
from protocols.averaging import Update
from protocols.fedavg import FedAvg
from protocols.local_only_training import LocalTraining
from protocols.serialisation import as_vector, pack
from secagg.errors import ParameterError
from secagg.local_session import Stage
from tests.protocols.baselines import (
    Learners,
    all_missing,
    assert_same_bits,
    missing,
    quadratics,
    ran,
    settled,
)

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
CURVATURES = np.array([1.0, 3.0, 0.5])


def three(steps: int = 1) -> Learners:
    return quadratics(CENTRES, list(CURVATURES), samples=[1, 2, 4], rate=0.3, steps=steps)


def apfl(**other: object) -> APFL:
    settings: dict[str, object] = {"clip": 10.0, "bits": 48}
    return APFL(dim=2, clients=3, **(settings | other))  # type: ignore[arg-type]


def test_with_single_steps_every_mixture_ends_at_its_client_s_own_optimum() -> None:
    run, channel = ran(apfl(alpha=0.8), three(), 200)
    common = np.average(CENTRES, axis=0, weights=CURVATURES)
    assert run.model == pytest.approx(common, abs=1e-8)
    for k, participant in channel.participants.items():
        assert participant.personal(run.model) == pytest.approx(CENTRES[k], abs=1e-7)
        # So what a client trains is its optimum, and as much beyond it as the common model falls short.
        assert participant.memory.own == pytest.approx((CENTRES[k] - 0.2 * common) / 0.8, abs=1e-7)


def test_one_round_by_hand() -> None:
    learner, own, common = three(steps=2)[1], as_vector([1.0, 1.0]), as_vector([2.0, 0.0])
    client = apfl(alpha=0.25).client(learner, Mixture(own, 0.25))
    answer = client.answer(Update(common))
    w, v = np.array(common), np.array(own)
    for _ in range(2):
        slope = 3 * (0.25 * v + 0.75 * w - CENTRES[1])
        w, v = w - 0.3 * 3 * (w - CENTRES[1]), v - 0.3 * 0.25 * slope
    assert answer["update"] == pytest.approx(w - common)
    assert client.memory().own == pytest.approx(v)
    assert client.memory().alpha == 0.25


def test_the_common_model_is_that_of_federated_averaging() -> None:
    averaging = FedAvg(dim=2, clients=3, clip=10.0, weighted=False, bits=48)
    models = [settled(each, three(steps=5), 4) for each in (apfl(adaptive=True), averaging)]
    assert models[0] == pytest.approx(models[1], abs=1e-10)


def test_nothing_of_one_s_own_is_federated_averaging_and_all_of_it_training_alone() -> None:
    run, common = ran(apfl(alpha=0.0), three(steps=5), 4)
    assert all(np.array_equal(each.personal(run.model), run.model) for each in common.participants.values())
    run, own = ran(apfl(alpha=1.0), three(steps=5), 4)
    _, alone = ran(LocalTraining(dim=2, clients=3), three(steps=5), 4)
    for k, participant in own.participants.items():
        assert np.array_equal(participant.personal(run.model), alone.participants[k].memory.model)


def test_who_has_no_model_of_its_own_uses_the_common_one() -> None:
    algorithm, model = apfl(), as_vector([1.0, 2.0])
    assert algorithm.personal(algorithm.first_memory(), model, three()[0]) is model


# --- alpha ---


@given(
    st.floats(0, 1),
    st.lists(st.floats(-1, 1), min_size=2, max_size=2),
    st.lists(st.floats(-1, 1), min_size=2, max_size=2),
)
def test_alpha_goes_down_the_slope_of_the_mixture_s_loss(
    alpha: float, own: list[float], common: list[float]
) -> None:
    learner, v, w = three()[0], as_vector(own), as_vector(common)
    client = apfl(adaptive=True).client(learner, Mixture(v, alpha))
    client.answer(Update(w))
    # With a quadratic loss, the mixture of the gradients is the gradient of the mixture.
    slope = float((v - w) @ (alpha * v + (1 - alpha) * w))
    expected = np.clip(alpha - 0.3 * (slope + 0.02 * alpha), 0, 1)
    assert client.memory().alpha == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(("own", "expected"), [([100.0, 0.0], 0.0), ([0.0, 0.0], 1.0)])
def test_alpha_stays_between_none_and_all(own: list[float], expected: float) -> None:
    client = apfl(adaptive=True).client(three()[0], Mixture(as_vector(own), 0.5))
    client.answer(Update(as_vector([50.0, 0.0])))
    assert client.memory().alpha == expected


def test_a_client_unlike_the_others_keeps_more_of_its_own() -> None:
    learners = quadratics([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [3.0, 3.0]], steps=5, rate=0.1)
    algorithm = APFL(dim=2, clients=4, clip=10.0, alpha=0.5, adaptive=True)
    _, channel = ran(algorithm, learners, 10)
    alphas = [each.memory.alpha for each in channel.participants.values()]
    assert alphas[3] > max(alphas[:3]) + 0.05


# --- what is kept ---


def test_a_round_that_fails_leaves_mixtures_as_they_were() -> None:
    run, channel = ran(apfl(adaptive=True), three(), 2, dropouts=all_missing(2, Stage.REVEAL))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert not run.round().completed
    assert [pack(each.memory) for each in channel.participants.values()] == before


def test_only_who_was_counted_has_a_new_mixture() -> None:
    run, channel = ran(apfl(adaptive=True), three(), 2, dropouts=missing(1, Stage.MASK, 2))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert run.round().clients == 2
    after = [pack(each.memory) for each in channel.participants.values()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(apfl(bits=32, adaptive=True), three(steps=5))


def test_the_clip_must_be_set() -> None:
    with pytest.raises(ParameterError, match=r"clip must be set: .*such as"):
        apfl(clip=None)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_mixture_is_between_none_and_all(alpha: float) -> None:
    with pytest.raises(ParameterError, match="alpha"):
        apfl(alpha=alpha)
