"""Sketched SGD: what is not sent stays with clients, nothing is lost, and not every question is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.algorithm import LEAST_WEIGHT
from protocols.averaging import WEIGHT
from protocols.query_encoding import LARGEST
from protocols.serialisation import Vector, as_vector, pack
from protocols.sketched_sgd import SKETCH, VALUES, Heaviest, Sketch, SketchedSGD, UnsentUpdate, heaviest
from secagg.errors import CorruptTotal, MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.sum_spec import Total
from sims.runtime import SessionChannel
from tests.protocols.baselines import Learners, assert_same_bits, missing, quadratics, ran, settled

DIM, CLIENTS = 40, 4


def centres() -> Vector:
    return np.asarray(np.random.default_rng(5).normal(size=(CLIENTS, DIM)) * np.linspace(3.0, 0.1, DIM))


def four(**other: Any) -> Learners:
    return quadratics(centres(), **({"rate": 0.1} | other))


def sketched(**other: Any) -> SketchedSGD:
    usual = {"rows": 5, "columns": 8, "k": 4, "p2": 2, "clip": 100.0, "momentum": 0.0, "bits": 44}
    return SketchedSGD(dim=DIM, clients=CLIENTS, **(usual | other))


def waiting(channel: SessionChannel) -> Vector:
    """What each client has yet to send."""
    return np.array([each.memory.backlog for each in channel.participants.values()])


def test_it_settles_at_the_mean_though_a_round_moves_few_coordinates() -> None:
    algorithm = sketched()
    assert algorithm.sketch.size + algorithm.asked > DIM  # of a small model; that of a large one is less
    assert settled(algorithm, four(rate=0.2), 90) == pytest.approx(centres().mean(axis=0), abs=1e-6)
    run, _ = ran(algorithm, four(), 1)
    assert np.count_nonzero(run.model) == 4


def test_momentum_reaches_further_and_settles_at_the_same() -> None:
    slow, target = four(rate=0.02), centres().mean(axis=0)
    plain, _ = ran(sketched(p2=1), slow, 25)
    quick, _ = ran(sketched(p2=1, momentum=0.5), slow, 25)
    assert np.linalg.norm(quick.model - target) < 0.8 * np.linalg.norm(plain.model - target)
    assert settled(sketched(p2=1, momentum=0.5), four(), 200) == pytest.approx(target, abs=1e-3)


def test_nothing_is_lost() -> None:
    """What the model moved, what the server keeps and what clients have are all updates there were."""
    learners, algorithm = four(), sketched()
    run, channel = ran(algorithm, learners, 0)
    updates = np.zeros(DIM)
    for _ in range(12):
        updates += np.mean([each.train(run.model) - run.model for each in learners.values()], axis=0)
        assert run.round().completed
        together = run.model + run.state.kept + waiting(channel).mean(axis=0)
        assert together == pytest.approx(updates, abs=1e-9)
    assert np.linalg.norm(run.state.kept) > 0
    assert np.linalg.norm(waiting(channel)) > 0


def test_a_round_by_hand() -> None:
    learners, algorithm = four(), sketched(p2=3)
    run, channel = ran(algorithm, learners, 1)
    updates = np.array([each.train(np.zeros(DIM)) for each in learners.values()])
    table = np.mean([algorithm.sketch.of(each) for each in updates], axis=0)
    asked = heaviest(algorithm.sketch.estimate(table), 12)
    used = asked[heaviest(updates.mean(axis=0)[asked], 4)]
    expected = np.zeros(DIM)
    expected[used] = updates.mean(axis=0)[used]
    assert run.model == pytest.approx(expected, abs=1e-9)
    kept = np.zeros(DIM)
    kept[asked] = updates.mean(axis=0)[asked]
    assert run.state.kept == pytest.approx(kept - expected, abs=1e-9)
    updates[:, asked] = 0.0
    assert waiting(channel) == pytest.approx(updates)


def test_a_client_by_hand() -> None:
    algorithm, learner = sketched(momentum=0.9), four()[0]
    memory = UnsentUpdate(as_vector(np.ones(DIM)), as_vector(np.full(DIM, 2.0)))
    client, model = algorithm.client(learner, memory), as_vector(np.zeros(DIM))
    velocity = 0.9 + learner.train(model)
    backlog = 2.0 + velocity
    answer = client.answer(Sketch(model))
    assert answer[SKETCH] == pytest.approx(algorithm.sketch.of(backlog))
    places = as_vector([0, 3, 5, 8, 13, 21, 30, 39])
    assert client.answer(Heaviest(places))[VALUES] == pytest.approx(backlog[places.astype(int)])
    after = client.memory()
    velocity[places.astype(int)] = backlog[places.astype(int)] = 0.0
    assert after.velocity == pytest.approx(velocity)
    assert after.backlog == pytest.approx(backlog)


def test_who_says_nothing_keeps_what_it_has() -> None:
    memory = UnsentUpdate(as_vector(np.ones(DIM)), as_vector(np.ones(DIM)))
    assert sketched().client(four()[0], memory).memory() is memory


def test_what_waits_has_a_bound() -> None:
    run, channel = ran(sketched(clip=0.5, k=1, p2=1), four(), 6)
    norms = np.linalg.norm(waiting(channel), axis=1)
    assert norms.max() <= 0.5 + 1e-12
    assert norms.max() > 0.3
    assert np.count_nonzero(run.model) >= 1


def test_one_local_step_sends_a_gradient() -> None:
    learner = four(steps=7)[0]
    answer = sketched(local_steps=1).client(learner, UnsentUpdate()).answer(Sketch(as_vector(np.zeros(DIM))))
    gradient = learner.gradient(np.zeros(DIM))
    assert answer[SKETCH] == pytest.approx(sketched().sketch.of(-0.1 * gradient))


def test_clients_may_count_by_their_samples() -> None:
    samples = [1, 2, 3, 50]
    algorithm = sketched(weighted=True, cap=10, k=DIM, p2=1)
    run, _ = ran(algorithm, four(samples=samples, rate=1.0), 1)
    expected = np.average(centres(), axis=0, weights=np.minimum(samples, 10))
    assert run.model == pytest.approx(expected, abs=1e-8)
    assert [part.name for part in algorithm.sums()[1].spec.parts] == [VALUES, WEIGHT]
    assert ["samples" in each.reveals for each in algorithm.sums()] == [True, True]
    assert ["samples" in each.reveals for each in sketched().sums()] == [False, False]


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_leaves_between_the_sums_ends_the_round_and_nobody_forgets_anything(
    secure: bool,
) -> None:
    run, channel = ran(
        sketched(), four(), 2, secure=secure, dropouts=missing(1, Stage.MASK, 2, 1), dropout=0.3
    )
    before = pack(run.state), waiting(channel)
    assert not run.round().completed
    assert pack(run.state) == before[0]
    assert np.array_equal(waiting(channel), before[1])
    assert run.round().completed


def test_after_a_hostile_model_an_update_counts_as_before() -> None:
    """Or a server could silence those for good whom it pushes far with one model, and hear the others."""
    algorithm, far = sketched(momentum=0.9, clip=10.0), np.zeros(DIM)
    far[0] = LARGEST
    pushed = algorithm.client(four()[0], UnsentUpdate())
    pushed.answer(Sketch(as_vector(far)))
    found = []
    for more in (0.0, 1e-3):
        wanted = centres()[0] + np.eye(DIM)[7] * more / 0.1  # whose update is longer by so much there
        client = algorithm.client(quadratics(wanted, rate=0.1)[0], pushed.memory())
        client.answer(Sketch(as_vector(np.zeros(DIM))))
        backlog = client.memory().backlog
        assert backlog is not None
        found.append(backlog[7])
    assert found[1] - found[0] > LEAST_WEIGHT * 1e-3


@pytest.mark.parametrize("weighted", [False, True])
def test_secure_and_plain_sums_give_the_same_bits(weighted: bool) -> None:
    assert_same_bits(sketched(bits=32, momentum=0.9, weighted=weighted, cap=2), four(samples=[1, 2, 3, 4]))


GOOD = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 39.0]


@pytest.mark.parametrize(
    "places",
    [
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 40.0],
        [-1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        [1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    ],
    ids=["beyond", "below", "twice", "unsorted", "between"],
)
def test_places_that_no_honest_server_asks_for_are_refused(places: list[float]) -> None:
    client = sketched().client(four()[0], UnsentUpdate())
    client.answer(Sketch(as_vector(np.zeros(DIM))))
    client.answer(Heaviest(as_vector(GOOD)))
    with pytest.raises(MalformedMessage, match="rising order"):
        client.answer(Heaviest(as_vector(places)))


def test_places_before_the_model_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="before the model"):
        sketched().client(four()[0], UnsentUpdate()).answer(Heaviest(as_vector(GOOD)))


def test_a_small_model_is_asked_for_all_of_its_coordinates() -> None:
    algorithm = SketchedSGD(dim=3, clients=4, clip=10.0)
    assert algorithm.asked == 3
    assert algorithm.sums()[1].lengths == {"places": 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": None},
        {"k": 0},
        {"p2": 0},
        {"rows": 0},
        {"columns": 0},
        {"momentum": 1.0},
        {"server_rate": 0.0},
        {"local_steps": 0},
        {"bits": 1},
        {"cap": 0},
        {"seed": -1},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        sketched(**wrong)


def test_clients_without_samples_are_no_total() -> None:
    algorithm = sketched(weighted=True)
    steps = algorithm.round(algorithm.start(np.zeros(algorithm.dim)))
    next(steps)
    empty: dict[str, Any] = {SKETCH: np.zeros(algorithm.sketch.size), WEIGHT: np.zeros(1, np.uint64)}
    with pytest.raises(CorruptTotal, match="no samples"):
        steps.send(Total(empty, 3, 3))
