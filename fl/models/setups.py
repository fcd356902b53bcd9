"""Which model, with which parameters, the papers train: a table of their names and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from torch import nn

from fl.models.catalogue import build, size_of


@dataclass(frozen=True)
class Setup:
    """A model of the catalogue and the parameters it is built with."""

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def build(self, *, seed: int = 0) -> nn.Module:
        return build(self.model, seed=seed, **self.parameters)

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return size_of(self.model, **self.parameters)


_EMNIST: Final = {"features": 784, "classes": 62}
_MNIST: Final = {"features": 784, "classes": 10}

SETUPS: Final[Mapping[str, Setup]] = MappingProxyType(
    {
        "sent140-logistic": Setup("linear", {"features": 50, "bias": False}),
        "synthetic-softmax": Setup("softmax", {"features": 60, "classes": 10}),
        "mnist-softmax": Setup("softmax", _MNIST),
        "emnist-softmax": Setup("softmax", _EMNIST),
        "emnist-softmax-no-bias": Setup("softmax", _EMNIST | {"bias": False}),
        "emnist-additive": Setup("additive", _EMNIST),
        "mnist-1nn": Setup("mlp", _MNIST | {"hidden": (100,)}),
        "emnist-2nn": Setup("mlp", _EMNIST | {"hidden": (100, 100)}),
        "mnist-dropout": Setup("mlp", _MNIST | {"hidden": (128,), "dropout": 0.5}),
        "mnist-cnn": Setup("cnn-mnist"),
        "cifar-cnn": Setup("cnn-cifar"),
        "cifar-lenet": Setup("lenet"),
        "emnist-rfa-convnet": Setup("rfa-convnet"),
        "emnist-convnet": Setup("convnet"),
        "mnist-resnet": Setup("resnet"),
        "emnist-resnet18": Setup(
            "resnet", {"classes": 62, "widths": (64, 128, 256, 512), "blocks": 2, "adapters": True}
        ),
        "shakespeare-lstm": Setup("char-lstm"),
    }
)


def sizes() -> dict[str, int]:
    """The number of parameters of every set-up."""
    return {name: setup.size for name, setup in SETUPS.items()}
