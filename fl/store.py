"""A client's samples on the device where it trains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl.errors import DataError
from fl.samples import Samples
from fl.training import Training


class Store:
    """Inputs and targets as tensors, as a model and its loss take them."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    @classmethod
    def of(cls, samples: Samples, training: Training, device: torch.device) -> Store:
        symbols = samples.x.dtype.kind in "iu"
        inputs = torch.from_numpy(np.ascontiguousarray(samples.x))
        inputs = inputs.to(device=device, dtype=torch.int64 if symbols else training.dtype)
        classes = training.objective.whole_targets
        if classes and samples.y.dtype.kind == "f":
            raise DataError(f"the loss {training.loss} needs classes for targets, which are whole numbers")
        targets = torch.from_numpy(np.ascontiguousarray(samples.y))
        return cls(inputs, targets.to(device=device, dtype=torch.int64 if classes else training.dtype))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"Store({len(self)} samples)"

    def part(self, start: int, stop: int) -> Store:
        """Some of them, in the same memory."""
        return Store(self.inputs[start:stop], self.targets[start:stop])

    def at(self, indices: Tensor) -> Store:
        """A batch."""
        return Store(self.inputs[indices], self.targets[indices])

    @property
    def bytes(self) -> int:
        return self.inputs.nbytes + self.targets.nbytes
