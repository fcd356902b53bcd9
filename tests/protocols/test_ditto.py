"""Ditto: the common model of federated averaging, and personal ones between it and every client's own."""

from __future__ import annotations

import numpy as np
import pytest

from protocols.averaging import Update
from protocols.ditto import Ditto
from protocols.fedavg import FedAvg
from protocols.local_only_training import LocalTraining
from protocols.personal_model import OwnModel
from protocols.privacy_budget import PrivacyBudget
from protocols.serialisation import as_vector, pack
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import CorruptTotal, ParameterError
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import Total
from tests.protocols.baselines import (
    Learners,
    all_missing,
    assert_same_bits,
    missing,
    quadratics,
    ran,
    settled,
)

CENTRES = [[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]
CURVATURES = [1.0, 3.0, 0.5]
STEPS = 5


def three() -> Learners:
    return quadratics(CENTRES, CURVATURES, samples=[1, 2, 4], steps=STEPS)


def ditto(**other: object) -> Ditto:
    settings: dict[str, object] = {"clip": 10.0, "bits": 48}
    return Ditto(dim=2, clients=3, **(settings | other))  # type: ignore[arg-type]


def test_personal_models_settle_between_the_common_one_and_their_own_optimum() -> None:
    run, channel = ran(ditto(pull=0.8), three(), 100)
    common = np.average(CENTRES, axis=0, weights=1 - (1 - 0.1 * np.array(CURVATURES)) ** STEPS)
    assert run.model == pytest.approx(common, abs=1e-9)
    for k, participant in channel.participants.items():
        # The minimiser of a / 2 |v - c|^2 + pull / 2 |v - w|^2.
        best = (CURVATURES[k] * np.array(CENTRES[k]) + 0.8 * common) / (CURVATURES[k] + 0.8)
        assert participant.personal(run.model) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_common_model_is_that_of_federated_averaging(weighted: bool) -> None:
    averaging = FedAvg(dim=2, clients=3, clip=10.0, weighted=weighted, cap=4, bits=48)
    models = [settled(each, three(), 4) for each in (ditto(weighted=weighted, cap=4), averaging)]
    assert models[0] == pytest.approx(models[1], abs=1e-10)


def test_without_a_pull_everybody_trains_alone() -> None:
    _, channel = ran(ditto(pull=0.0), three(), 4)
    _, alone = ran(LocalTraining(dim=2, clients=3), three(), 4)
    for k, participant in channel.participants.items():
        assert np.array_equal(participant.memory.model, alone.participants[k].memory.model)


def test_with_a_strong_pull_everybody_follows_the_common_model() -> None:
    run, channel = ran(ditto(pull=9.0, personal_steps=30), three(), 60)
    spread = [np.linalg.norm(each.personal(run.model) - run.model) for each in channel.participants.values()]
    alone = [np.linalg.norm(np.array(centre) - run.model) for centre in CENTRES]
    assert all(near < far / 3 for near, far in zip(spread, alone, strict=True))


def test_personal_steps_are_counted_by_themselves() -> None:
    learner = three()[0]
    client = ditto(pull=1.0, personal_steps=1).client(learner, OwnModel(as_vector([2.0, 2.0])))
    client.answer(Update(as_vector([1.0, 0.0])))
    # One step of rate 0.1 down the gradient (2, 2) and the pull (1, 2).
    assert client.memory().model == pytest.approx([1.7, 1.6])


def test_who_has_no_model_of_its_own_uses_the_common_one() -> None:
    algorithm, model = ditto(), as_vector([1.0, 2.0])
    assert algorithm.personal(algorithm.first_memory(), model, three()[0]) is model


def test_a_round_that_fails_leaves_personal_models_as_they_were() -> None:
    run, channel = ran(ditto(), three(), 2, dropouts=all_missing(2, Stage.REVEAL))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert not run.round().completed
    assert [pack(each.memory) for each in channel.participants.values()] == before


def test_only_who_was_counted_has_a_new_personal_model() -> None:
    run, channel = ran(ditto(), three(), 2, dropouts=missing(1, Stage.MASK, 2))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert run.round().clients == 2
    after = [pack(each.memory) for each in channel.participants.values()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


# --- with a median for a common model ---


def four(far: float) -> Learners:
    """Three clients around the point (1, 0), and one that wants to go elsewhere."""
    return quadratics([[0.0, 0.0], [2.0, 0.0], [1.0, -1.0], [far, far]], steps=STEPS)


def robust(**other: object) -> Ditto:
    settings: dict[str, object] = {"robust": True, "median_steps": 8, "bits": 48}
    return Ditto(dim=2, clients=4, **(settings | other))  # type: ignore[arg-type]


def test_a_median_does_not_follow_one_client_but_its_personal_model_does() -> None:
    mean, _ = ran(Ditto(dim=2, clients=4, clip=1e5), four(1000.0), 25)
    run, channel = ran(robust(), four(1000.0), 25)
    assert np.linalg.norm(run.model) < 3.0 < 100.0 < np.linalg.norm(mean.model)
    # Halfway between the common model, which still moves a little, and the client's own optimum at 1000.
    assert channel.participants[3].personal(run.model) == pytest.approx((run.model + 1000.0) / 2, abs=0.01)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_median_balances_the_directions_to_what_clients_train(weighted: bool) -> None:
    learners = four(3.0)
    for k, learner in learners.items():
        learner.samples = 1 + k
    run, _ = ran(robust(weighted=weighted, cap=4, median_steps=60), learners, 1)
    residuals = [each.train(np.zeros(2)) - run.model for each in learners.values()]
    weights = [k + 1 if weighted else 1 for k in range(4)]
    pulls = [n * each / np.linalg.norm(each) for n, each in zip(weights, residuals, strict=True)]
    assert np.linalg.norm(np.sum(pulls, axis=0)) < 1e-4


def test_steps_of_a_median_train_once_and_say_why_they_stopped() -> None:
    run, channel = ran(robust(), four(3.0), 0)
    report = run.round()
    assert report.facts == {"steps": 8, "stopped": "all steps were taken"}
    _, once = ran(Ditto(dim=2, clients=4, clip=10.0), four(3.0), 1)
    for k, participant in channel.participants.items():
        assert np.array_equal(participant.memory.model, once.participants[k].memory.model)


def test_secure_and_plain_medians_have_the_same_bits() -> None:
    assert_same_bits(robust(bits=32, weighted=True), four(3.0))


def test_a_median_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"median_steps": 0}, {"nu": 0.0}, {"cap": 0}):
        with pytest.raises(ParameterError, match=r"steps|nu|cap"):
            robust(**wrong)


# --- guards ---


def test_clients_without_samples_are_no_total() -> None:
    steps = ditto(weighted=True).round(ditto().start(np.zeros(2)))
    next(steps)
    with pytest.raises(CorruptTotal, match="no samples"):
        steps.send(Total({"update": np.ones(2), "weight": np.zeros(1, np.uint64)}, 3, 3))


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(ditto(bits=32), three())


def test_the_clip_must_be_set() -> None:
    with pytest.raises(ParameterError, match=r"clip must be set: .*such as"):
        ditto(clip=None)


@pytest.mark.parametrize("wrong", [{"pull": -1.0}, {"personal_steps": 0}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        ditto(**wrong)


def test_a_robust_common_model_has_no_private_variant() -> None:
    budget = PrivacyBudget(
        promise=NoiseAssumptions(clients=4, dropouts=1, colluders=0), goal=Goal(rho=1.0), rounds=10
    )
    with pytest.raises(ParameterError, match="unset robust or privacy"):
        robust(privacy=budget)
