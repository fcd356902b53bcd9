"""Clients trained at once: the same as one by one, whatever they ask for, and each for itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl import crowd as crowd_module
from fl.crowd import Crowd, Member
from fl.errors import DataError, TrainingError
from fl.federation import ClientData
from fl.flat_model import FlatModel
from fl.models import build
from fl.samples import Array, Samples
from fl.stacked_trainer import StackedTask
from fl.stacking_policy import AUTO, BATCHING_MODES, ONE_BY_ONE, TOGETHER, client_batches, convolution_work
from fl.trainer import Trainer
from fl.training_settings import Schedule, Training
from protocols.learner import Learner, Steering
from tests.fl.clients import amounts, clients, samples

SIZES = (3, 8, 9, 17, 5, 1, 12)
DIM = 15
Ask: TypeAlias = Callable[[Member], StackedTask]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Unused(nn.Module):
    """Has a parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(2))
        self.used = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.used(x)
        return outputs


class Louder(nn.Linear):
    """Does something else in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (3 if self.training else 1)


class Tied(nn.Module):
    """Uses the same weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.second(torch.tanh(self.first(x)))
        return outputs


def half_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    return module


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "softmax": (lambda: build("softmax", features=4, classes=3), (4,)),
    "softmax-images": (lambda: build("softmax", features=6, classes=3, zero=False), (1, 2, 3)),
    "softmax-plain": (lambda: build("softmax", features=4, classes=3, bias=False), (4,)),
    "mlp": (lambda: build("mlp", features=4, classes=3, hidden=(6,)), (4,)),
    "convnet": (convnet, (1, 6, 6)),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)), (4,)),
    "unused": (Unused, (4,)),
    "louder": (lambda: Louder(4, 3), (4,)),
    "tied": (Tied, (4,)),
    "frozen": (half_frozen, (4,)),
}


def crowd_of(
    model: str = "linear", *, batching: str = TOGETHER, sizes: tuple[int, ...] = SIZES, **chosen: Any
) -> Crowd:
    make, shape = MODELS[model]
    training = Training(**{"rate": 0.3, "batch": 4} | chosen)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = make()
    return Crowd(module, clients(sizes, shape=shape), training, device="cpu", batching=batching, seed=11)


def vector(seed: int, dim: int = DIM) -> Array:
    return np.random.default_rng(seed).normal(size=dim)


def agree(one: Any, other: Any, *, rtol: float = 2e-5, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(one), np.array(other), rtol=rtol, atol=atol)


def both(ask: Ask, model: str = "linear", **chosen: Any) -> tuple[list[Array], list[Array]]:
    """What the same tasks come to at once, and one by one."""
    stacked, alone = crowd_of(model, **chosen), crowd_of(model, **chosen)
    at_once = stacked._stack.train([ask(member) for member in stacked.values()])
    one_by_one = [member.alone(ask(member)) for member in alone.values()]
    assert [member.calls for member in stacked.values()] == [member.calls for member in alone.values()]
    return at_once, one_by_one


# --- at once and one by one ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_every_architecture(model: str) -> None:
    """Clients have from 2 to 10 steps, and the last batches of an epoch are short."""
    start = crowd_of(model).flat.read()
    at_once, one_by_one = both(lambda member: member.task(start), model, epochs=2)
    agree(at_once, one_by_one)
    assert all(np.abs(trained - start).max() > 0.01 for trained in at_once)


@pytest.mark.parametrize(
    "chosen",
    [
        {"batch": None, "steps": 5},
        {"batch": None, "epochs": 2},
        {"batch": 100, "steps": 3},
        {"batch": 8, "steps": 5},
        {"batch": 1, "steps": 4},
        {"steps": 1},
        {"momentum": 0.9, "epochs": 3},
        {"weight_decay": 0.2, "epochs": 2},
        {"clip": 0.1, "epochs": 2},
        {"momentum": 0.9, "weight_decay": 0.2, "clip": 0.5, "epochs": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["linear", "softmax"])
def test_every_setting(model: str, chosen: dict[str, Any]) -> None:
    agree(*both(lambda member: member.task(vector(member.client)), model, **chosen))


def test_in_double_precision_the_rounding_is_much_finer() -> None:
    at_once, one_by_one = both(
        lambda member: member.task(vector(member.client)), precision="float64", epochs=3, momentum=0.9
    )
    agree(at_once, one_by_one, rtol=1e-12, atol=1e-13)
    assert at_once[0].dtype == np.float64


def steered(kind: str, own: int) -> Steering:
    """`own` is 0 where all clients have the same."""
    one, two = vector(own + 1), vector(own + 2)
    return {
        "pull": Steering(pull=0.5 + own / 10, anchor=one),
        "correction": Steering(correction=one),
        "mix": Steering(mix=0.5 + own / 10, target=one),
        "all": Steering(pull=0.3 + own, anchor=one, correction=two, mix=0.2 + own, target=vector(own + 3)),
        "nothing": Steering(anchor=one, target=two),
    }[kind]


@pytest.mark.parametrize("own", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("kind", ["pull", "correction", "mix", "all", "nothing"])
def test_every_steering(kind: str, masked: bool, own: bool) -> None:
    common = steered(kind, 0), np.arange(DIM) % 2 == 0

    def ask(member: Member) -> StackedTask:
        steering, only = common
        if own:
            steering, only = steered(kind, member.client), np.arange(DIM) % 7 == member.client // 3
        rate = 0.1 * (1 + member.client // 3) if own else None
        return member.task(vector(0), steering, rate=rate, only=only if masked else None)

    agree(*both(ask, epochs=2, momentum=0.5, precision="float64"), rtol=1e-11, atol=1e-12)


@settings(max_examples=5)
@given(
    steps=st.lists(st.integers(0, 6), min_size=len(SIZES), max_size=len(SIZES)),
    batch=st.sampled_from([None, 1, 4, 9]),
)
def test_clients_may_have_any_numbers_of_steps(steps: list[int], batch: int | None) -> None:
    asked = dict(zip(crowd_of(), steps, strict=True))
    agree(*both(lambda member: member.task(vector(0), steps=asked[member.client]), batch=batch))


def test_regressions() -> None:
    for loss in ("squared", "logistic"):
        data = {}
        for k in range(4):
            some = amounts(5 + k, k)
            data[k] = ClientData(*[some if loss == "squared" else Samples(some.x, np.sign(some.y))] * 3)
        training = Training(loss=loss, batch=3, rate=0.05, epochs=2)
        made = [Crowd(build("linear", features=4), data, training, device="cpu") for _ in range(2)]
        start = vector(0, made[0].dim)
        at_once = made[0]._stack.train([member.task(start) for member in made[0].values()])
        agree(at_once, [member.alone(member.task(start)) for member in made[1].values()])


@pytest.mark.parametrize("model", ["linear", "softmax", "louder", "unused"])
@pytest.mark.parametrize("batch", [None, 4])
def test_gradients(model: str, batch: int | None) -> None:
    stacked, alone = crowd_of(model, batch=batch), crowd_of(model, batch=batch)
    start = stacked.flat.read()
    stacked.scores(start)  # which leaves the model in a state that is not that of training
    for _ in range(2):
        at_once = stacked._stack.gradients([StackedTask(member, start) for member in stacked.values()])
        agree(at_once, [member.gradient_alone(StackedTask(member, start)) for member in alone.values()])


@pytest.mark.parametrize("model", ["linear", "softmax"])
def test_who_diverges_disturbs_nobody(model: str) -> None:
    def ask(member: Member, lost: int) -> StackedTask:
        start = np.full(DIM, np.nan) if member.client == lost else vector(0)
        return member.task(start, steps=3)

    crowd = crowd_of(model)
    whole = crowd._stack.train([ask(member, -1) for member in crowd.values()])
    crowd = crowd_of(model)
    found = crowd._stack.train([ask(member, 7) for member in crowd.values()])
    assert not np.isfinite(found[2]).any()
    assert np.array_equal(np.delete(found, 2, axis=0), np.delete(whole, 2, axis=0))


def test_results_are_memory_of_their_own() -> None:
    crowd = crowd_of()
    start = vector(0).astype(np.float32)
    trained = crowd.train(start, steps=2)
    kept = {client: model.copy() for client, model in trained.items()}
    trained[1][:] = 0
    crowd.train(start, steps=2)
    assert np.array_equal(start, vector(0).astype(np.float32))
    assert all(np.array_equal(trained[client], kept[client]) for client in list(crowd)[1:])


# --- a crowd -------------------------------------------------------------------------------------------


def test_a_crowd_is_a_mapping_of_learners() -> None:
    crowd = crowd_of()
    assert (list(crowd), len(crowd)) == ([1, 4, 7, 10, 13, 16, 19], 7)
    assert repr(crowd) == f"Crowd(7 clients, {DIM} parameters)"
    assert crowd.dim == DIM
    learners: Mapping[int, Learner] = crowd
    assert [learners[client].samples for client in learners] == list(SIZES)
    with pytest.raises(KeyError):
        crowd[0]


def test_crowds_that_cannot_be() -> None:
    with pytest.raises(DataError, match="at least one client"):
        Crowd(nn.Linear(4, 3), {}, Training(), device="cpu")
    with pytest.raises(
        TrainingError,
        match=r"there is no batching mode 'togther'; did you mean 'together'\? Available: auto, together,",
    ):
        crowd_of(batching="togther")
    with pytest.raises(
        TrainingError, match=r"there is no batching mode 'x'\. Available: auto, together, one-by-one"
    ):
        crowd_of(batching="x")
    with pytest.raises(TrainingError, match=r"targets go from \d to 2, but the model has 2 classes"):
        Crowd(nn.Linear(4, 2), clients(SIZES), Training(), device="cpu")


def jobs_of(crowd: Crowd, work: Callable[[Member], Any]) -> dict[int, Callable[[], Any]]:
    return {client: partial(work, crowd[client]) for client in crowd}


def done_by(crowd: Crowd, work: Callable[[Member], Any]) -> dict[int, Any]:
    return {client: each.result() for client, each in crowd.together(jobs_of(crowd, work)).items()}


def lone(crowd: Crowd, **chosen: Any) -> dict[int, Trainer]:
    """The same clients without a crowd."""
    training = Training(**{"rate": 0.3, "batch": 4} | chosen)
    return {
        client: Trainer.on(nn.Linear(4, 3), data, training, device="cpu", seed=11, client=client)
        for client, data in clients(SIZES).items()
    }


@pytest.mark.parametrize("batching", BATCHING_MODES)
def test_a_member_computes_what_a_client_alone_would(batching: str) -> None:
    crowd = crowd_of(batching=batching)
    trainers = lone(crowd)
    for _ in range(2):
        inside = done_by(crowd, lambda member: member.train(vector(0), steps=3))
        for client, trainer in trainers.items():
            agree(inside[client], trainer.train(vector(0), steps=3))
    for client, trainer in trainers.items():
        expected = trainer.train(vector(0)), trainer.gradient(vector(0))
        outside = crowd[client].train(vector(0)), crowd[client].gradient(vector(0))
        assert np.array_equal(expected, outside), "asked on its own, to the bit"


def test_one_by_one_is_the_same_to_the_bit() -> None:
    crowd = crowd_of(batching=ONE_BY_ONE)
    trainers = lone(crowd)
    inside = done_by(crowd, lambda member: (member.train(vector(0)), member.gradient(vector(1))))
    for client, trainer in trainers.items():
        assert np.array_equal(inside[client], (trainer.train(vector(0)), trainer.gradient(vector(1))))


def test_what_is_trained_together_is_trained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = crowd_of(sizes=(8,) * 6)
    seen = []
    train, gradients = crowd._stack.train, crowd._stack.gradients

    def spy(name: str, do: Callable[[Any], list[Array]], tasks: list[StackedTask]) -> list[Array]:
        seen.append((name, len(tasks)))
        return do(tasks)

    monkeypatch.setattr(crowd._stack, "train", partial(spy, "train", train))
    monkeypatch.setattr(crowd._stack, "gradients", partial(spy, "gradients", gradients))
    done_by(crowd, lambda member: (member.train(vector(0)), member.gradient(vector(1))))
    crowd.train(vector(0))
    assert seen == [("train", 6), ("gradients", 6), ("train", 6)]


def test_clients_that_do_different_things_get_what_each_would_alone() -> None:
    """Some train, steered or not, some for longer; some only want a gradient, a loss, or to talk."""

    def work(client: int, learner: Any) -> Any:
        match client % 5:
            case 0:
                return learner.gradient(learner.train(vector(0), steps=2))
            case 1:
                return learner.train(vector(1), Steering(pull=1.0, anchor=vector(2)))
            case 2:
                first = learner.train(vector(0))
                return learner.train(first, only=np.arange(DIM) < 9)
            case 3:
                return learner.loss(learner.train(vector(0))), learner.score(vector(3)).correct
        return learner.train(learner.train(learner.gradient(vector(0))))

    crowd = crowd_of()
    found = done_by(crowd, lambda member: work(member.client, member))
    for client, trainer in lone(crowd).items():
        agree(found[client], work(client, trainer))


def test_the_same_seed_gives_the_same_bits_whatever_threads_do() -> None:
    usual, found = sys.getswitchinterval(), []
    try:
        for interval in (usual, 1e-6):
            sys.setswitchinterval(interval)
            crowd = crowd_of(epochs=2)
            found.append(done_by(crowd, lambda member: member.gradient(member.train(vector(0)))))
    finally:
        sys.setswitchinterval(usual)
    assert all(np.array_equal(found[0][client], found[1][client]) for client in found[0])


@pytest.mark.parametrize("batching", BATCHING_MODES)
def test_everybody_trains_from_a_common_start_or_from_its_own(batching: str) -> None:
    common, own = crowd_of(batching=batching), crowd_of(batching=batching)
    trained = common.train(vector(0), steering=Steering(pull=1.0, anchor=vector(1)), steps=2, rate=0.1)
    again = own.train(
        dict.fromkeys(own, vector(0)), steering=Steering(pull=1.0, anchor=vector(1)), steps=2, rate=0.1
    )
    assert list(trained) == list(common)
    for client, trainer in lone(common).items():
        expected = trainer.train(vector(0), Steering(pull=1.0, anchor=vector(1)), steps=2, rate=0.1)
        agree(trained[client], expected)
        agree(again[client], expected)


@pytest.mark.parametrize("batching", [TOGETHER, ONE_BY_ONE])
def test_what_was_trained_last_is_kept_for_whoever_wants_it(batching: str) -> None:
    crowd = crowd_of(batching=batching)
    done_by(crowd, lambda member: member.train(vector(0)))
    assert crowd.latest is None
    crowd.latest = {}
    trained = done_by(crowd, lambda member: (member.train(vector(0)), member.gradient(vector(1)))[0])
    assert sorted(crowd.latest) == sorted(trained)
    assert all(np.array_equal(crowd.latest[client], trained[client]) for client in trained)


def test_only_those_who_are_asked_train() -> None:
    crowd = crowd_of()
    assert list(crowd.train({10: vector(0), 4: vector(1)})) == [10, 4]
    assert [member.calls for member in crowd.values()] == [0, 1, 0, 1, 0, 0, 0]
    assert crowd.train({}) == {}


def test_what_federation_is_measured_by() -> None:
    """One client with everybody's data, whose batches are those of no member."""
    crowd, data = crowd_of(), clients(SIZES)
    pooled = crowd.pooled()
    assert pooled.client not in crowd
    joined = ClientData(
        Samples.join(each.train for each in data.values()),
        Samples.join(each.validation for each in data.values()),
        Samples.join(each.test for each in data.values()),
    )
    alone = Trainer.on(nn.Linear(4, 3), joined, crowd.training, device="cpu", seed=11, client=pooled.client)
    assert np.array_equal(pooled.train(vector(0)), alone.train(vector(0)))
    assert pooled.score(vector(0)) == alone.score(vector(0))


def test_rounds_decide_the_learning_rate() -> None:
    crowd = crowd_of(schedule=Schedule("linear"), batch=None)
    crowd.begin_round(4)
    assert {member.rate for member in crowd.values()} == {0.3 / 5}
    trained = crowd.train(vector(0))
    for client, trainer in lone(crowd, batch=None).items():
        agree(trained[client], trainer.train(vector(0), rate=0.06))


# --- what cannot be stacked ----------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Reads its features one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.read(x.unsqueeze(-1))[0]
        return states[:, -1]


@pytest.mark.parametrize(
    "make",
    [lambda: build("mlp", features=4, classes=3, hidden=(8,), dropout=0.5), Recurrent],
    ids=["dropout", "lstm"],
)
def test_what_cannot_be_done_at_once_is_done_one_by_one(make: Callable[[], nn.Module]) -> None:
    data, training = clients((5, 6, 4, 7, 5)), Training(batch=3, rate=0.3)
    crowd = Crowd(make(), data, training, device="cpu", batching=TOGETHER, seed=11)
    start = vector(0, crowd.dim)
    trained = done_by(crowd, lambda member: member.train(start))
    for client, each in data.items():
        alone = Trainer.on(make(), each, training, device="cpu", seed=11, client=client)
        assert np.array_equal(trained[client], alone.train(start))


def test_symbols() -> None:
    rng = np.random.default_rng(0)
    texts = [Samples(rng.integers(0, 6, size=(5 + k, 4)), rng.integers(0, 6, size=5 + k)) for k in range(4)]
    data = {k: ClientData(text, text, text) for k, text in enumerate(texts)}
    module = build("char-lstm", vocabulary=6, embedding=2, hidden=3)
    crowd = Crowd(module, data, Training(batch=3, rate=0.3), device="cpu")
    start = vector(0, crowd.dim)
    at_once = crowd._stack.train([member.task(start) for member in crowd.values()])
    for member in crowd.values():
        member.calls = 0
    agree(at_once, [member.alone(member.task(start)) for member in crowd.values()])


def flat_of(module: nn.Module) -> FlatModel:
    return FlatModel(module, device=torch.device("cpu"), dtype=torch.float32)


@cache
def sized(hidden: int, drops: bool) -> FlatModel:
    return flat_of(nn.Sequential(nn.Linear(1, hidden), nn.Dropout(0.5 if drops else 0.0)))


@settings(max_examples=20)
@given(
    clients=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=30),
    batching=st.sampled_from(BATCHING_MODES),
    hidden=st.sampled_from([1, 30_000, 400_000]),
    drops=st.booleans(),
)
def test_every_client_is_in_one_portion(
    clients: list[tuple[int, int]], batching: str, hidden: int, drops: bool
) -> None:
    widths, steps = [width for width, _ in clients], [count for _, count in clients]
    chosen = client_batches(sized(hidden, drops), batching, widths, steps)
    assert sorted(place for portion in chosen for place in portion) == list(range(len(widths)))
    assert all(chosen), "none is empty"
    if batching == ONE_BY_ONE or drops:
        assert {len(portion) for portion in chosen} <= {1}


def test_alike_clients_of_a_small_model_go_together() -> None:
    for batching in (AUTO, TOGETHER):
        assert client_batches(flat_of(nn.Linear(4, 3)), batching, [10] * 8, [5] * 8) == [list(range(8))]


def test_who_has_far_more_steps_than_all_others_goes_alone() -> None:
    chosen = client_batches(flat_of(nn.Linear(4, 3)), AUTO, [10] * 9, [5] * 4 + [10**6] + [5] * 4)
    assert sorted(chosen) == [[0, 1, 2, 3, 5, 6, 7, 8], [4]]


def test_convolutions_go_together_only_if_there_is_little_to_do_in_them() -> None:
    flat, widths, steps = flat_of(convnet()), [10] * 8, [5] * 8
    work = convolution_work(flat.module, torch.zeros(3, 1, 6, 6))
    assert work == 2 * (3 * 3) * (4 * 4), "two filters of 3 by 3 at 4 by 4 places"
    assert not any(part._forward_hooks for part in flat.module.modules())
    assert convolution_work(nn.Linear(4, 3), torch.zeros(3, 4)) == 0
    assert client_batches(flat, AUTO, widths, steps, work) == [list(range(8))]
    assert client_batches(flat, AUTO, widths, steps, 10**12) == [[client] for client in range(8)]
    assert client_batches(flat, TOGETHER, widths, steps, 10**12) == [list(range(8))]


def test_portions_are_the_same_every_time() -> None:
    widths = [3, 50, 7, 7, 90, 1, 12] * 5
    flat = flat_of(nn.Linear(100, 100))
    for batching in BATCHING_MODES:
        assert client_batches(flat, batching, widths, widths[::-1]) == client_batches(
            flat, batching, widths, widths[::-1]
        )


# --- talk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [TOGETHER, ONE_BY_ONE])
def test_clients_that_come_to_the_same_point_hear_one_another(batching: str) -> None:
    crowd = crowd_of(batching=batching)

    def work(member: Member) -> Any:
        if member.client == 4:
            return None  # has nothing to do
        trained = member.train(vector(0), steps=member.client % 4)
        if member.client == 7:
            trained = member.train(trained)  # takes longer, and is waited for
        first = member.exchange(float(trained.sum()))
        if member.client == 10:
            return first
        return first, member.exchange(-member.client)

    found = done_by(crowd, work)
    assert found[4] is None
    everybody = found[1][0]
    assert sorted(everybody) == [1, 7, 10, 13, 16, 19]
    trainers = lone(crowd)
    for client, said in everybody.items():
        trained = trainers[client].train(vector(0), steps=client % 4)
        expected = trainers[client].train(trained) if client == 7 else trained
        assert said == pytest.approx(float(expected.sum()), rel=1e-4)
    assert found[10] == everybody
    for client in (1, 7, 13, 16, 19):
        assert found[client] == (everybody, {k: -k for k in (1, 7, 13, 16, 19)})


def test_there_is_nobody_to_talk_to_outside() -> None:
    with pytest.raises(
        TrainingError, match=r"only clients that run in Crowd\.together can exchange values: use a Crowd"
    ):
        crowd_of()[1].exchange(1)


# --- errors --------------------------------------------------------------------------------------------


def test_who_fails_fails_alone() -> None:
    crowd = crowd_of()

    def work(member: Member) -> Array:
        trained = member.train(vector(0))
        if member.client == 7:
            raise RuntimeError("disk full")
        return member.train(trained)

    done = crowd.together(jobs_of(crowd, work))
    with pytest.raises(RuntimeError, match="disk full"):
        done[7].result()
    for client, trainer in lone(crowd).items():
        if client != 7:
            agree(done[client].result(), trainer.train(trainer.train(vector(0))))


@pytest.mark.parametrize("batching", [TOGETHER, ONE_BY_ONE])
def test_what_cannot_be_trained_is_an_error_and_the_crowd_lives_on(batching: str) -> None:
    crowd = crowd_of(batching=batching)
    with pytest.raises(TrainingError, match=f"a model of {DIM} parameters"):
        done_by(crowd, lambda member: member.train(vector(0, DIM + (member.client == 7))))
    assert np.isfinite(done_by(crowd, lambda member: member.train(vector(0)))[7]).all()


# --- judging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [3, 8192])
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_scores_are_those_of_every_client(part: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd_module, "_CHUNK", chunk)
    crowd, data = crowd_of(), clients(SIZES)
    own = {client: vector(client) for client in crowd}
    common, personal = crowd.scores(vector(0), part), crowd.scores(own, part)
    assert list(common) == list(personal) == list(crowd)
    for client, trainer in lone(crowd).items():
        for model, found in ((vector(0), common[client]), (own[client], personal[client])):
            expected = trainer.score_on(model, getattr(data[client], part))
            assert (found.correct, found.total) == (expected.correct, expected.total)
            assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert crowd.losses(vector(0), part) == {client: score.loss for client, score in common.items()}


def test_the_usual_parts() -> None:
    crowd = crowd_of()
    assert crowd.scores(vector(0)) == crowd.scores(vector(0), "test")
    assert crowd.losses(vector(0)) == crowd.losses(vector(0), "train")
    for client, member in crowd.items():
        assert crowd.losses(vector(0))[client] == pytest.approx(member.loss(vector(0)), rel=1e-5)


def test_some_clients_with_models_of_their_own() -> None:
    assert list(crowd_of().scores({10: vector(0), 4: vector(1)})) == [10, 4]


def test_parts_that_do_not_exist() -> None:
    with pytest.raises(
        TrainingError, match="a client's data has no part 'tests'; there are train, validation, test"
    ):
        crowd_of().scores(vector(0), "tests")


def test_nobody_needs_test_data() -> None:
    none = samples(0, 0)
    data = {k: ClientData(each.train, none, none) for k, each in clients(SIZES).items()}
    crowd = Crowd(nn.Linear(4, 3), data, Training(), device="cpu")
    for models in (vector(0), dict.fromkeys(crowd, vector(0))):
        assert {(s.correct, s.total, s.loss) for s in crowd.scores(models).values()} == {(0, 0, 0.0)}


def test_time_that_was_spent_for_all_is_shared() -> None:
    crowd = crowd_of(batching=TOGETHER)

    crowd.train(vector(0))

    assert all(member.seconds > 0 for member in crowd.values())
