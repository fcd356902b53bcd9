"""A client's samples on the device where it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fl.errors import DataError
from fl.samples import Array, Samples
from fl.training import Training

_OWN: Final = ("C_CONTIGUOUS", "WRITEABLE")  # a copy of what is not: torch would warn, and nobody writes here


class SampleTensors:
    """Inputs and targets as tensors, as a model and its loss take them."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    @classmethod
    def of(cls, samples: Samples, training: Training, device: torch.device) -> SampleTensors:
        if samples.y.ndim != 1:
            raise DataError(f"targets have shape {samples.y.shape}: make it one number for every sample")
        symbols = samples.x.dtype.kind in "iu"
        inputs = torch.from_numpy(np.require(samples.x, requirements=_OWN))
        inputs = _cast("inputs", inputs, torch.int64 if symbols else training.dtype, device)
        classes = training.objective.whole_targets
        if classes and samples.y.dtype.kind == "f":
            raise DataError(f"the loss {training.loss} needs classes for targets, which are whole numbers")
        targets = torch.from_numpy(np.require(samples.y, requirements=_OWN))
        return cls(inputs, _cast("targets", targets, torch.int64 if classes else training.dtype, device))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"SampleTensors({len(self)} samples)"

    def part(self, start: int, stop: int) -> SampleTensors:
        """Some of them, in the same memory."""
        return SampleTensors(self.inputs[start:stop], self.targets[start:stop])

    def at(self, indices: Tensor) -> SampleTensors:
        """A batch."""
        return SampleTensors(self.inputs[indices], self.targets[indices])

    @property
    def bytes(self) -> int:
        return self.inputs.nbytes + self.targets.nbytes


def _cast(name: str, values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    cast = values.to(device=device, dtype=dtype)
    # Samples are finite, so only a number that is too large for shorter floats can be otherwise here.
    if values.is_floating_point() and values.dtype.itemsize > dtype.itemsize and not cast.isfinite().all():
        bad = torch.nonzero(~cast.isfinite().reshape(len(cast), -1).all(dim=1))
        raise DataError(
            f"{len(bad)} of {len(cast)} {name} are too large for {str(dtype).removeprefix('torch.')}, the "
            f'first in row {int(bad[0])}: scale them down, or train with precision="float64"'
        )
    return cast


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The samples of every step in the rows of `indices`, of which the first `sizes[step]` count.

    A single row stands for all steps where each sees everything.
    """

    indices: Array
    sizes: Array
    steps: int

    def of_step(self, step: int) -> Array:
        row = 0 if len(self.indices) == 1 else step
        indices: Array = self.indices[row, : self.sizes[row]]
        return indices


@dataclass(frozen=True)
class BatchSampler:
    """Of a client with `samples` samples; `size` is None for all of them in every step."""

    samples: int
    size: int | None
    seed: int
    client: int

    @property
    def full(self) -> bool:
        """Whether every step sees everything, so that order does not matter."""
        return self.size is None or self.size >= self.samples

    def of_call(self, call: int, steps: int) -> SampleOrder:
        """What the client's training number `call` sees: pass after pass, each of them shuffled anew."""
        if self.full or self.size is None:
            return SampleOrder(np.arange(self.samples)[None], np.array([self.samples]), steps)
        per_epoch = -(-self.samples // self.size)
        epochs = -(-steps // per_epoch)
        rng = np.random.default_rng([self.seed, self.client, call])
        indices = np.zeros((epochs, per_epoch * self.size), np.int64)
        for epoch in range(epochs):
            indices[epoch, : self.samples] = rng.permutation(self.samples)
        sizes = np.full((epochs, per_epoch), self.size)
        sizes[:, -1] = self.samples - (per_epoch - 1) * self.size
        return SampleOrder(indices.reshape(-1, self.size)[:steps], sizes.reshape(-1)[:steps], steps)

    def number(self, call: int) -> int:
        """Another seed for that training, for what a model itself draws."""
        return int(np.random.SeedSequence([self.seed, self.client, call, 1]).generate_state(1)[0])
