"""A client's samples as tensors, and the order in which training visits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fl.errors import DataError
from fl.samples import Array, Samples
from fl.training_settings import Training

_OWN: Final = ("C_CONTIGUOUS", "WRITEABLE")  # torch warns about arrays without these, so they are copied


class SampleTensors:
    """Inputs and targets as tensors on the training device."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    @classmethod
    def of(cls, samples: Samples, training: Training, device: torch.device) -> SampleTensors:
        """Return `samples` as tensors on `device`. Raise `DataError` if they do not fit loss or precision."""
        if samples.y.ndim != 1:
            raise DataError(f"targets have shape {samples.y.shape}: give one number for every sample")
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
        """Return the samples with indices `start` <= i < `stop`, without copying them."""
        return SampleTensors(self.inputs[start:stop], self.targets[start:stop])

    def at(self, indices: Tensor) -> SampleTensors:
        """Return a copy of the samples at `indices`."""
        return SampleTensors(self.inputs[indices], self.targets[indices])


def _cast(name: str, values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    cast = values.to(device=device, dtype=dtype)
    # Samples are finite, so only overflow in the conversion to shorter floats can produce infinities.
    if values.is_floating_point() and values.dtype.itemsize > dtype.itemsize and not cast.isfinite().all():
        bad = torch.nonzero(~cast.isfinite().reshape(len(cast), -1).all(dim=1))
        raise DataError(
            f"{len(bad)} of {len(cast)} {name} are too large for {str(dtype).removeprefix('torch.')}, the "
            f'first in row {int(bad[0])}: scale them down, or train with precision="float64"'
        )
    return cast


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The sample indices of every step of a training. Step k uses the first `sizes[k]` entries of row k of
    `indices`. If every step uses all samples, both arrays have a single row, which is valid for all steps."""

    indices: Array
    sizes: Array
    steps: int

    def of_step(self, step: int) -> Array:
        """Return the indices of the samples of one step."""
        row = 0 if len(self.indices) == 1 else step
        indices: Array = self.indices[row, : self.sizes[row]]
        return indices


@dataclass(frozen=True)
class BatchSampler:
    """Draws a client's batches: `size` out of `samples` samples each, or all samples if `size` is None."""

    samples: int
    size: int | None
    seed: int
    client: int

    @property
    def full(self) -> bool:
        """Whether every step uses all samples, so that their order does not matter."""
        return self.size is None or self.size >= self.samples

    def of_call(self, call: int, steps: int) -> SampleOrder:
        """Return the sample indices of each of `steps` steps, for the client's training number `call`.

        Every pass over the data has a new random order and is cut into batches. The order depends only on
        `seed`, `client` and `call`.
        """
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

    def layer_seed(self, call: int) -> int:
        """Return the seed of random layers, such as dropout, for the client's training number `call`."""
        return int(np.random.SeedSequence([self.seed, self.client, call, 1]).generate_state(1)[0])
