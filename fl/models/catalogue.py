"""The models there are, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from fl.errors import TrainingError
from fl.models import checks
from fl.models.convolutional import cnn_cifar, cnn_mnist, convnet, lenet, rfa_convnet
from fl.models.linear import Additive, Linear, Softmax
from fl.models.mlp import MLP
from fl.models.recurrent import CharLSTM
from fl.models.residual import ResNet

MODELS: Final[Mapping[str, Callable[..., nn.Module]]] = MappingProxyType(
    {
        "linear": Linear,
        "softmax": Softmax,
        "additive": Additive,
        "mlp": MLP,
        "cnn-mnist": cnn_mnist,
        "cnn-cifar": cnn_cifar,
        "rfa-convnet": rfa_convnet,
        "convnet": convnet,
        "lenet": lenet,
        "resnet": ResNet,
        "char-lstm": CharLSTM,
    }
)
_SEEDS: Final = 2**63


def build(name: str, *, seed: int = 0, **parameters: Any) -> nn.Module:
    """The model called `name`, on the CPU, with weights that depend on `seed` and the parameters alone.

    Raises `TrainingError` for a name or a parameter that does not exist, is missing, or has no such value.
    """
    if type(seed) is not int or not 0 <= seed < _SEEDS:
        raise TrainingError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")
    check_parameters(name, parameters)
    # Layers draw their weights from torch's own generator, which is put back to where it was.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return MODELS[name](**parameters)


def size_of(name: str, **parameters: Any) -> int:
    """How many parameters that model has."""
    return sum(parameter.numel() for parameter in build(name, **parameters).parameters())


def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
    """What can be set, with its default if it has one."""
    if name not in MODELS:
        raise checks.no_such("model", name, MODELS)
    return inspect.signature(MODELS[name]).parameters


def check_parameters(name: str, parameters: Mapping[str, object]) -> None:
    """Refuse parameters that the model does not have, or without one that it needs."""
    known = parameters_of(name)
    for each in parameters:
        if each not in known:
            raise checks.no_such(f"parameter of {name}", each, map(str, known))
    needed = [each for each, kind in known.items() if kind.default is kind.empty]
    if missing := [each for each in needed if each not in parameters]:
        raise TrainingError(f"{name} needs {' and '.join(missing)}: it takes {', '.join(known)}")
