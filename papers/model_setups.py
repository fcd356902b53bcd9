"""The models that the papers train: a name, a kind of `fl.models` and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from torch import nn

from fl.models import build, size_of


@dataclass(frozen=True)
class ModelSetup:
    """A registered model with the parameters it is built with."""

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def build(self, *, seed: int = 0) -> nn.Module:
        return build(self.model, seed=seed, **self.parameters)

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return size_of(self.model, **self.parameters)


_EMNIST: Final = {"features": 784, "classes": 62}


_MNIST: Final = {"features": 784, "classes": 10}


SETUPS: Final[Mapping[str, ModelSetup]] = MappingProxyType(
    {
        "sent140-logistic": ModelSetup("linear", {"features": 50, "bias": False}),
        "synthetic-softmax": ModelSetup("softmax", {"features": 60, "classes": 10}),
        "mnist-softmax": ModelSetup("softmax", _MNIST),
        "emnist-softmax": ModelSetup("softmax", _EMNIST),
        "emnist-softmax-no-bias": ModelSetup("softmax", _EMNIST | {"bias": False}),
        "emnist-additive": ModelSetup("additive", _EMNIST),
        "mnist-1nn": ModelSetup("mlp", _MNIST | {"hidden": (100,)}),
        "emnist-2nn": ModelSetup("mlp", _EMNIST | {"hidden": (100, 100)}),
        "mnist-dropout": ModelSetup("mlp", _MNIST | {"hidden": (128,), "dropout": 0.5}),
        "mnist-cnn": ModelSetup("cnn-mnist"),
        "cifar-cnn": ModelSetup("cnn-cifar"),
        "cifar-lenet": ModelSetup("lenet"),
        "emnist-rfa-convnet": ModelSetup("rfa-convnet"),
        "emnist-convnet": ModelSetup("convnet"),
        "mnist-resnet": ModelSetup("resnet"),
        "emnist-resnet18": ModelSetup(
            "resnet", {"classes": 62, "widths": (64, 128, 256, 512), "blocks": 2, "adapters": True}
        ),
        "shakespeare-lstm": ModelSetup("char-lstm"),
    }
)


def sizes() -> dict[str, int]:
    """Return the number of parameters of every set-up."""
    return {name: setup.size for name, setup in SETUPS.items()}
