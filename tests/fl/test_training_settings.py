"""Settings of local training: what they mean, and what is refused; schedules, losses and devices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fl import device_and_threads
from fl.device_and_threads import pick
from fl.errors import TrainingError
from fl.loss_functions import OBJECTIVES, objective
from fl.training_settings import KINDS, Schedule, Training

# --- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "samples", "steps"),
    [
        ({}, 100, 1),
        ({"batch": 10}, 100, 10),
        ({"batch": 10}, 101, 11),
        ({"batch": 10}, 3, 1),
        ({"batch": 10, "epochs": 3}, 25, 9),
        ({"epochs": 4}, 25, 4),
        ({"batch": 10, "steps": 7}, 1000, 7),
        ({"steps": 7}, 1, 7),
    ],
)
def test_steps_of_a_client(chosen: dict[str, int], samples: int, steps: int) -> None:
    assert Training(**chosen).steps_of(samples) == steps  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"steps": 1, "epochs": 1}, "either steps or epochs"),
        ({"steps": 0}, "steps must be a whole number of 1 or more, not 0"),
        ({"epochs": -1}, "epochs must be a whole number"),
        ({"epochs": 1.0}, "epochs must be a whole number"),
        ({"batch": True}, "batch must be a whole number of 1 or more, not True"),
        ({"rate": 0}, "rate must be above 0, not 0"),
        ({"rate": -0.1}, "rate must be above 0"),
        ({"rate": math.inf}, "rate must be above 0"),
        ({"rate": math.nan}, "rate must be above 0"),
        ({"rate": "0.1"}, "rate must be above 0, not '0.1'"),
        ({"rate": True}, "rate must be above 0"),
        ({"momentum": 1}, "momentum must be at least 0 and below 1, not 1"),
        ({"momentum": -0.1}, "momentum must be at least 0"),
        ({"weight_decay": -1e-9}, "weight_decay must be at least 0, not"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"rate": 10**400}, "rate must be above 0, not 1000"),
        ({"rate": np.float32("nan")}, "rate must be above 0, not nan"),
        ({"steps": np.float64(2)}, "steps must be a whole number of 1 or more, not 2.0"),
        ({"batch": np.True_}, "batch must be a whole number"),
        ({"schedule": "sqrt"}, r"schedule must be a Schedule, such as Schedule\('sqrt'\), not 'sqrt'"),
        ({"schedule": None}, "schedule must be a Schedule"),
        ({"loss": "hinge"}, r"there is no loss 'hinge'\. Available: cross-entropy, squared, logistic"),
        ({"precision": "float16"}, "precision must be one of float32, float64, not 'float16'"),
    ],
)
def test_settings_that_cannot_be(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        Training(**chosen)


def test_numbers_of_numpy_are_as_good() -> None:
    chosen = Training(rate=np.float32(0.5), steps=np.int64(3), batch=np.uint8(4), clip=np.float64(1.5))  # type: ignore[arg-type]
    assert chosen == Training(rate=0.5, steps=3, batch=4, clip=1.5)
    assert [type(value) for value in (chosen.rate, chosen.steps, chosen.batch)] == [float, int, int]
    schedule = Schedule("steps", every=np.int32(2), factor=np.float32(0.5))  # type: ignore[arg-type]
    assert schedule == Schedule("steps", every=2, factor=0.5)
    assert type(schedule(2)) is float


def test_settings_at_their_limits() -> None:
    chosen = Training(rate=1e-300, momentum=0, weight_decay=0, clip=1e-300, steps=1, batch=1)
    assert chosen.dtype is torch.float32
    assert Training(precision="float64").dtype is torch.float64
    assert Training(loss="squared").objective is OBJECTIVES["squared"]


# --- schedules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), {0: 1, 1: 1, 99: 1}),
        (Schedule("steps"), {0: 1, 99: 1, 100: 0.5, 199: 0.5, 200: 0.25}),
        (Schedule("steps", every=3, factor=0.1), {2: 1, 3: 0.1, 8: 0.01}),
        (Schedule("log"), {0: 1, 9: 1 / 2, 99: 1 / 3}),
        (Schedule("sqrt"), {0: 1, 3: 1 / 2, 8: 1 / 3}),
        (Schedule("linear"), {0: 1, 3: 1 / 4, 8: 1 / 9}),
    ],
    ids=lambda value: value.kind if isinstance(value, Schedule) else "",
)
def test_schedules(schedule: Schedule, expected: dict[int, float]) -> None:
    assert {number: schedule(number) for number in expected} == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rates_never_rise(kind: str) -> None:
    rates = [Schedule(kind, every=7)(number) for number in range(50)]
    assert rates[0] == 1
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (
            {"kind": "constnat"},
            r"there is no schedule 'constnat'; did you mean 'constant'\? Available: constant, steps,",
        ),
        ({"kind": "zzz"}, r"there is no schedule 'zzz'\. Available: constant, steps, log, sqrt, linear"),
        ({"every": 0}, "`every` is a number of rounds"),
        ({"every": 1.5}, "`every` is a number of rounds, 1 or more, not 1.5"),
        ({"every": math.nan}, "`every` is a number of rounds, 1 or more, not nan"),
        ({"every": "2"}, "`every` is a number of rounds, 1 or more, not '2'"),
        ({"every": True}, "`every` is a number of rounds"),
        ({"factor": "a"}, "factor is above 0 and at most 1, not 'a'"),
        ({"factor": 0}, "factor is above 0 and at most 1"),
        ({"factor": 1.1}, "factor is above 0"),
        ({"factor": math.nan}, "factor is above 0"),
    ],
)
def test_schedules_that_cannot_be(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        Schedule(**chosen)


# --- what is trained for -------------------------------------------------------------------------------


def test_cross_entropy_is_the_surprise_at_the_right_class() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 5, 3))
    targets = np.arange(10).reshape(2, 5) % 3
    chances = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = -np.log(np.take_along_axis(chances, targets[..., None], axis=-1)[..., 0])
    aim = objective("cross-entropy")
    losses = aim.losses(torch.from_numpy(logits), torch.from_numpy(targets))
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-12)
    right = aim.right(torch.from_numpy(logits), torch.from_numpy(targets))
    assert right.tolist() == (logits.argmax(axis=-1) == targets).tolist()
    assert aim.whole_targets


def test_squared_errors_are_halved_and_never_right() -> None:
    aim = objective("squared")
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[1.0, 4.0], [3.0, -1.0]])
    assert aim.losses(outputs, targets).tolist() == [[0, 2], [4.5, 0]]
    assert aim.right(outputs, targets).tolist() == [[False, False], [False, False]]
    assert not aim.whole_targets


def test_logistic_losses() -> None:
    aim = objective("logistic")
    outputs, targets = torch.tensor([3.0, -3.0, 0.0, -800.0]), torch.tensor([1.0, 1.0, -1.0, 1.0])
    expected = [math.log1p(math.exp(-3)), math.log1p(math.exp(3)), math.log(2), 800]
    assert aim.losses(outputs, targets).tolist() == pytest.approx(expected)
    assert aim.right(outputs, targets).tolist() == [True, False, False, False]
    assert not aim.whole_targets


# --- devices -------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes torch see other hardware than there is."""

    def make(*, gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.mps, "is_available", lambda: mps)

    return make


def test_auto_takes_the_best_there_is(machine: Any) -> None:
    machine()
    assert pick() == torch.device("cpu")
    machine(mps=True)
    assert pick() == torch.device("mps") == pick("mps")
    assert pick("cpu") == torch.device("cpu")
    machine(gpus=1, mps=True)
    assert pick() == torch.device("cuda", 0)


def test_clients_take_turns_on_gpus(machine: Any) -> None:
    machine(gpus=3)
    assert [pick("auto", client).index for client in range(5)] == [0, 1, 2, 0, 1]
    assert [pick("cuda", client).index for client in range(5)] == [0, 1, 2, 0, 1]
    assert [pick("cuda:1", client).index for client in range(5)] == [1] * 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cdua", r"there is no device 'cdua'; did you mean 'cuda'\? Available: auto, cuda, mps, cpu, cuda:N"),
        ("quantum", r"there is no device 'quantum'\. Available: auto, cuda, mps, cpu, cuda:N"),
        ("cuda:x", r"there is no device 'cuda:x'; did you mean 'cuda:N'\? Available: auto, cuda, mps, cpu,"),
        (
            "cpu:0",
            r"there is no device 'cpu:0'; did you mean 'cpu'\? Available: auto, cuda, mps, cpu, cuda:N",
        ),
        ("cuda", "cuda: torch sees no GPU here; set device to auto or cpu"),
        ("cuda:1", "cuda:1: torch sees no GPU here"),
        ("mps", "this machine has no mps device: set device to auto or cpu"),
    ],
)
def test_devices_that_are_not_there(machine: Any, name: str, words: str) -> None:
    machine()
    with pytest.raises(TrainingError, match=words):
        pick(name)


def test_gpus_are_counted_from_zero(machine: Any) -> None:
    machine(gpus=2)
    assert device_and_threads.pick("cuda:1").index == 1
    with pytest.raises(TrainingError, match="cuda:2: there are 2 GPUs, counted from 0"):
        device_and_threads.pick("cuda:2")
