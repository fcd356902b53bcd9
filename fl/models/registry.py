"""Registry of models: `build` makes a model by name, `register` adds a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.models.convolutional import cnn_cifar, cnn_mnist, convnet, lenet, rfa_convnet
from fl.models.linear_and_mlp import MLP, Additive, Linear, Softmax
from fl.models.recurrent import CharLSTM
from fl.models.residual import ResNet

_MODELS: Final[dict[str, Callable[..., nn.Module]]] = {
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
MODELS: Final[Mapping[str, Callable[..., nn.Module]]] = MappingProxyType(_MODELS)


def register(name: str, make: Callable[..., nn.Module]) -> None:
    """Add a model: `make` returns it, given its parameters. Raise `TrainingError` if the name is taken."""
    if name in _MODELS:
        raise TrainingError(f"there is a model {name!r} already: choose another name", parameter="name")
    _MODELS[name] = make


_SEEDS: Final = 2**63


def build(name: str, *, seed: int = 0, **parameters: Any) -> nn.Module:
    """Return the model called `name` on the CPU; its weights depend only on `seed` and the parameters. Raise
    `TrainingError` for an unknown name, or an unknown, missing or invalid parameter."""
    check_parameters(name, parameters)
    return build_from(MODELS[name], seed=seed, **parameters)


def build_from(make: Callable[..., nn.Module], *, seed: int = 0, **parameters: Any) -> nn.Module:
    """Return the model that `make` makes with these parameters, on the CPU. Its weights depend only on `seed`
    and the parameters. Raise `TrainingError` for an invalid seed, and what `make` raises."""
    if type(seed) is not int or not 0 <= seed < _SEEDS:
        raise TrainingError(
            f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}", parameter="seed"
        )
    # Layers draw their weights from torch's default generator, which is restored afterwards.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return make(**parameters)


def size_of(name: str, **parameters: Any) -> int:
    """Return how many numbers (weights and biases) the model has that `build` makes with these arguments."""
    return sum(parameter.numel() for parameter in build(name, **parameters).parameters())


def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of `build` for the model `name`. Raise `TrainingError` for an unknown name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS, parameter="model")
    return inspect.signature(MODELS[name]).parameters


def check_parameters(name: str, parameters: Mapping[str, object]) -> None:
    """Raise `TrainingError` for an unknown model, or for unknown or missing parameters of the model."""
    known = parameters_of(name)
    for each in parameters:
        if each not in known:
            raise unknown_name(f"parameter of {name}", each, known, parameter=each)
    needed = [each for each, kind in known.items() if kind.default is kind.empty]
    if missing := [each for each in needed if each not in parameters]:
        raise TrainingError(f"{name} needs {' and '.join(missing)}: it takes {', '.join(known)}")
