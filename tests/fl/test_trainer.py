"""One client: its steps against other ways to compute them, its chance, its bounds, its refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fl import trainer as trainer_module
from fl.batches import BatchSampler
from fl.errors import DataError, TrainingError
from fl.federation import ClientData
from fl.flat_model import FlatModel, flatten
from fl.models import build
from fl.samples import Array, Samples
from fl.trainer import Trainer
from fl.training_settings import Schedule, Training
from protocols.fedavg import FedAvg
from protocols.learner import Learner, Score, Steering
from protocols.quadratic_learner import steered_step
from protocols.run import Run
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from tests.fl.clients import amounts, client, samples

FEATURES, CLASSES = 4, 3
DIM = FEATURES * CLASSES + CLASSES


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def trainer_of(data: ClientData | None = None, *, seed: int = 0, **chosen: Any) -> Trainer:
    training = Training(**{"rate": 0.3, "batch": 5} | chosen)
    return Trainer.on(linear(), client(17) if data is None else data, training, device="cpu", seed=seed)


def vector(seed: int, dim: int = DIM) -> Array:
    return np.random.default_rng(seed).normal(size=dim)


# --- steps -----------------------------------------------------------------------------------------------


def softmax_gradient(model: Array, part: Samples) -> Array:
    """Of the mean cross-entropy of a linear model, worked out by hand."""
    weight, bias = model[:-CLASSES].reshape(CLASSES, FEATURES), model[-CLASSES:]
    logits = part.x @ weight.T + bias
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    errors = (chances - np.eye(CLASSES)[part.y]) / len(part)
    return np.concatenate([(errors.T @ part.x).ravel(), errors.sum(axis=0)])


def by_hand(start: Array, training: Training, steering: Steering, only: Array, steps: int) -> Array:
    """What client 0 with seed 0 and 17 samples comes to."""
    data, model, speed = client(17).train, start.copy(), np.zeros(DIM)
    order = BatchSampler(17, training.batch, 0, 0).of_call(0, steps)
    for step in range(steps):
        part = data.take(order.of_step(step))
        gradient = softmax_gradient(model, Samples(part.x.astype(np.float64), part.y)) * only
        if training.clip is not None:
            gradient *= min(1, training.clip / np.linalg.norm(gradient))
        gradient += training.weight_decay * model
        if steering.anchor is not None:
            gradient += steering.pull * (model - steering.anchor)
        if steering.correction is not None:
            gradient += steering.correction
        speed = training.momentum * speed + gradient
        moved = model - training.rate * speed
        if steering.target is not None:
            keep = 1 / (1 + training.rate * steering.mix)
            moved = keep * moved + (1 - keep) * steering.target
        model = np.where(only, moved, model)
        speed = np.where(only, speed, 0)
    return model


STEERED = Steering(pull=0.7, anchor=vector(1), correction=vector(2), mix=0.4, target=vector(3))
ALL = np.ones(DIM, bool)
HALF = np.arange(DIM) % 2 == 0


@pytest.mark.parametrize(
    ("chosen", "steering", "only"),
    [
        ({}, Steering(), None),
        ({"batch": None}, Steering(), None),
        ({"momentum": 0.9}, Steering(), None),
        ({"weight_decay": 0.1}, Steering(), None),
        ({"clip": 0.05}, Steering(), None),
        ({"clip": 100.0}, Steering(), None),
        ({}, Steering(pull=0.7, anchor=vector(1)), None),
        ({}, Steering(correction=vector(2)), None),
        ({}, Steering(mix=0.4, target=vector(3)), None),
        ({}, Steering(), HALF),
        ({"momentum": 0.9, "weight_decay": 0.1, "clip": 0.05}, STEERED, HALF),
    ],
    ids=[
        "plain",
        "full",
        "momentum",
        "decay",
        "clip",
        "wide clip",
        "pull",
        "correction",
        "mix",
        "only",
        "all",
    ],
)
def test_steps_are_those_of_a_calculation_by_hand(
    chosen: dict[str, Any], steering: Steering, only: Array | None
) -> None:
    trainer = trainer_of(precision="float64", steps=9, **chosen)
    start = vector(0)
    trained = trainer.train(start, steering, only=only)
    expected = by_hand(start, trainer.training, steering, ALL if only is None else only, 9)
    np.testing.assert_allclose(trained, expected, rtol=1e-12, atol=1e-14)
    if only is not None:
        assert np.array_equal(trained[~only], start[~only]), "to the bit"


@pytest.mark.parametrize(
    "steering",
    [
        Steering(),
        STEERED,
        Steering(pull=0.5, anchor=vector(4)),
        Steering(mix=2.0, target=vector(4)),
        Steering(anchor=vector(4), target=vector(5)),
        Steering(pull=3.0, mix=3.0),
    ],
)
def test_steering_means_what_algorithms_mean_by_it(steering: Steering) -> None:
    trainer = trainer_of(precision="float64", batch=None, steps=5)
    model = start = vector(0)
    for _ in range(5):
        model = steered_step(model, trainer.gradient(model), steering, 0.3)
    np.testing.assert_allclose(trainer.train(start, steering), model, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torch(momentum: float) -> None:
    trainer = trainer_of(momentum=momentum, weight_decay=0.05, epochs=3)
    module = nn.Linear(FEATURES, CLASSES)
    start, data = flatten(module), client(17).train
    order = BatchSampler(17, 5, 0, 0).of_call(0, 12)
    parameters: list[Tensor] = list(module.parameters())
    speeds: list[Tensor | None] = [None] * len(parameters)
    for step in range(12):
        part = data.take(order.of_step(step))
        loss = nn.functional.cross_entropy(module(torch.from_numpy(part.x)), torch.from_numpy(part.y))
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():  # what torch.optim.SGD does, without the seconds that making one takes
            sgd(
                parameters,
                gradients,
                speeds,
                foreach=False,
                weight_decay=0.05,
                momentum=momentum,
                lr=0.3,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
    np.testing.assert_allclose(trainer.train(start), flatten(module), rtol=1e-5, atol=1e-6)


def test_momentum_starts_afresh_with_every_training() -> None:
    one, other = (trainer_of(momentum=0.9, batch=None, steps=3, precision="float64") for _ in range(2))
    one.train(vector(7))
    assert np.array_equal(one.train(vector(0)), other.train(vector(0)))


def test_a_gradient_is_that_of_the_next_batch() -> None:
    trainer = trainer_of(precision="float64")
    data = client(17).train
    for call in range(3):
        part = data.take(BatchSampler(17, 5, 0, 0).of_call(call, 1).of_step(0))
        expected = softmax_gradient(vector(0), Samples(part.x.astype(np.float64), part.y))
        np.testing.assert_allclose(trainer.gradient(vector(0)), expected, rtol=1e-12)
    assert trainer.calls == 3


def test_a_regression_by_hand() -> None:
    for loss in ("squared", "logistic"):
        data = amounts(9, 3)
        if loss == "logistic":
            data = Samples(data.x, np.sign(data.y))
        held = ClientData(data, data.take(np.arange(0)), data)
        training = Training(loss=loss, precision="float64", rate=0.1, steps=1)
        trainer = Trainer.on(build("linear", features=4), held, training, device="cpu")
        model = vector(0, trainer.flat.dim)
        weight, bias = model[:4], model[4:].sum()  # with a bias or without
        outputs = data.x @ weight + bias
        errors = outputs - data.y if loss == "squared" else -data.y / (1 + np.exp(data.y * outputs))
        gradient = np.append(errors @ data.x, errors.sum())[: len(model)] / 9
        np.testing.assert_allclose(trainer.train(model), model - 0.1 * gradient, rtol=1e-10)


def test_what_is_asked_for_comes_before_the_settings() -> None:
    trainer = trainer_of(batch=None, steps=4)
    start = vector(0)
    assert np.array_equal(trainer.train(start, steps=0), start.astype(np.float32))
    once = trainer.train(start, steps=1, rate=0.01)
    expected = start - 0.01 * trainer.gradient(start)
    np.testing.assert_allclose(once, expected, rtol=1e-5, atol=1e-6)


def test_training_changes_nothing_that_it_was_given() -> None:
    start, *given = (vector(k) for k in range(4))
    before = [each.tolist() for each in (start, *given)]
    steering = Steering(pull=1.0, anchor=given[0], correction=given[1], mix=1.0, target=given[2])
    trained = trainer_of(steps=3, precision="float64").train(start, steering)
    assert [each.tolist() for each in (start, *given)] == before
    assert not np.array_equal(trained, start)


# --- chance --------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits() -> None:
    start = vector(0)
    first, again, other = (trainer_of(seed=seed, epochs=2) for seed in (1, 1, 2))
    trained = [[each.train(start) for _ in range(2)] for each in (first, again, other)]
    assert np.array_equal(trained[0], trained[1])
    assert not np.array_equal(trained[0], trained[2])
    assert not np.array_equal(trained[0][0], trained[0][1]), "every training has an order of its own"


def test_clients_have_orders_of_their_own() -> None:
    training, data = Training(batch=5, rate=0.3), client(17)
    one, other = (Trainer.on(linear(), data, training, device="cpu", client=k) for k in (1, 2))
    assert not np.array_equal(one.train(vector(0)), other.train(vector(0)))


def test_a_client_goes_on_after_a_restart() -> None:
    whole, start = trainer_of(), vector(0)
    whole.train(start)
    whole.gradient(start)
    restarted = trainer_of()
    restarted.calls = whole.calls
    assert np.array_equal(whole.train(start), restarted.train(start))
    assert np.array_equal(whole.gradient(start), restarted.gradient(start))


def test_looking_at_a_model_does_not_change_what_is_trained() -> None:
    watched, other, start = trainer_of(), trainer_of(), vector(0)
    watched.loss(vector(5))
    watched.score(vector(6))
    assert np.array_equal(watched.train(start), other.train(start))


def test_clients_may_share_a_model() -> None:
    training = Training(batch=5, momentum=0.5)
    flat = FlatModel(linear(), device=torch.device("cpu"), dtype=training.dtype)
    shared = [Trainer(flat, client(17, k), training, client=k) for k in range(2)]
    own = [Trainer.on(linear(), client(17, k), training, device="cpu", client=k) for k in range(2)]
    for _ in range(2):
        for one, other in zip(shared, own, strict=True):
            assert np.array_equal(one.train(vector(0)), other.train(vector(0)))


def dropping(rate: float = 0.5) -> Trainer:
    module = build("mlp", features=FEATURES, classes=CLASSES, hidden=(16,), dropout=rate)
    return Trainer.on(module, client(17), Training(batch=5, rate=0.3), device="cpu")


def test_dropout_depends_on_the_seed_alone() -> None:
    first, again = dropping(), dropping()
    start = vector(0, first.flat.dim)
    torch.manual_seed(1)
    trained, gradient = first.train(start), first.gradient(start)
    torch.manual_seed(2)
    assert np.array_equal(again.train(start), trained)
    assert np.array_equal(again.gradient(start), gradient)
    assert not np.array_equal(dropping(0.0).train(start), trained)


def test_dropout_differs_from_training_to_training() -> None:
    module = build("mlp", features=FEATURES, classes=CLASSES, hidden=(16,), dropout=0.5)
    trainer = Trainer.on(module, client(17), Training(), device="cpu")
    start = vector(0, trainer.flat.dim)
    assert not np.array_equal(trainer.train(start), trainer.train(start))


def test_the_chance_of_others_is_left_alone() -> None:
    trainer = dropping()
    start = vector(0, trainer.flat.dim)
    before = torch.get_rng_state()
    trainer.train(start)
    trainer.gradient(start)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_dropped_when_a_model_is_judged() -> None:
    trainer, start = dropping(), vector(0, dropping().flat.dim)
    trainer.train(start)
    assert trainer.loss(start) == trainer.loss(start) == dropping(0.0).loss(start)


# --- rates ---------------------------------------------------------------------------------------------


def test_rates_fall_by_round_or_by_training() -> None:
    trainer = trainer_of(rate=1.0, batch=None, schedule=Schedule("linear"))
    seen = []
    for _ in range(3):
        seen.append(trainer.rate)
        trainer.train(vector(0))
    trainer.round = 9
    assert [*seen, trainer.rate] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 10])
    trainer.round = 0
    assert trainer.rate == 1


def test_the_scheduled_rate_is_the_one_that_is_used() -> None:
    trainer = trainer_of(rate=1.0, batch=None, steps=1, schedule=Schedule("linear"), precision="float64")
    start = vector(0)
    trainer.round = 3
    np.testing.assert_allclose(trainer.train(start), start - trainer.gradient(start) / 4, rtol=1e-12)


# --- judging -------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_test_data() -> None:
    data, model = client(17, test=11), vector(0)
    trainer = trainer_of(data)
    weight, bias = model[:-CLASSES].reshape(CLASSES, FEATURES), model[-CLASSES:]

    def expected(part: Samples) -> tuple[int, int, float]:
        logits = part.x @ weight.T + bias
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(part)), part.y]
        return int((logits.argmax(axis=1) == part.y).sum()), len(part), float(losses.mean())

    def told(score: Score) -> tuple[int, int, float]:
        return score.correct, score.total, score.loss

    assert told(trainer.score(model)) == pytest.approx(expected(data.test))
    assert told(trainer.score_on(model, data.validation)) == pytest.approx(expected(data.validation))
    assert trainer.loss(model) == pytest.approx(expected(data.train)[2])


def test_many_samples_are_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, model = trainer_of(client(3, test=11)), vector(0)
    whole = trainer.score(model)
    monkeypatch.setattr(trainer_module, "_CHUNK", 4)
    parts = trainer.score(model)
    assert (parts.correct, parts.total) == (whole.correct, whole.total)
    assert parts.loss == pytest.approx(whole.loss)


def test_without_test_data_there_is_nothing_to_tell() -> None:
    assert trainer_of(client(3, test=0)).score(vector(0)) == Score(0, 0, 0.0)


def test_a_client_with_a_single_class_trains() -> None:
    data = Samples(samples(12, 0).x, np.full(12, 2))
    trainer = trainer_of(ClientData(data, data, data), epochs=20)
    trained = trainer.train(np.zeros(DIM))
    assert trainer.score(trained).correct == 12
    assert trainer.loss(trained) < 0.2 * trainer.loss(np.zeros(DIM))


def test_a_client_with_a_single_sample_trains() -> None:
    trainer = trainer_of(client(1), epochs=3)
    assert (trainer.samples, trainer.width, trainer.steps) == (1, 1, 3)
    assert trainer.loss(trainer.train(np.zeros(DIM))) < trainer.loss(np.zeros(DIM))


def test_what_a_client_costs() -> None:
    trainer = trainer_of()
    assert trainer.seconds == 0
    for work in (trainer.train, trainer.gradient, trainer.loss, trainer.score):
        seconds = trainer.seconds
        work(vector(0))
        assert trainer.seconds > seconds


def test_what_is_private_is_in_no_log() -> None:
    trainer = trainer_of()
    assert repr(trainer) == f"Trainer(client 0, 17 samples, {DIM} parameters)"
    assert repr(trainer.train_store) == "SampleTensors(17 samples)"
    assert "correct" not in repr(trainer.score(vector(0)))


def test_the_batch_is_no_wider_than_the_data() -> None:
    assert trainer_of(client(17)).width == 5
    assert trainer_of(client(3)).width == 3
    assert trainer_of(client(17), batch=None).width == 17


# --- symbols -------------------------------------------------------------------------------------------


def test_whole_numbers_are_symbols() -> None:
    rng = np.random.default_rng(0)
    text = Samples(rng.integers(0, 9, size=(6, 5), dtype=np.uint8), rng.integers(0, 9, size=6))
    module = build("char-lstm", vocabulary=9, embedding=3, hidden=4)
    trainer = Trainer.on(module, ClientData(text, text, text), Training(batch=4, rate=0.5), device="cpu")
    start = trainer.flat.read()
    assert trainer.loss(trainer.train(start, steps=20)) < trainer.loss(start)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "loss", "words"),
    [
        (
            lambda: nn.Linear(5, 3),
            "cross-entropy",
            r"the model rejects inputs of shape \(4,\): mat1 and mat2 shapes cannot be multiplied \(1x4",
        ),
        (
            lambda: nn.Embedding(5, 3),
            "cross-entropy",
            r"the model rejects inputs of shape \(4,\): Expected tensor for argument #1 'indices' to have",
        ),
        (lambda: build("linear", features=4), "cross-entropy", r"shape \(1,\), but the loss cross-entropy"),
        (lambda: nn.Linear(4, 3), "squared", r"outputs of shape \(1, 3\), but the loss squared needs \(1,\)"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), "squared", r"outputs of shape \(3,\)"),
        (lambda: nn.Linear(4, 2), "cross-entropy", "targets go from 0 to 2, but the model has 2 classes"),
    ],
)
def test_models_that_do_not_fit_the_data(make: Callable[[], nn.Module], loss: str, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        Trainer.on(make(), client(17), Training(loss=loss), device="cpu")


def test_classes_are_counted_from_zero() -> None:
    data = Samples(np.zeros((2, FEATURES)), np.array([-1, 1]))
    with pytest.raises(TrainingError, match="targets go from -1 to 1"):
        trainer_of(ClientData(data, data, data))


def test_amounts_are_no_classes() -> None:
    data = amounts(5, 0)
    with pytest.raises(DataError, match="cross-entropy needs classes for targets"):
        trainer_of(ClientData(data, data, data))
    with pytest.raises(DataError, match="needs classes"):
        trainer_of().score_on(vector(0), data)


def test_targets_are_one_number_each() -> None:
    """Compared with outputs, a column would have become a square."""
    column = Samples(np.zeros((4, FEATURES)), np.zeros((4, 1), np.int64))
    with pytest.raises(DataError, match=r"targets have shape \(4, 1\): give one number for every sample"):
        trainer_of(ClientData(column, column, column))


def test_data_that_is_read_only_is_taken_without_a_warning() -> None:
    data = client(17)
    before = trainer_of(data).train(vector(0))
    for each in (data.train.x, data.train.y):
        each.setflags(write=False)
    assert np.array_equal(trainer_of(data).train(vector(0)), before)


@pytest.mark.parametrize("steps", [-1, 1.5, True, "3"])
def test_steps_are_counted(steps: Any) -> None:
    trainer = trainer_of()
    with pytest.raises(TrainingError, match="steps must be a whole number of 0 or more"):
        trainer.train(vector(0), steps=steps)
    assert trainer.calls == 0


def test_vectors_of_another_length_are_refused() -> None:
    trainer, good, bad = trainer_of(), vector(0), vector(0, DIM + 1)
    for steering in (
        Steering(pull=1.0, anchor=bad),
        Steering(correction=bad),
        Steering(mix=1.0, target=bad),
    ):
        with pytest.raises(TrainingError, match=f"a model of {DIM} parameters"):
            trainer.train(good, steering)
    for work in (trainer.train, trainer.gradient, trainer.loss, trainer.score):
        with pytest.raises(TrainingError, match=f"a model of {DIM} parameters"):
            work(bad)
    with pytest.raises(TrainingError, match=f"a model of {DIM} parameters"):
        trainer.train(good, only=np.ones(3))


# --- in a federation -----------------------------------------------------------------------------------


def test_a_trainer_is_a_learner() -> None:
    learner: Learner = trainer_of(epochs=2)
    assert (learner.samples, learner.rate, learner.steps) == (17, 0.3, 8)
    assert learner.train(vector(0), Steering(), steps=1, rate=0.1).shape == (DIM,)
    assert learner.gradient(vector(0)).dtype == np.float32
    assert learner.score(vector(0)).total == 7


@pytest.mark.parametrize("make", [insecure_plain_sum, secure_sum], ids=["plain", "secure"])
def test_who_diverges_declines_and_the_round_goes_on(make: Callable[..., Any]) -> None:
    learners: dict[int, Learner] = {
        k: trainer_of(client(9, k), rate=1e38 if k == 2 else 0.3, weight_decay=1 if k == 2 else 0, epochs=3)
        for k in range(4)
    }
    trained = learners[2].train(np.zeros(DIM))
    assert not np.isfinite(trained).all()
    algorithm = FedAvg(dim=DIM, clients=4, clip=10.0)
    channel = make(algorithm, learners, Setting(dropout=0.3, insecure_seed=b"seed"))
    run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
    report = run.round()
    assert (report.completed, report.clients) == (True, 3)
    others = [k for k in learners if k != 2]
    updates = [trainer_of(client(9, k), epochs=3).train(np.zeros(DIM)) for k in others]
    np.testing.assert_allclose(run.model, np.mean(updates, axis=0), atol=1e-4)


def test_labels_of_the_test_data_must_be_classes_of_the_model() -> None:
    few = samples(5, 0)
    data = ClientData(few, few, Samples(few.x, few.y + 2))

    with pytest.raises(TrainingError, match="but the model has 3 classes"):
        Trainer.on(nn.Linear(4, 3), data, Training(), device="cpu")


def test_logistic_labels_are_signs_or_two_classes() -> None:
    x = np.ones((4, 4), np.float32)
    signs = Samples(x, np.array([-1.0, 1.0, 1.0, -1.0]))
    bits = Samples(x, np.array([0.0, 1.0, 1.0, 0.0]))
    both = Samples(x, np.array([0.0, 1.0, -1.0, 0.0]))
    model = build("linear", features=4)

    for fine in (signs, bits):
        Trainer.on(model, ClientData(fine, fine, fine), Training(loss="logistic"), device="cpu")
    with pytest.raises(TrainingError, match="two classes"):
        Trainer.on(model, ClientData(both, both, both), Training(loss="logistic"), device="cpu")


@pytest.mark.parametrize(("seed", "number"), [(-1, 0), (0, -1)])
def test_seeds_and_ids_are_not_below_zero(seed: int, number: int) -> None:
    with pytest.raises(TrainingError, match="0 or more"):
        Trainer.on(nn.Linear(4, 3), client(5), Training(), device="cpu", seed=seed, client=number)


def test_a_model_that_diverged_gets_nothing_right() -> None:
    few = Samples(np.ones((5, 4), np.float32), np.zeros(5, np.int64))
    trainer = Trainer.on(nn.Linear(4, 3), ClientData(few, few, few), Training(), device="cpu")

    assert trainer.score(np.full(15, np.nan)).correct == 0


def test_a_gradient_whose_square_overflows_is_clipped() -> None:
    few = Samples(np.array([[1e25, 0, 0, 0]]), np.array([1]))
    training = Training(rate=0.5, clip=1.0)
    trainer = Trainer.on(nn.Linear(4, 3), ClientData(few, few, few), training, device="cpu")

    moved = trainer.train(np.zeros(15))

    assert np.linalg.norm(moved) == pytest.approx(0.5)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_must_be_one(rate: float) -> None:
    with pytest.raises(TrainingError, match="a learning rate must be finite and at least 0, not"):
        Trainer.on(nn.Linear(4, 3), client(5), Training(), device="cpu").train(np.zeros(15), rate=rate)


def test_a_mask_says_yes_or_no() -> None:
    with pytest.raises(TrainingError, match="true or false"):
        Trainer.on(nn.Linear(4, 3), client(5), Training(), device="cpu").train(
            np.zeros(15), only=np.arange(15)
        )


class Several(nn.Linear):
    """Returns more than outputs."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


def test_a_model_returns_a_tensor() -> None:
    with pytest.raises(TrainingError, match="must return a tensor, not a tuple"):
        Trainer.on(Several(4, 3), client(5), Training(), device="cpu")


def test_amounts_are_no_whole_numbers() -> None:
    pixels = Samples(np.ones((5, 4), np.uint8), np.zeros(5, np.int64))

    with pytest.raises(
        TrainingError,
        match=r"the model rejects inputs of shape \(4,\): mat1 and mat2 must have the same dtype, but got",
    ):
        Trainer.on(nn.Linear(4, 3), ClientData(pixels, pixels, pixels), Training(), device="cpu")


def test_all_inputs_have_the_same_shape() -> None:
    few, other = samples(5, 0), samples(5, 0, shape=(2, 2))

    with pytest.raises(
        TrainingError, match=r"training inputs have shape \(4,\), but validation or test inputs have \(2, 2\)"
    ):
        Trainer.on(nn.Linear(4, 3), ClientData(few, few, other), Training(), device="cpu")
