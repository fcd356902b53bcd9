"""Optimisers of a server, against torch where the definitions are the same, and against the paper by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from protocols.serialisation import Vector, pack, unpack
from protocols.server_optimiser import OptimiserState, ServerOptimiser
from secagg.errors import ParameterError

DIM = 7


def updates(rounds: int = 40) -> list[Vector]:
    """Means of updates as they may come: of all sizes, and in one coordinate always zero."""
    rng = np.random.default_rng(9)
    sizes = np.array([0.0, 1e-4, 1e-2, 0.1, 1.0, 3.0, 30.0])
    return [sizes * rng.normal(size=DIM) for _ in range(rounds)]


def path(optimiser: ServerOptimiser) -> list[Vector]:
    """The model after each update."""
    model, state, found = np.ones(DIM), optimiser.start(DIM), []
    for update in updates():
        model, state = optimiser.step(state, model, update)
        found.append(model)
    return found


def torch_path(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> list[Vector]:
    """The same by torch, to which an update is a gradient that points upwards."""
    model = torch.ones(DIM, dtype=torch.float64, requires_grad=True)
    optimiser, found = make([model]), []
    for update in updates():
        model.grad = torch.from_numpy(-update)
        optimiser.step()
        found.append(model.detach().numpy().copy())
    return found


def test_sgd_alone_is_plain_averaging() -> None:
    assert np.array(path(ServerOptimiser())) == pytest.approx(1 + np.cumsum(updates(), axis=0), abs=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_sgd_with_momentum_is_that_of_torch(momentum: float) -> None:
    ours = path(ServerOptimiser(kind="sgd", rate=0.3, momentum=momentum))
    theirs = torch_path(lambda model: torch.optim.SGD(model, lr=0.3, momentum=momentum))
    assert np.array(ours) == pytest.approx(np.array(theirs), rel=1e-12, abs=1e-12)


def test_corrected_adam_is_that_of_torch() -> None:
    ours = path(ServerOptimiser(kind="adam", rate=0.05, beta1=0.8, beta2=0.95, epsilon=1e-2, corrected=True))
    theirs = torch_path(lambda model: torch.optim.Adam(model, lr=0.05, betas=(0.8, 0.95), eps=1e-2))
    assert np.array(ours) == pytest.approx(np.array(theirs), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_ones_are_those_of_the_paper(kind: str) -> None:
    """Algorithm 2, written out once more, one coordinate after another."""
    rate, beta1, beta2, tau = 0.05, 0.9, 0.99, 1e-3
    found = path(ServerOptimiser(kind=kind, rate=rate))
    for k in range(DIM):
        x, m, v = 1.0, 0.0, tau**2
        for update, after in zip(updates(), found, strict=True):
            delta = float(update[k])
            m = beta1 * m + (1 - beta1) * delta
            if kind == "adam":
                v = beta2 * v + (1 - beta2) * delta**2
            else:
                v = v - (1 - beta2) * delta**2 * (1 if v > delta**2 else -1 if v < delta**2 else 0)
            x = x + rate * m / (v**0.5 + tau)
            assert after[k] == pytest.approx(x, rel=1e-12)


def test_yogi_changes_slowly_where_updates_become_small_and_adam_does_not() -> None:
    large, small = np.full(1, 10.0), np.full(1, 1e-3)
    seconds = {}
    for kind in ("adam", "yogi"):
        optimiser = ServerOptimiser(kind=kind, rate=0.1)
        _, state = optimiser.step(optimiser.start(1), np.zeros(1), large)
        for _ in range(100):
            _, state = optimiser.step(state, np.zeros(1), small)
        assert state.second is not None
        seconds[kind] = float(state.second[0])
    assert seconds["yogi"] > 0.999
    assert seconds["adam"] < 0.4


@pytest.mark.parametrize(
    "optimiser",
    [
        ServerOptimiser(momentum=0.9),
        ServerOptimiser(kind="adam", rate=0.1, corrected=True),
        ServerOptimiser(kind="yogi", rate=0.1),
    ],
)
def test_a_state_on_disk_goes_on_where_it_was(optimiser: ServerOptimiser) -> None:
    model, state = np.ones(DIM), optimiser.start(DIM)
    for update in updates():
        model, state = optimiser.step(state, model, update)
        state = unpack(OptimiserState, pack(state))
    assert state.steps == len(updates())
    assert np.array_equal(model, path(optimiser)[-1])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": "adagrad"}, "kind must be one of sgd, adam, yogi, not 'adagrad'"),
        ({"kind": ["sgd"]}, "kind must be one of"),
        ({"kind": "adam"}, "rate must be set"),
        ({"kind": "yogi"}, "rate must be set"),
        ({"rate": 0.0}, "rate must be a number above 0"),
        ({"momentum": 1.0}, "momentum must be less than 1"),
        ({"momentum": -0.1}, "momentum must be a number of at least 0"),
        ({"beta1": 1}, "beta1 must be less than 1"),
        ({"beta2": float("nan")}, "beta2 must be a number"),
        ({"epsilon": 0}, "epsilon must be a number above 0"),
        ({"corrected": "no"}, "corrected must be true or false"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        ServerOptimiser(**wrong)
