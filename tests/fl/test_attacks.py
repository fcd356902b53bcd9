"""Corrupt clients: what each attack does to data and updates, to a mean, and to a geometric median."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from torch import nn

from fl.attacks import (
    ATTACKS,
    Gaussian,
    Omniscient,
    SameValue,
    Scaling,
    SignFlip,
    Straggler,
    attack,
    by_count,
    by_samples,
    corrupt_data,
    corrupt_learners,
    flip_labels,
    negate_images,
    random_labels,
    reverse_text,
    slow_down,
)
from fl.attacks.omniscient import against
from fl.cooperative_batcher import CooperativeBatcher, PendingRequest
from fl.crowd import Crowd
from fl.errors import DataError, TrainingError
from fl.federation import ClientData, Federation
from fl.learner_wrapper import WrappedLearners
from fl.samples import Array, Samples
from fl.training_settings import Training
from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.learner import Learner, Steering
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.run import Run
from sims.runtime import Setting, insecure_plain_sum, secure_sum

CLIENTS, DIM = 12, 20
BAD = frozenset({2, 5, 11})  # a quarter
CENTRES = 2.0 + 0.1 * np.random.default_rng(5).normal(size=(CLIENTS, DIM))
SIZES = [10 + 3 * k for k in range(CLIENTS)]
START = np.full(DIM, 0.5)


def rng_of(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def learner_of(client: int = 0, steps: int = 2) -> QuadraticLearner:
    return QuadraticLearner(CENTRES[client], samples=SIZES[client], rate=0.5, steps=steps)


def cohort() -> WrappedLearners:
    return WrappedLearners({client: learner_of(client) for client in range(CLIENTS)})


# --- data ------------------------------------------------------------------------------------------------


def labelled(labels: list[int], dtype: str = "int64") -> Samples:
    return Samples(np.zeros((len(labels), 2), np.float32), np.array(labels, dtype))


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_labels_are_reversed(dtype: str) -> None:
    flipped = flip_labels(labelled([0, 1, 5, 9], dtype), 10)
    assert flipped.y.tolist() == [9, 8, 4, 0]
    assert flipped.y.dtype == dtype
    assert flip_labels(labelled([0, 1, 1], dtype), 2).y.tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_characters_change_digit_and_case(dtype: str) -> None:
    everyone = labelled(list(range(62)), dtype)
    flipped = flip_labels(everyone, 62, rule="characters")
    assert flipped.y[:10].tolist() == [1, 8, 5, 2, 9, 6, 3, 0, 7, 4]
    assert flipped.y[10:36].tolist() == list(range(36, 62))
    assert flipped.y[36:].tolist() == list(range(10, 36))
    assert flipped.y.dtype == dtype
    digits = flip_labels(labelled(list(range(10))), 10, rule="characters")
    assert digits.y.tolist() == flipped.y[:10].tolist()


def test_random_labels_are_uniform_and_repeatable() -> None:
    samples = labelled([3] * 4000, "uint8")
    drawn = random_labels(samples, 4, rng_of()).y
    assert drawn.dtype == np.uint8
    assert np.bincount(drawn) == pytest.approx(np.full(4, 1000), abs=130)  # 4.7 standard deviations
    assert np.array_equal(drawn, random_labels(samples, 4, rng_of()).y)
    assert not np.array_equal(drawn, random_labels(samples, 4, rng_of(8)).y)


def test_images_are_negated_and_keep_their_labels() -> None:
    images = Samples(np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 1, 2, 2), np.array([3, 1]))
    negated = negate_images(images)
    assert negated.x == pytest.approx(1 - images.x)
    assert negated.x.dtype == np.float32
    assert negated.y.tolist() == [3, 1]
    assert negate_images(Samples(np.zeros((0, 4)), np.zeros(0, np.int64))).x.shape == (0, 4)


def test_text_is_read_backwards() -> None:
    text = Samples(np.array([[1, 2, 3], [4, 5, 6]], np.uint8), np.array([9, 7]))
    backwards = reverse_text(text)
    assert backwards.x.tolist() == [[9, 3, 2], [7, 6, 5]]
    assert backwards.y.tolist() == [1, 4]
    assert [backwards.x.dtype.name, backwards.y.dtype.name] == ["uint8", "int64"]
    again = reverse_text(backwards)
    assert (again.x.tolist(), again.y.tolist()) == (text.x.tolist(), text.y.tolist())


REGRESSION = Samples(np.zeros((2, 3)), np.array([0.5, 1.0]))


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        (lambda: flip_labels(REGRESSION, None), "a regression cannot be flipped"),
        (lambda: flip_labels(REGRESSION, 3), "a regression cannot be flipped"),
        (lambda: random_labels(REGRESSION, None, rng_of()), "a regression cannot be drawn at random"),
        (lambda: flip_labels(labelled([0, 4]), 4), "labels must be from 0 to 3"),
        (lambda: flip_labels(labelled([-1]), 4), "labels must be from 0 to 3"),
        (lambda: flip_labels(labelled([0]), 4, rule="upside-down"), 'rule must be "reverse"'),
        (lambda: flip_labels(labelled([0]), 26, rule="characters"), "10 digits or 62 characters, not 26"),
        (lambda: negate_images(Samples(np.full((1, 4), 255, np.uint8), np.array([0]))), "floats from 0 to 1"),
        (lambda: negate_images(Samples(np.full((1, 4), 1.5), np.array([0]))), "floats from 0 to 1"),
        (lambda: negate_images(Samples(np.full((1, 4), -0.5), np.array([0]))), "floats from 0 to 1"),
        (lambda: reverse_text(labelled([0])), "only text can be reversed"),
        (lambda: reverse_text(Samples(np.zeros(3, np.int64), np.zeros(3, np.int64))), "only text"),
        (lambda: reverse_text(Samples(np.zeros((3, 2), np.int64), np.zeros((3, 2), np.int64))), "only text"),
    ],
)
def test_data_that_an_attack_does_not_fit(poison: Callable[[], Samples], words: str) -> None:
    with pytest.raises(DataError, match=words):
        poison()


# --- whole federations -----------------------------------------------------------------------------------


def drawn_samples(rng: np.random.Generator, size: int) -> Samples:
    """Dark images, mostly of the first classes."""
    return Samples(rng.uniform(0, 0.3, (size, 4)), np.minimum(rng.geometric(0.5, size) - 1, 9))


def drawn_text(rng: np.random.Generator, size: int) -> Samples:
    """Symbols that rise to the right."""
    rising = np.sort(rng.integers(10, size=(size, 5)), axis=1)
    return Samples(rising[:, :4], rising[:, 4])


def federation_of(draw: Callable[[np.random.Generator, int], Samples] = drawn_samples) -> Federation:
    rng = rng_of(1)
    people = [ClientData(draw(rng, 200), draw(rng, 20), draw(rng, 20)) for _ in range(CLIENTS + 1)]
    return Federation(dict(enumerate(people[:CLIENTS])), {CLIENTS: people[-1]}, classes=10, name="drawn")


def test_only_training_data_of_corrupt_clients_is_poisoned() -> None:
    true = federation_of()
    poisoned = corrupt_data(true, "label-flip", BAD, rng_of())
    for client, data in true.clients.items():
        other = poisoned.clients[client]
        assert (other.validation, other.test) == (data.validation, data.test)
        assert (other.train is data.train) == (client not in BAD)
        assert np.array_equal(other.train.y, 9 - data.train.y) == (client in BAD)
    assert poisoned.held_out == true.held_out
    assert (poisoned.classes, poisoned.name) == (10, "drawn")
    by_rule = corrupt_data(true, attack("label-flip", rule="characters"), BAD, rng_of())
    assert np.array_equal(by_rule.clients[2].train.y, (7 * true.clients[2].train.y + 1) % 10)


def test_an_attack_on_updates_leaves_data_alone_and_the_other_way_round() -> None:
    federation = federation_of()
    assert corrupt_data(federation, "sign-flip", BAD, rng_of()) is federation
    learners = cohort()
    assert dict(corrupt_learners(learners, "label-flip", BAD, 0)) == dict(learners)


@pytest.mark.parametrize(
    "apply",
    [
        lambda: corrupt_data(federation_of(), "label-flip", {3, 77}, rng_of()),
        lambda: corrupt_learners(cohort(), "sign-flip", {3, 77}, 0),
    ],
)
def test_clients_that_do_not_exist_cannot_be_corrupt(apply: Callable[[], object]) -> None:
    with pytest.raises(TrainingError, match=r"\[77\] cannot be corrupt"):
        apply()


# --- updates ---------------------------------------------------------------------------------------------


def update_of(learner: Any, start: Array = START) -> Array:
    return np.asarray(learner.train(start) - start)


HONEST = update_of(learner_of())


def test_same_value_is_one_number_everywhere() -> None:
    learner = SameValue(learner_of(), rng_of())
    updates = np.array([update_of(learner) for _ in range(300)])
    assert np.ptp(updates, axis=1).max() < 1e-9
    assert updates[:, 0].std() == pytest.approx(100, rel=0.2)
    assert updates[:, 0].mean() == pytest.approx(0, abs=25)


def test_sign_flip_points_backwards() -> None:
    learner = SignFlip(learner_of(), rng_of())
    factors = np.array([update_of(learner) / HONEST for _ in range(300)])
    assert np.ptp(factors, axis=1).max() < 1e-9
    assert factors.max() <= 0
    assert -factors.mean() == pytest.approx(10 * np.sqrt(2 / np.pi), rel=0.15)
    assert update_of(SignFlip(learner_of(), rng_of(), deviation=None)) == pytest.approx(-HONEST)


def test_gaussian_updates_have_the_variance_they_should() -> None:
    updates = np.array([update_of(learner) for learner in [Gaussian(learner_of(), rng_of())] * 200])
    assert updates.std() == pytest.approx(100, rel=0.05)
    assert abs(np.corrcoef(updates[:, 0], updates[:, 1])[0, 1]) < 0.3
    spread = Gaussian(learner_of(), rng_of(), like="spread")
    assert np.std([update_of(spread) for _ in range(200)]) == pytest.approx(HONEST.std(), rel=0.05)


def test_a_gaussian_model_has_the_norm_of_the_common_one() -> None:
    learner = Gaussian(learner_of(), rng_of(), like="norm")
    first, second = learner.train(START), learner.train(START)
    assert np.linalg.norm([first, second], axis=1) == pytest.approx(np.full(2, np.linalg.norm(START)))
    assert not np.allclose(first, second)
    assert not learner.train(np.zeros(DIM)).any()


def test_scaling_is_by_a_factor_or_a_random_one() -> None:
    assert update_of(Scaling(learner_of(), rng_of(), factor=-3.0)) == pytest.approx(-3 * HONEST)
    learner = Scaling(learner_of(), rng_of(), deviation=20.0)
    factors = np.array([update_of(learner) / HONEST for _ in range(300)])
    assert np.ptp(factors, axis=1).max() < 1e-9
    assert factors.std() == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda learner, rng: SameValue(learner, rng, deviation=0.0), "deviation must be above 0"),
        (lambda learner, rng: SignFlip(learner, rng, deviation=-1.0), "deviation must be above 0"),
        (lambda learner, rng: Gaussian(learner, rng, deviation=np.inf), "deviation must be above 0"),
        (lambda learner, rng: Gaussian(learner, rng, like="bell"), 'like must be "fixed"'),
        (lambda learner, rng: Scaling(learner, rng), "either a factor or a deviation"),
        (lambda learner, rng: Scaling(learner, rng, factor=1.0, deviation=1.0), "either a factor"),
        (lambda learner, rng: Scaling(learner, rng, deviation=np.nan), "deviation must be above 0"),
    ],
)
def test_attacks_that_cannot_be(make: Callable[[Any, Any], object], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        make(learner_of(), rng_of())


class Telling(QuadraticLearner):
    """Trains in single precision, and tells how it was asked to."""

    def train(
        self,
        start: Array,
        steering: Any = None,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Array | None = None,
    ) -> Array:
        assert only is None
        self.asked = steering, steps, rate
        return np.asarray(super().train(start, steering, steps=steps, rate=rate), np.float32)


def test_all_but_the_update_is_the_wrapped_learner_s() -> None:
    inner = Telling(CENTRES[0], samples=31, rate=0.5, steps=3)
    learner = SignFlip(inner, rng_of(), deviation=None)
    anchored = Steering(pull=1.0, anchor=START)
    trained = learner.train(START.astype(np.float32), anchored, steps=2, rate=0.25)
    assert inner.asked == (anchored, 2, 0.25)
    assert trained.dtype == np.float32
    assert trained == pytest.approx(2 * START - inner.train(START, anchored, steps=2, rate=0.25), rel=1e-6)
    assert (learner.samples, learner.rate, learner.steps) == (31, 0.5, 3)
    inner.rate = 0.125  # as a schedule would
    assert learner.rate == 0.125
    assert learner.loss(START) == inner.loss(START)
    assert learner.gradient(START).tolist() == inner.gradient(START).tolist()
    assert learner.score(START) == inner.score(START)
    assert learner.asked == inner.asked
    assert copy.deepcopy(learner).loss(START) == inner.loss(START)
    with pytest.raises(AttributeError, match="exchange"):
        learner.exchange  # noqa: B018


class Freezing(QuadraticLearner):
    """Moves only the parameters that it may."""

    def train(self, start: Array, steering: Any = None, *, only: Array | None = None, **_: Any) -> Array:
        trained = super().train(start)
        return trained if only is None else np.where(only, trained, start)


@pytest.mark.parametrize("kind", [SameValue, SignFlip, Gaussian])
def test_parameters_that_stay_stay_in_a_corrupt_update_too(kind: type[SignFlip]) -> None:
    may_move = np.arange(DIM) < 3
    learner = kind(Freezing(CENTRES[0]), rng_of())
    moved = learner.train(START, only=may_move) != START
    assert moved.tolist() == may_move.tolist()
    assert (learner.train(START) != START).all()
    late = Straggler(Freezing(CENTRES[0]), rng_of(), epochs=3)
    assert (late.train(START, only=may_move) != START).tolist() == may_move.tolist()


UPDATES: dict[str, dict[str, Any]] = {
    "same-value": {},
    "sign-flip": {},
    "gaussian": {},
    "gaussian-spread": {},
    "gaussian-norm": {},
    "scaling": {"factor": -20.0},
    "poisoning-with-scaling": {},
}
GENTLE = {"gaussian-spread", "gaussian-norm"}


@pytest.mark.parametrize("name", UPDATES)
def test_what_a_client_draws_depends_on_seed_client_and_call_alone(name: str) -> None:
    chosen = attack(name, **UPDATES[name])
    all_bad, few_bad = (corrupt_learners(cohort(), chosen, who, 4) for who in (range(CLIENTS), BAD))
    for _ in range(2):
        for client in (11, 2):  # in another order than the others were made in
            assert np.array_equal(all_bad[client].train(START), few_bad[client].train(START))
        all_bad[0].train(START)
    if name == "scaling":
        return  # nothing is drawn
    other = corrupt_learners(cohort(), chosen, BAD, 5)
    fresh = corrupt_learners(cohort(), chosen, BAD, 4)
    first = fresh[2].train(START)
    assert not np.array_equal(first, fresh[2].train(START))
    assert not np.array_equal(first, other[2].train(START))
    same_data = corrupt_learners({2: learner_of(), 5: learner_of()}, chosen, {2, 5}, 4)
    assert not np.array_equal(same_data[2].train(START), same_data[5].train(START))


@pytest.mark.parametrize("seed", [-1, 3])
def test_seeds_and_ids_are_not_negative(seed: int) -> None:
    with pytest.raises(TrainingError, match="seed and client id must be 0 or more, not"):
        corrupt_learners({-2 if seed > 0 else 2: learner_of()}, "sign-flip", {-2 if seed > 0 else 2}, seed)


# --- a mean falls, a median stands -----------------------------------------------------------------------


def models_of(learners: Mapping[int, Any], algorithm: AnyAlgorithm, rounds: int) -> list[Array]:
    """The common model after every round."""
    run = Run(
        algorithm,
        insecure_plain_sum(algorithm, learners, Setting(insecure_seed=b"attacks")),
        algorithm.start(np.zeros(algorithm.dim)),
    )
    models = []
    for _ in range(rounds):
        assert run.round().completed
        models.append(run.model)
    return models


def reached(learners: Mapping[int, Any], algorithm: AnyAlgorithm, rounds: int) -> Array:
    return models_of(learners, algorithm, rounds)[-1]


def mean_of(dim: int = DIM) -> FedAvg:
    return FedAvg(dim=dim, clients=CLIENTS, clip=1e4)


def median_of(dim: int = DIM) -> RFA:
    return RFA(dim=dim, clients=CLIENTS, steps=6)


GOAL = CENTRES[sorted(set(range(CLIENTS)) - BAD)].mean(axis=0)


def left_of(learners: Mapping[int, Any], algorithm: AnyAlgorithm, rounds: int = 3) -> list[float]:
    """Which part of the way to the honest clients' goal is left, after every round."""
    models = models_of(learners, algorithm, rounds)
    return [float(np.linalg.norm(model - GOAL) / np.linalg.norm(GOAL)) for model in models]


@pytest.mark.parametrize("name", sorted(set(UPDATES) - GENTLE))
def test_corrupt_updates_move_a_mean_and_not_a_median(name: str) -> None:
    mean, median = (
        left_of(corrupt_learners(cohort(), attack(name, **UPDATES[name]), BAD, 5), algorithm)
        for algorithm in (mean_of(), median_of())
    )
    assert max(mean) > 1  # at times, it is farther away than it began
    assert max(median) < 0.5
    assert median[-1] < 2 * left_of(cohort(), mean_of())[-1] < 0.05


@pytest.mark.parametrize("name", sorted(GENTLE))
def test_noise_as_large_as_what_is_honest_slows_a_mean_down_and_not_a_median(name: str) -> None:
    learners = corrupt_learners(cohort(), attack(name), BAD, 3)
    (honest,) = left_of(cohort(), mean_of(), rounds=1)
    (mean,), (median,) = (left_of(learners, each, rounds=1) for each in (mean_of(), median_of()))
    assert mean > 1.5 * honest
    assert median < 1.25 * honest


def statistics(samples: Samples) -> Array:
    """The mean of the inputs and the share of each class: a model that poisoned data shows in."""
    return np.concatenate([samples.x.mean(axis=0), 10 * np.bincount(samples.y, minlength=10) / len(samples)])


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("label-flip", drawn_samples),
        ("random-labels", drawn_samples),
        ("image-negation", drawn_samples),
        ("text-reversal", drawn_text),
    ],
)
def test_poisoned_data_moves_a_mean_and_a_median_less(
    name: str, draw: Callable[[np.random.Generator, int], Samples]
) -> None:
    true = federation_of(draw)
    goal = np.mean([statistics(true.clients[k].train) for k in true.clients if k not in BAD], axis=0)
    away = {}
    for title, federation in {"true": true, "poisoned": corrupt_data(true, name, BAD, rng_of())}.items():
        learners = {
            client: QuadraticLearner(statistics(data.train), samples=len(data.train), rate=0.5, steps=4)
            for client, data in federation.clients.items()
        }
        for algorithm in (mean_of(len(goal)), median_of(len(goal))):
            distance = np.linalg.norm(reached(learners, algorithm, rounds=2) - goal)
            away[title, type(algorithm).__name__] = float(distance)
    assert away["poisoned", "FedAvg"] > 4 * away["true", "FedAvg"]
    assert away["poisoned", "RFA"] < 0.6 * away["poisoned", "FedAvg"]


# --- the omniscient attack -------------------------------------------------------------------------------


@dataclass
class Social(QuadraticLearner):
    """A learner that can exchange values with others."""

    gathering: CooperativeBatcher = field(kw_only=True)

    def exchange(self, value: Any) -> Mapping[int, Any]:
        said: Mapping[int, Any] = self.gathering.ask(value)
        return said


def tell_everybody(waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
    said = {each.client: each.request for each in waiting}
    for each in waiting:
        each.answer = said
    return waiting


def social_cohort() -> WrappedLearners:
    """Learners that work side by side and meet where all have something to exchange."""
    gathering = CooperativeBatcher(tell_everybody)
    social = {
        k: Social(CENTRES[k], samples=SIZES[k], rate=0.5, steps=2, gathering=gathering)
        for k in range(CLIENTS)
    }
    return WrappedLearners(social, gathering.run)


def submitted(
    learners: WrappedLearners, start: Array, clients: range | list[int] = range(CLIENTS)
) -> dict[int, Array]:
    """The models that learners come to side by side."""
    assert learners.together is not None
    done = learners.together({k: partial(learners[k].train, start) for k in clients})
    return {client: each.result() for client, each in done.items()}


@pytest.mark.parametrize("weighted", [True, False])
def test_all_knowing_clients_turn_the_mean_around(weighted: bool) -> None:
    weights = np.array(SIZES) if weighted else np.ones(CLIENTS)
    honest = np.array([learner_of(k).train(START) for k in range(CLIENTS)])
    learners = corrupt_learners(social_cohort(), attack("omniscient", weighted=weighted), BAD, 0)
    models = submitted(learners, START)
    for client in range(CLIENTS):
        assert np.array_equal(models[client], honest[client]) == (client not in BAD)
    corrupt = np.array([models[client] for client in BAD])
    assert np.array_equal(corrupt[0], corrupt[1])
    mean = np.average([models[k] for k in range(CLIENTS)], axis=0, weights=weights)
    honest_mean = np.average(honest, axis=0, weights=weights)
    assert mean - START == pytest.approx(-(honest_mean - START))


def test_all_knowing_clients_know_those_who_came() -> None:
    """Of a cohort from which some were drawn, and by whom no corrupt client was."""
    learners = corrupt_learners(social_cohort(), "omniscient", BAD, 0)
    models = submitted(learners, START, [0, 1, 2, 4])
    honest = np.array([learner_of(k).train(START) for k in (0, 1, 2, 4)])
    sizes = [SIZES[k] for k in (0, 1, 2, 4)]
    mean = np.average([models[k] for k in (0, 1, 2, 4)], axis=0, weights=sizes)
    assert mean - START == pytest.approx(START - np.average(honest, axis=0, weights=sizes))
    assert submitted(learners, START, [0, 1])[0].tolist() == honest[0].tolist()


def test_the_omniscient_attack_leads_a_mean_away_and_not_a_median() -> None:
    learners = corrupt_learners(social_cohort(), "omniscient", BAD, 0)
    mean, median = (left_of(learners, algorithm) for algorithm in (mean_of(), median_of()))
    assert mean[0] > 1.7  # every round leads it farther away than it was, by three quarters of the distance
    assert all(after > 1.7 * before for before, after in pairwise(mean))
    assert median[-1] < 0.05


def test_the_omniscient_attack_is_the_same_over_secure_sums() -> None:
    models = []
    for make in (insecure_plain_sum, secure_sum):
        learners, algorithm = corrupt_learners(social_cohort(), "omniscient", BAD, 0), mean_of()
        channel = make(algorithm, learners, Setting(insecure_seed=b"attacks"))
        run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
        assert run.round().completed
        models.append(run.model)
    honest = np.average(CENTRES, axis=0, weights=SIZES) * 0.75  # of the way, in two steps
    assert models[0] == pytest.approx(-honest, abs=1e-3)
    assert models[0].tobytes() == models[1].tobytes()


def test_real_learners_can_be_attacked() -> None:
    """Those of a crowd: softmax regression on each client's own images."""
    training = Training(rate=1.0, epochs=4)
    crowds = [
        Crowd(
            nn.Linear(4, 10), federation_of().clients, training, seed=1, device="cpu", batching="one-by-one"
        )
        for _ in range(3)
    ]
    start = np.zeros(crowds[0].dim, np.float32)
    honest = {k: crowds[0][k].train(start) for k in crowds[0]}
    mean = np.mean(list(honest.values()), axis=0)
    corrupt = submitted(corrupt_learners(crowds[1], "omniscient", BAD, 1), start)
    assert np.linalg.norm(mean) > 0.1
    assert np.mean(list(corrupt.values()), axis=0) == pytest.approx(-mean, abs=1e-4)
    assert corrupt[0].dtype == corrupt[2].dtype == np.float32
    late = submitted(slow_down(crowds[2], fraction=1.0, epochs=4, seed=1), start)
    assert all(0 < np.linalg.norm(late[k]) < np.linalg.norm(honest[k]) for k in honest)


def test_the_omniscient_attack_needs_a_crowd() -> None:
    with pytest.raises(TrainingError, match="put the clients in a Crowd"):
        corrupt_learners(cohort(), "omniscient", BAD, 0)
    unharmed = corrupt_learners(cohort(), "omniscient", (), 0)
    assert not any(isinstance(learner, Omniscient) for learner in unharmed.values())


def test_a_corrupt_client_without_weight_cannot_be_omniscient() -> None:
    learners = social_cohort()
    learners[2].samples = 0
    corrupt = corrupt_learners(learners, "omniscient", {2}, 0)
    with pytest.raises(TrainingError, match="corrupt clients with samples"):
        submitted(corrupt, START)


# --- cohorts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*UPDATES, "omniscient", "image-negation"])
def test_corrupt_cohorts_train_together_as_they_did(name: str) -> None:
    crowd = social_cohort()
    learners = corrupt_learners(crowd, attack(name, **UPDATES.get(name, {})), BAD, 0)
    assert learners.together == crowd.together
    late = slow_down(learners, fraction=0.9, epochs=5, seed=1)
    assert late.together == crowd.together
    assert list(late) == list(crowd)
    assert slow_down(dict(crowd), fraction=0.9, epochs=5, seed=1).together is None


def test_a_cohort_is_a_mapping_that_says_little() -> None:
    learners: dict[int, Learner] = {4: learner_of(), 1: learner_of(1)}
    cohort = WrappedLearners(learners)
    assert dict(cohort) == learners
    assert (list(cohort), len(cohort), 4 in cohort, 2 in cohort) == ([4, 1], 2, True, False)
    assert repr(cohort) == "WrappedLearners(2 clients)"
    with pytest.raises(KeyError):
        cohort[2]


def test_every_attack_has_a_name_and_others_are_refused() -> None:
    for name in ATTACKS:
        made = attack(name)
        assert made.poison is not None or made.wrap is not None
    with pytest.raises(
        TrainingError,
        match=r"there is no attack 'lies'\. Available: label-flip, image-negation, text-reversal,",
    ):
        attack("lies")
    for name in ("gaussian", "label-flip", "omniscient"):
        with pytest.raises(
            TrainingError, match=f"attack '{name}' does not accept these parameters.*strength"
        ):
            attack(name, strength=3)


# --- stragglers ------------------------------------------------------------------------------------------


def steps_of(learner: Any, calls: int, **asked: Any) -> list[int]:
    inner = learner
    while not isinstance(inner, Telling):
        inner = inner.wrapped
    taken = []
    for _ in range(calls):
        learner.train(START, Steering(), **asked)
        taken.append(inner.steps if inner.asked[1] is None else inner.asked[1])
    return taken


def telling(steps: int = 20) -> Telling:
    return Telling(CENTRES[0], steps=steps)


def test_a_straggler_runs_some_of_its_epochs() -> None:
    taken = steps_of(Straggler(telling(), rng_of(), epochs=5), 400)
    assert set(taken) == {4, 8, 12, 16}  # one to four of five epochs of four steps
    assert np.bincount(taken)[[4, 8, 12, 16]] == pytest.approx(np.full(4, 100), abs=45)
    assert set(steps_of(Straggler(telling(), rng_of(), epochs=5), 40, steps=10)) == {2, 4, 6, 8}
    assert set(steps_of(Straggler(telling(), rng_of(), epochs=1), 5)) == {20}
    assert set(steps_of(Straggler(telling(), rng_of(), epochs=20), 60, steps=3)) == {1, 2}
    assert steps_of(Straggler(telling(), rng_of(), epochs=5), 2, steps=0) == [0, 0]


def test_stragglers_are_drawn_at_every_training_or_once() -> None:
    everyone = {k: telling() for k in range(CLIENTS)}
    drawn = slow_down(everyone, fraction=0.75, epochs=5, seed=2)
    late = np.array([[taken < 20 for taken in steps_of(drawn[k], 60)] for k in drawn])
    assert late.mean() == pytest.approx(0.75, abs=0.08)
    assert late.any(axis=1).all()
    assert not late.all(axis=1).any()
    assert len({row.tobytes() for row in late}) == CLIENTS  # each by itself
    fixed = slow_down(everyone, fraction=0.75, epochs=5, seed=2, fixed=True)
    always = {k for k in fixed if max(steps_of(fixed[k], 20)) < 20}
    never = {k for k in fixed if min(steps_of(fixed[k], 20)) == 20}
    assert (len(always), len(never)) == (9, 3)
    again = slow_down(everyone, fraction=0.75, epochs=5, seed=2)
    assert [steps_of(again[k], 60) for k in (3, 1)] == [
        steps_of(slow_down(everyone, fraction=0.75, epochs=5, seed=2)[k], 60) for k in (3, 1)
    ]


def test_stragglers_slow_a_mean_down() -> None:
    learners = {k: QuadraticLearner(CENTRES[k], samples=SIZES[k], rate=0.1, steps=10) for k in range(CLIENTS)}
    goal = CENTRES.mean(axis=0)
    late = slow_down(learners, fraction=0.9, epochs=5, seed=0)
    prompt, slow = (np.linalg.norm(reached(each, mean_of(), 2) - goal) for each in (learners, late))
    assert slow > 1.5 * prompt


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_shares_of_stragglers_that_cannot_be(fraction: float, fixed: bool) -> None:
    with pytest.raises(TrainingError, match="share of stragglers must be from 0 to 1"):
        slow_down(cohort(), fraction=fraction, epochs=2, seed=0, fixed=fixed)


def test_a_straggler_needs_epochs() -> None:
    with pytest.raises(TrainingError, match="epochs must be at least 1 for stragglers, not 0"):
        slow_down(cohort(), fraction=0.5, epochs=0, seed=0)


# --- who is corrupt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.01, 0.25, 0.45, 0.75])
@pytest.mark.parametrize("seed", [1, 5])
def test_corrupt_clients_hold_just_more_samples_than_the_level(level: float, seed: int) -> None:
    sizes = {k: 1 + (k * 37) % 90 for k in range(100)}
    order = list(sizes)
    random.Random(seed - 1).shuffle(order)
    chosen = by_samples(sizes, level, seed)
    assert chosen == set(order[: len(chosen)])
    assert sum(sizes[k] for k in chosen) > level * sum(sizes.values())
    without_last = order[: len(chosen) - 1]
    assert sum(sizes[k] for k in without_last) <= level * sum(sizes.values())
    assert chosen != by_samples(sizes, level, seed + 1)


def test_nobody_is_corrupt_at_level_zero_and_everybody_may_be() -> None:
    assert by_samples({1: 5, 2: 5}, 0.0, 1) == frozenset()
    assert by_samples({1: 5, 2: 5}, 0.5, 1) == {1, 2}  # one holds no more than half
    assert by_count([1, 2, 3], 0.0, 1) == frozenset()
    assert by_count([1, 2, 3], 1.0, 1) == {1, 2, 3}


def test_corrupt_clients_by_count() -> None:
    ids = range(10, 60)
    chosen = by_count(ids, 0.25, 3)
    assert len(chosen) == round(0.25 * 50)
    assert chosen <= set(ids)
    assert all(type(client) is int for client in chosen)
    assert chosen == by_count(reversed(ids), 0.25, 3)
    assert chosen != by_count(ids, 0.25, 4)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_shares_that_cannot_be(share: float) -> None:
    with pytest.raises(TrainingError, match="from 0 to below 1"):
        by_samples({1: 5}, share, 1)
    with pytest.raises(TrainingError, match="from 0 to 1"):
        by_count([1], share, 1)


def test_who_diverged_is_in_no_mean_of_the_omniscient() -> None:
    updates = {0: (np.array([1.0]), 1.0), 1: (np.array([3.0]), 1.0), 2: (np.array([np.nan]), 1.0)}

    assert against(updates, [1]) == pytest.approx(3 - 2 * 2 * 2)


def test_omniscient_clients_that_are_asked_alone_train_honestly() -> None:
    few = Samples(np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))
    made = [
        Crowd(nn.Linear(2, 2), {k: ClientData(few, few, few) for k in range(2)}, Training()) for _ in "ab"
    ]
    corrupt = corrupt_learners(made[0], "omniscient", [0], seed=1)

    np.testing.assert_array_equal(corrupt[0].train(np.ones(6)), made[1][0].train(np.ones(6)))
