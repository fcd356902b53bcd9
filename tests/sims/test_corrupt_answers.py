"""Clients that train honestly and answer something else: what is changed, and by how much at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fl.attacks import ATTACKS, CorruptAnswer, SameValue, Scaling, SignFlip, corrupt_learners
from fl.errors import TrainingError
from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.quadratic_learner import QuadraticLearner
from protocols.quantised import Quantised
from protocols.run import Run
from protocols.serialisation import as_vector
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.client_state import learner_state, set_learner_state
from sims.scenario import Settings
from sims.simulation import simulate

CLIENTS, DIM, CLIP = 5, 4, 10.0
BAD = frozenset({1})
CENTRES = 1.0 + 0.1 * np.random.default_rng(2).normal(size=(CLIENTS, DIM))
MEAN = FedAvg(dim=DIM, clients=CLIENTS, clip=CLIP, weighted=False, bits=48)

Make = Callable[[AnyAlgorithm, Mapping[int, Learner], Setting], SessionChannel]


def liar(kind: type[Any], **parameters: Any) -> CorruptAnswer:
    return CorruptAnswer(kind(QuadraticLearner(CENTRES[0]), np.random.default_rng(1), **parameters))


def test_only_the_longest_vector_is_changed_and_training_is_honest() -> None:
    learner, update = liar(Scaling, factor=-3.0), np.array([1.0, -2.0, 0.5, 0.0])
    weight = np.array([7], np.uint64)
    found = learner.answered({"update": update, "weight": weight}, {"weight": 10}, [])
    assert found["update"].tolist() == [-3.0, 6.0, -1.5, 0.0]
    assert found["weight"] is weight
    honest = QuadraticLearner(CENTRES[0])
    assert learner.train(np.zeros(DIM)).tolist() == honest.train(np.zeros(DIM)).tolist()


def test_a_whole_message_is_what_was_sent_plus_the_answer() -> None:
    sent, update = np.array([10.0, 20.0, 30.0, 40.0]), np.ones(DIM)
    learner = liar(Scaling, factor=-2.0, whole=True)
    found = learner.answered({"update": update}, {}, [np.zeros(3), sent])
    assert (sent + found["update"]).tolist() == (-2.0 * (sent + update)).tolist()
    assert learner.answered({"update": update}, {}, [np.zeros(3)])["update"].tolist() == [-2.0] * DIM


def test_an_update_can_be_attacked_as_a_whole_model_too() -> None:
    start = np.full(DIM, 5.0)
    parts = QuadraticLearner(CENTRES[0]), np.random.default_rng(1)
    corrupt = Scaling(*parts, factor=-2.0, whole=True)
    assert corrupt.train(start) == pytest.approx(-2.0 * QuadraticLearner(CENTRES[0]).train(start))
    assert len(set(SameValue(*parts, whole=True).train(start).tolist())) == 1
    honest = QuadraticLearner(CENTRES[0]).proximal(start, 0.5)
    assert corrupt.proximal(start, 0.5) == pytest.approx(-2.0 * honest)


@pytest.mark.parametrize("kind", [SameValue, SignFlip])
def test_whole_numbers_stay_in_their_range(kind: type[Any]) -> None:
    """From 0 to 10 stands for -5 to 5: what is turned around is turned around the middle."""
    learner, honest = liar(kind), np.array([0, 5, 7, 10], np.uint64)
    for _ in range(20):
        found = learner.answered({"votes": honest}, {"votes": 10}, [])["votes"]
        assert found.dtype == np.uint64
        assert found.max() <= 10
        if kind is SameValue:
            assert len(set(found.tolist())) == 1
        else:
            assert found[0] >= 5 == found[1] >= found[3]


def test_a_place_in_a_histogram_is_not_changed_number_by_number() -> None:
    """Quantisation counts how large updates are, in more numbers than an update has if buckets are small."""
    algorithm = Quantised(dim=DIM, clients=CLIENTS, reach=1.0, bucket=2, levels=1 << 16)
    learners = corrupt_learners(quadratic(), "sign-flip", BAD, 1, answers=True)
    honest, channel = (
        insecure_plain_sum(algorithm, each, Setting(insecure_seed=b"answers"))
        for each in (quadratic(), learners)
    )
    runs = [Run(algorithm, each, algorithm.start(as_vector(np.zeros(DIM)))) for each in (honest, channel)]
    assert all(run.round().completed for run in runs)
    assert runs[0].state.halvings.tolist() == runs[1].state.halvings.tolist()
    assert (np.abs(runs[0].model - runs[1].model) > 0.1).all()


def one_round(make: Make, learners: Mapping[int, Learner]) -> tuple[bytes, np.ndarray[Any, Any]]:
    channel = make(MEAN, learners, Setting(insecure_seed=b"answers"))
    run = Run(MEAN, channel, MEAN.start(as_vector(np.zeros(DIM))))
    assert run.round().completed
    channel.close()
    return run.model.tobytes(), np.asarray(run.model)


def quadratic() -> dict[int, Learner]:
    return {k: QuadraticLearner(CENTRES[k], rate=0.5, steps=2) for k in range(CLIENTS)}


def test_bounds_hold_and_both_channels_give_the_same_bits() -> None:
    honest = [each.train(np.zeros(DIM)) for k, each in quadratic().items() if k not in BAD]
    found = []
    for make in (insecure_plain_sum, secure_sum):
        learners: Any = corrupt_learners(quadratic(), ATTACKS["same-value"](), BAD, seed=3, answers=True)
        bits, model = one_round(make, learners)
        found.append(bits)
        moved = CLIENTS * model - np.sum(honest, axis=0)
        assert np.linalg.norm(moved) == pytest.approx(CLIP, rel=1e-6)
        assert np.ptp(moved) == pytest.approx(0, abs=1e-6)
    assert found[0] == found[1]


def test_where_it_stands_in_what_it_draws_is_saved() -> None:
    learner, again = liar(SameValue), liar(SameValue)
    answer: dict[str, Any] = {"update": np.zeros(2)}
    learner.answered(answer, {}, [])
    set_learner_state(again, learner_state(learner))
    after, repeated = (each.answered(answer, {}, [])["update"].tolist() for each in (learner, again))
    assert after == repeated


@pytest.mark.parametrize("kind", ["label-flip", "omniscient"])
def test_what_makes_no_other_message_is_refused(kind: str) -> None:
    with pytest.raises(TrainingError, match="only an attack on messages can corrupt answers"):
        corrupt_learners(quadratic(), ATTACKS[kind](), BAD, 0, answers=True)


def test_a_scenario_attacks_answers() -> None:
    """One client of five says a hundred times what it should: as far as the clip lets it."""
    document: dict[str, Any] = {
        "rounds": 1,
        "data": {"kind": "digits"},
        "partition": {"clients": 5},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.1, "steps": 2, "batch": 20},
        "algorithm": {"name": "fedavg", "clip": 1000.0},
        "attack": {"kind": "scaling", "factor": -100.0, "fraction": 0.2, "level": "answer"},
    }
    attacked = simulate(Settings.model_validate(document))
    honest = simulate(Settings.model_validate({**document, "attack": None}))
    accuracy = [each["series"]["common"]["mean_accuracy"][-1] for each in (attacked, honest)]
    assert accuracy[0] < accuracy[1] / 2
