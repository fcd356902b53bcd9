"""What the models of this package have in common: they take any batch that fits, and are parameters alone.

None of them keeps buffers, so a flat vector is all of a model, and all of them run under `functional_call`
and `vmap`, so many clients' models can be computed at once. The layer that reads the input is called `input`
and the last one `output`, wherever there are two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

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


def no_such(what: str, name: object, known: Iterable[str]) -> TrainingError:
    """The error for a name that is none of those `known`: it says which is nearest, and lists them all."""
    names = tuple(known)
    near = get_close_matches(str(name), names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return TrainingError(f"there is no {what} {name!r}: {meant}There are {', '.join(names) or 'none'}")


def whole(**values: int) -> None:
    """Refuse those that are no whole numbers of 1 or more."""
    for name, value in values.items():
        if not _is_size(value):
            raise TrainingError(f"{name} must be a whole number of 1 or more, not {value!r}")


def truth(**values: bool) -> None:
    """Refuse those that are neither True nor False; a text such as "no" would count as true."""
    for name, value in values.items():
        if type(value) is not bool:
            raise TrainingError(f"{name} must be true or false, not {value!r}")


def widths(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """The widths of some layers; a settings file gives a list of them."""
    if not isinstance(values, (list, tuple)) or not all(map(_is_size, values)):
        raise TrainingError(f"{name} must be a list of whole numbers such as [100, 100], not {values!r}")
    return tuple(values)


def probability(**values: float) -> None:
    """Refuse those that are no numbers from 0 to below 1."""
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise TrainingError(f"{name} must be a number from 0 to below 1, not {value!r}")


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1
