"""Per-FedAvg: the point from which one step goes far, and batches that follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from protocols.algorithm import NoMemory
from protocols.averaging import Update
from protocols.fedavg import FedAvg
from protocols.per_fedavg import PerFedAvg
from protocols.quadratic_learner import QuadraticLearner
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from tests.protocols.baselines import Learners, assert_same_bits, quadratics, ran, settled

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
CURVATURES = np.array([1.0, 3.0, 0.5])
SAMPLES = [1, 2, 4]
ALPHA, BETA = 0.2, 0.1


def three(steps: int = 5) -> Learners:
    return quadratics(CENTRES, list(CURVATURES), samples=SAMPLES, rate=BETA, steps=steps)


def perfedavg(**other: object) -> PerFedAvg:
    settings: dict[str, object] = {"clip": 10.0, "alpha": ALPHA, "beta": BETA, "cap": 4, "bits": 48}
    return PerFedAvg(dim=2, clients=3, **(settings | other))  # type: ignore[arg-type]


@pytest.mark.parametrize("weighted", [False, True])
def test_models_settle_where_looking_ahead_leads(weighted: bool) -> None:
    # The gradient ahead is a (1 - alpha a) (w - c), so a step shrinks w - c by this:
    shrink = 1 - BETA * CURVATURES * (1 - ALPHA * CURVATURES)
    shares = (1 - shrink**5) * (SAMPLES if weighted else 1)
    common = np.average(CENTRES, axis=0, weights=shares)
    run, channel = ran(perfedavg(weighted=weighted), three(), 120)
    assert run.model == pytest.approx(common, abs=1e-8)
    for k, participant in channel.participants.items():
        adapted = common - ALPHA * CURVATURES[k] * (common - CENTRES[k])
        assert participant.personal(run.model) == pytest.approx(adapted, abs=1e-8)


def test_one_step_minimises_what_the_first_order_objective_says() -> None:
    model = settled(perfedavg(steps=1, weighted=False), three(), 250)
    slopes = [each.gradient(model - ALPHA * each.gradient(model)) for each in three().values()]
    assert np.linalg.norm(np.sum(slopes, axis=0)) < 1e-7


def test_without_adapting_it_is_federated_averaging() -> None:
    averaging = FedAvg(dim=2, clients=3, clip=10.0, cap=4, bits=48)
    run, channel = ran(perfedavg(alpha=0.0), three(), 4)
    assert run.model == pytest.approx(settled(averaging, three(), 4), abs=1e-10)
    assert channel.participants[1].personal(run.model) == pytest.approx(run.model, abs=0)


@dataclass
class Batches(QuadraticLearner):
    """Batch k has its optimum at k."""

    batch: Iterator[int] = field(default_factory=count)

    def gradient(self, model: Vector) -> Vector:
        return model - next(self.batch)


def test_every_gradient_is_that_of_another_batch() -> None:
    learner = Batches(np.zeros(1))
    algorithm = PerFedAvg(dim=1, clients=2, clip=10.0, weighted=False, alpha=ALPHA, beta=BETA, steps=2)
    answer = algorithm.client(learner, NoMemory()).answer(Update(as_vector([5.0])))
    model = 5.0
    for first, second in ((0, 1), (2, 3)):
        ahead = model - ALPHA * (model - first)
        model = model - BETA * (ahead - second)
    assert answer["update"] == pytest.approx([model - 5.0])


def test_the_learner_says_how_many_steps_unless_the_algorithm_does() -> None:
    updates = [
        perfedavg(steps=steps, weighted=False)
        .client(three(steps=own)[0], NoMemory())
        .answer(Update(as_vector([1.0, 1.0])))["update"]
        for steps, own in ((None, 3), (3, 7), (None, 7))
    ]
    assert np.array_equal(updates[0], updates[1])
    assert not np.array_equal(updates[0], updates[2])


def test_nobody_keeps_anything() -> None:
    _, channel = ran(perfedavg(), three(), 2)
    assert all(each.memory == NoMemory() for each in channel.participants.values())


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(PerFedAvg(dim=2, clients=3, clip=10.0), three())


def test_the_clip_must_be_set() -> None:
    with pytest.raises(ParameterError, match=r"clip must be set: .*such as"):
        perfedavg(clip=None)


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"beta": 0.0}, {"steps": 0}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        perfedavg(**wrong)
