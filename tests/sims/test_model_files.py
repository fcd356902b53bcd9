"""The files of a trained model have all of its state, and round nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fl.flat_model import dim_of, flatten
from protocols.serialisation import Vector, as_vector
from sims.deploy.model_files import trained_module, write_model
from sims.deploy.run_terms import RunTerms
from sims.deploy.training import training_terms


class Tied(nn.Module):
    """Has a weight with two names, a frozen layer, and buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False).half()
        self.register_buffer("scale", torch.arange(6.0).view(3, 2).t())
        self.register_buffer("order", torch.tensor([1, 0]))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def terms(make: Callable[[], nn.Module], precision: str = "float32") -> RunTerms:
    training = {"rate": 0.1, "precision": precision}
    return training_terms(make, clients=3, rounds=1, algorithm={"name": "rfa"}, training=training)


def trained(agreed: RunTerms) -> Vector:
    """Return a vector whose numbers float32 would round."""
    return as_vector(np.arange(dim_of(agreed.module)) / 3 + 1)


def double() -> nn.Module:
    return nn.Linear(2, 2).double()


def test_the_file_is_the_whole_state_of_the_module(tmp_path: Path) -> None:
    agreed = terms(Tied)
    model = trained(agreed)
    write_model(tmp_path / "model.npz", model, agreed)
    found = load_file(tmp_path / "model.safetensors")
    fresh = Tied()
    fresh.load_state_dict(found)
    assert np.array_equal(flatten(fresh), model.astype(np.float32))
    assert torch.equal(found["first.weight"], found["second.weight"])
    own = agreed.module.state_dict()
    assert {name: each.dtype for name, each in found.items()} == {name: own[name].dtype for name in own}
    for name in ("frozen.weight", "frozen.bias", "scale", "order"):
        assert torch.equal(found[name], own[name])
    assert np.array_equal(agreed.initial, as_vector(flatten(agreed.module))), "the terms stay as they are"


@pytest.mark.parametrize(("make", "precision"), [(double, "float32"), (Tied, "float64"), (double, "float64")])
def test_double_precision_is_not_rounded(
    tmp_path: Path, make: Callable[[], nn.Module], precision: str
) -> None:
    agreed = terms(make, precision)
    model = trained(agreed)
    write_model(tmp_path / "model.npz", model, agreed)
    with np.load(tmp_path / "model.npz") as archive:
        assert np.array_equal(archive["model"], model)
    fresh = make().double()
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for module in (fresh, trained_module(model, agreed)):
        assert flatten(module).dtype == np.float64
        assert np.array_equal(flatten(module), model)


def test_what_the_format_cannot_hold_is_left_out(tmp_path: Path) -> None:
    def with_graph() -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("graph", torch.eye(2).to_sparse())
        return module

    agreed = terms(with_graph)
    write_model(tmp_path / "model.npz", trained(agreed), agreed)
    assert load_file(tmp_path / "model.safetensors").keys() == {"weight", "bias"}
