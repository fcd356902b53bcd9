"""The inputs and targets of samples as tensors on the device that trains."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from fl.errors import DataError
from fl.samples import Samples
from fl.training_settings import Training

_OWN: Final = ("C_CONTIGUOUS", "WRITEABLE")  # torch warns about arrays without these, so they are copied


class SampleTensors:
    """The inputs and targets of samples, as tensors on the device that trains."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    @classmethod
    def of(cls, samples: Samples, training: Training, device: torch.device) -> SampleTensors:
        """Return `samples` as tensors on `device`. Raise `DataError` if they do not fit the loss or the
        precision of `training`."""
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
