"""Code of a user, for tests: a module that scenarios and clients name as "module:object"."""

from __future__ import annotations

import itertools
from pathlib import Path

_COUNT = itertools.count()

MODULE = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from fl.federation import Federation
from fl.samples import Samples


class Net(nn.Module):
    def __init__(self, hidden: int = 5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)


def sized(features: int, classes: int):
    return nn.Linear(features, classes)


def dataset(seed: int = 0, samples: int = 40):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 4)).astype(np.float32)
    y = np.where(x[:, 0] > 0.5, 2, (x[:, 1] > 0).astype(np.int64))
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def by_client(seed: int = 0):
    return {each: dataset(seed + each) for each in range(4)}


def samples():
    return Samples(*(tensor.numpy() for tensor in dataset().tensors))


def pair():
    return dataset(1), dataset(2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(dataset())


def wide():
    return TensorDataset(torch.zeros(6, 7), torch.zeros(6, dtype=torch.int64))


def many_classes():
    return TensorDataset(torch.zeros(6, 4), torch.arange(6))


def unlabelled():
    return TensorDataset(torch.zeros(6, 4))


def nothing():
    return None


def secret_failure():
    raise ValueError("patient 17 is ill")


def broken_model():
    raise ValueError("no weights")


def normalised():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


class Averaging(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


def lazy():
    return nn.LazyLinear(3)


def imaginary():
    return nn.Linear(4, 3, dtype=torch.complex64)


def short_floats():
    return nn.Linear(4, 3, dtype=torch.bfloat16)


NUMBER = 3
"""


def write_module(directory: Path, text: str = MODULE) -> str:
    """Write a module with a name that no other test has imported, and return the name."""
    name = f"own_code_of_a_user_{next(_COUNT)}"
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return name
