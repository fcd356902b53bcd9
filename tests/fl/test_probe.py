"""Modules of all sorts in a crowd: what cannot be stacked, or comes out otherwise, is trained one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl.crowd import Crowd
from fl.federation import ClientData
from fl.flat_model import flatten
from fl.samples import Samples
from fl.stacking_policy import ONE_BY_ONE, TOGETHER
from fl.trainer import Trainer
from fl.training_settings import Training
from tests.fl.clients import client, clients

TRAINING = Training(rate=0.3, batch=4, epochs=2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Own(nn.Module):
    """A layer, and something in front of it that a user thought of."""

    def __init__(self, before: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self._before = before
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self._before(x, self.training))
        return outputs


def dropped(x: Tensor, training: bool) -> Tensor:
    return functional.dropout(x, 0.5, training)


def noisy(x: Tensor, training: bool) -> Tensor:
    return x + torch.randn_like(x) if training else x


def choosy(x: Tensor, _training: bool) -> Tensor:
    return x / 2 if x.abs().max() > 1e6 else x


def written(x: Tensor, _training: bool) -> Tensor:
    copy = torch.zeros(x.shape)
    copy[:, :4] = x
    return copy


def centred(x: Tensor, _training: bool) -> Tensor:
    """Looks at its batch as a whole."""
    return x - x.mean(0)


def scaled(x: Tensor, _training: bool) -> Tensor:
    return 2 * x


def trained(module: nn.Module, batching: str = TOGETHER) -> dict[int, np.ndarray]:
    crowd = Crowd(module, clients((9, 3, 6, 1, 5)), TRAINING, device="cpu", batching=batching, seed=3)
    return crowd.train(np.linspace(-1, 1, crowd.dim))


@pytest.mark.parametrize("before", [dropped, noisy, choosy, written, centred, scaled])
def test_every_module_trains_as_it_does_alone(before: Callable[[Tensor, bool], Tensor]) -> None:
    together, alone = trained(Own(before)), trained(Own(before), ONE_BY_ONE)
    for member, model in together.items():
        np.testing.assert_allclose(model, alone[member], atol=1e-5)


@pytest.mark.parametrize(("before", "stacked"), [(choosy, False), (centred, False), (scaled, True)])
def test_only_what_can_be_stacked_is(before: Callable[[Tensor, bool], Tensor], stacked: bool) -> None:
    crowd = Crowd(Own(before), clients((9, 3)), TRAINING, device="cpu")
    assert crowd._stackable() is stacked


def test_a_crowd_of_one_can_be_tried_too() -> None:
    assert Crowd(Own(scaled), clients((1,)), TRAINING, device="cpu")._stackable()


def test_padding_is_not_trained() -> None:
    words = Samples(np.random.default_rng(0).integers(0, 5, (12, 3)), np.arange(12) % 3)
    module = nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(6, 3))
    crowd = Crowd(module, {k: ClientData(words, words, words) for k in range(2)}, TRAINING, batching=TOGETHER)
    start = np.ones(crowd.dim)
    for model in crowd.train(start).values():
        assert (model[:2] == 1).all()
        assert (model[2:] != 1).any()


@pytest.mark.parametrize("before", [dropped, noisy])
def test_chance_that_no_part_tells_of_is_seeded(before: Callable[[Tensor, bool], Tensor]) -> None:
    modules = [Own(before) for _ in range(3)]
    state = torch.get_rng_state()
    seeded = zip(modules, (1, 1, 2), strict=True)
    made = [Trainer.on(module, client(9), TRAINING, device="cpu", seed=seed) for module, seed in seeded]
    first, again, other = (trainer.train(np.ones(15)) for trainer in made)
    assert (first == again).all()
    assert (first != other).any()
    assert torch.equal(torch.get_rng_state(), state)


def test_clients_that_are_given_the_same_module_do_not_share_it() -> None:
    module = nn.Linear(4, 3)
    start = flatten(module)
    first = Trainer.on(module, client(9), TRAINING, device="cpu")
    alone = first.train(start)
    crowds = [Crowd(module, clients((9, 3)), TRAINING, device="cpu") for _ in range(2)]

    again = Trainer.on(module, client(9), TRAINING, device="cpu")

    assert (again.train(start) == alone).all()
    assert (alone != start).any()
    assert all((crowds[0].train(start)[k] == crowds[1].train(start)[k]).all() for k in crowds[0])
    assert (flatten(module) == start).all()
