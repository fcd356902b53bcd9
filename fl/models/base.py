"""What the models of this package have in common: they take any batch that fits, and are parameters alone.

None of them keeps buffers, so a flat vector is all of a model, and all of them run under `functional_call`
and `vmap`, so many clients' models can be computed at once. The layer that reads the input is called `input`
and the last one `output`, wherever there are two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from fl.errors import TrainingError


class Model(nn.Module, ABC):
    """A model of inputs of one `shape`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, batch: Tensor) -> Tensor:
        """One row of logits, or one prediction, for every input of the batch."""
        return self.predict(fitted(batch, self.shape))

    @abstractmethod
    def predict(self, batch: Tensor) -> Tensor:
        """The same, of a batch that has the model's shape."""


class Chain(Model):
    """Layers one after another, whose parameters carry the names given here."""

    def __init__(self, shape: tuple[int, ...], layers: Mapping[str, nn.Module]) -> None:
        super().__init__(shape)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def predict(self, batch: Tensor) -> Tensor:
        for layer in self.children():
            batch = layer(batch)
        return batch


def fitted(batch: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The batch with inputs of that shape.

    Flat inputs become images and images flat ones; an axis of length 1 may be there or not. Nothing else is
    reshaped: the same count of numbers in another order, such as channels last, would be a different image.
    """
    given = tuple(batch.shape[1:])
    same_count = math.prod(given) == math.prod(shape)
    if not same_count or (_essence(given) != _essence(shape) and 1 not in (len(given), len(shape))):
        raise TrainingError(
            f"inputs of shape {given} do not fit a model for {shape}: build it for them, or reshape them"
        )
    return batch.reshape(batch.shape[0], *shape)


def _essence(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)
