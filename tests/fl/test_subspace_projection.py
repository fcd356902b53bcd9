"""Local steps with a projection in them: on a device as in numpy, and together as one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fl import subspace_projection as projections
from fl.attacks.updates_and_answers import SignFlip
from fl.crowd import Crowd, Member
from fl.errors import TrainingError
from fl.models import build
from fl.stacking_policy import AUTO, ONE_BY_ONE, TOGETHER
from fl.subspace_projection import BlockwiseProjection, DenseProjection, HadamardProjection, _made
from fl.training_settings import Training
from protocols import random_projection as made
from protocols.learner import PenaltyTerm, Steering
from protocols.quadratic_learner import penalty_gradient
from protocols.random_projection import Subspace
from tests.fl.clients import clients

CPU = torch.device("cpu")
SIZES = (3, 8, 9, 17, 5)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def crowd_of(model: str = "softmax", batching: str = TOGETHER, **chosen: Any) -> Crowd:
    options: dict[str, Any] = {"hidden": (6,)} if model == "mlp" else {}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = build(model, features=4, classes=3, **options)
    usual: dict[str, Any] = {"rate": 0.2, "batch": 4, "steps": 5, "precision": "float64"}
    return Crowd(module, clients(SIZES), Training(**usual | chosen), device="cpu", batching=batching, seed=11)


def penalty_of(power: int, kind: str, dim: int, own: int = 0) -> PenaltyTerm:
    space = None if kind == "whole" else Subspace(dim=dim, size=4, seed=1, transform=kind)
    place = np.random.default_rng(own).normal(size=dim if space is None else 4)
    return PenaltyTerm(center=place, pull=0.5 + own / 10, power=power, space=space)


# --- on a device ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [(), (3,)], ids=["one", "stack"])
@pytest.mark.parametrize("dim", [1, 2, 37, 64, 700])
@pytest.mark.parametrize("transform", ["dense", "fast", "blocks"])
def test_projections_on_a_device_are_those_of_numpy(
    transform: str, dim: int, stack: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Subspace(dim=dim, size=max(1, dim // 5), transform="fast" if transform == "fast" else "dense")
    if transform == "blocks":
        monkeypatch.setattr(made, "MOST_HELD", 0)
        monkeypatch.setattr(made, "_BLOCK", 20_000)
    found = _made.__wrapped__(space, CPU, torch.float64)
    kinds: dict[str, type] = {
        "dense": DenseProjection,
        "fast": HadamardProjection,
        "blocks": BlockwiseProjection,
    }
    assert type(found) is kinds[transform]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(*stack, dim)), rng.normal(size=(*stack, space.size))
    np.testing.assert_allclose(found.project(torch.from_numpy(x)).numpy(), space.project(x), atol=1e-11)
    np.testing.assert_allclose(found.lift(torch.from_numpy(y)).numpy(), space.lift(y), atol=1e-11)


def test_a_matrix_is_made_and_moved_once_for_all_clients() -> None:
    crowd = crowd_of()
    penalty = penalty_of(2, "dense", crowd.dim)
    _made.cache_clear()
    for _ in range(2):
        crowd.train(np.zeros(crowd.dim), steering=Steering(penalty=penalty))
    assert _made.cache_info().misses == 1


# --- local steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("kind", ["dense", "fast", "whole"])
@pytest.mark.parametrize("power", [1, 2])
def test_steps_are_those_that_a_tie_defines(power: int, kind: str, masked: bool) -> None:
    trainer, other = (crowd_of(batch=None, clip=0.05, weight_decay=0.1)[1] for _ in range(2))
    penalty = penalty_of(power, kind, trainer.flat.dim)
    only = np.arange(trainer.flat.dim) % 3 > 0 if masked else None
    model = np.random.default_rng(3).normal(size=trainer.flat.dim)
    trained = trainer.train(model, Steering(penalty=penalty), steps=4, rate=0.3, only=only)
    for _ in range(4):  # the gradient of a batch is clipped, where it moves anything, and nothing else
        gradient = other.gradient(model) if only is None else other.gradient(model) * only
        gradient = (
            gradient * min(1, 0.05 / np.linalg.norm(gradient))
            + 0.1 * model
            + penalty_gradient(penalty, model)
        )
        model = model - 0.3 * (gradient if only is None else gradient * only)
    np.testing.assert_allclose(trained, model, atol=1e-11)


@pytest.mark.parametrize("own", [False, True], ids=["common", "own"])
@pytest.mark.parametrize("kind", ["dense", "fast", "whole"])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_together_is_the_same_as_one_by_one(model: str, power: int, kind: str, own: bool) -> None:
    """Clients may be tied to different places, and take different numbers of steps."""
    found = []
    for batching in (TOGETHER, ONE_BY_ONE):
        crowd = crowd_of(model, batching, steps=None, epochs=2)
        start = np.random.default_rng(1).normal(size=crowd.dim)

        def job(member: Member, start: Any = start) -> Any:
            penalty = penalty_of(power, kind, member.flat.dim, member.client if own else 0)
            return lambda: member.train(start, Steering(penalty=penalty, correction=start / 10))

        done = crowd.together({client: job(member) for client, member in crowd.items()})
        found.append(np.array([each.result() for each in done.values()]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-10)


def test_ties_of_different_kinds_are_not_mixed_up() -> None:
    """In one sum, one client may be tied by signs, one to another subspace, and one not at all."""
    crowd, alone = crowd_of(batching=TOGETHER), crowd_of(batching=ONE_BY_ONE)
    dim = crowd.dim
    penalties = [penalty_of(1, "dense", dim), penalty_of(2, "dense", dim), penalty_of(2, "fast", dim), None]
    penalties.append(PenaltyTerm(center=np.ones(2), pull=1.0, space=Subspace(dim=dim, size=2)))
    chosen = dict(zip(crowd, penalties, strict=True))
    start = np.zeros(dim)
    tasks = {
        client: (lambda c=client: crowd[c].train(start, Steering(penalty=chosen[c]))) for client in crowd
    }
    done = crowd.together(tasks)
    for client in crowd:
        expected = alone[client].train(start, Steering(penalty=chosen[client]))
        np.testing.assert_allclose(done[client].result(), expected, atol=1e-11)


def test_corrupt_clients_pass_a_tie_on() -> None:
    honest, learner = crowd_of(batching=AUTO)[1], crowd_of(batching=AUTO)[1]
    steering = Steering(penalty=penalty_of(2, "dense", honest.flat.dim))
    start = np.ones(honest.flat.dim)
    flipped = SignFlip(learner, np.random.default_rng(0), deviation=None).train(start, steering)
    np.testing.assert_allclose(flipped - start, start - honest.train(start, steering), atol=1e-12)


def test_places_and_subspaces_of_another_size_are_refused() -> None:
    member = crowd_of()[1]
    dim = member.flat.dim
    with pytest.raises(TrainingError, match=f"does not fit {dim} parameters"):
        member.train(np.zeros(dim), Steering(penalty=penalty_of(2, "dense", dim + 1)))
    penalty = PenaltyTerm(center=np.zeros(3), pull=1.0, space=Subspace(dim=dim, size=4))
    with pytest.raises(TrainingError, match="a point of 4 parameters cannot be made of shape"):
        member.train(np.zeros(dim), Steering(penalty=penalty))


def test_nothing_is_asked_of_numpy_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix is on the device when steps begin, so that no step waits for a copy from there or to it."""
    member = crowd_of()[1]
    penalty = penalty_of(2, "dense", member.flat.dim)
    _made(penalty.space, CPU, torch.float64)
    for name in ("project", "lift", "blocks", "matrix"):
        monkeypatch.delattr(Subspace, name)
    member.train(np.zeros(member.flat.dim), Steering(penalty=penalty))
    assert projections._made.cache_info().hits


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_a_million_parameters_in_a_gigabyte_and_at_most_five_times_the_time(model: str) -> None:
    """A ratio within one run. The best of a few tries counts: this machine may be doing something else."""
    command = [sys.executable, "-m", "tests.fl.projection_cost", model]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        found = json.loads(done.stdout)
        assert found["parameters"] >= 1_000_000
        assert found["peak_bytes"] < 1e9
        if max(found["ratios"].values()) <= 5:
            return
    pytest.fail(f"steps with a projection take {found['ratios']} times as long as without")
