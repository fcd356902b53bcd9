"""Base classes of the models, which reshape inputs to the shape that the model needs.

The models have no buffers, so the flat vector of parameters is the whole model. They all run under torch's
`functional_call` and `vmap`, so that models of many clients can be computed at once. If there are several
layers, the first is called `input` and the last `output`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from fl.errors import TrainingError


class Model(nn.Module, ABC):
    """Base class of models. `forward` reshapes inputs to `shape` (without batch axis) and calls `predict`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, batch: Tensor) -> Tensor:
        """Return the outputs for a batch: a row of logits, or in a regression a number, per input."""
        return self.predict(fitted(batch, self.shape))

    @abstractmethod
    def predict(self, batch: Tensor) -> Tensor:
        """Return the outputs for a batch that has the model's input shape."""


class Chain(Model):
    """A model of layers that are applied in sequence. Names of parameters start with the keys of `layers`."""

    def __init__(self, shape: tuple[int, ...], layers: Mapping[str, nn.Module]) -> None:
        super().__init__(shape)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def predict(self, batch: Tensor) -> Tensor:
        for layer in self.children():
            batch = layer(batch)
        return batch


def fitted(batch: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the batch with inputs reshaped to `shape`. Raise `TrainingError` if they do not fit. Flat inputs
    are reshaped to images and images to flat inputs; axes of length 1 are added or removed. No other
    reshaping is allowed: it would change the order of pixels, for example if channels come last."""
    given = tuple(batch.shape[1:])
    same_count = math.prod(given) == math.prod(shape)
    if not same_count or (
        _without_unit_axes(given) != _without_unit_axes(shape) and 1 not in (len(given), len(shape))
    ):
        raise TrainingError(
            f"inputs of shape {given} do not fit a model for {shape}: rebuild the model, or reshape them"
        )
    return batch.reshape(batch.shape[0], *shape)


def _without_unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)
