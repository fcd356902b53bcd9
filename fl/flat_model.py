"""A model as one flat vector: its parameters are views of it, and so are their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fl.errors import TrainingError
from fl.samples import Array


@dataclass(frozen=True)
class ParameterSlice:
    """Where one parameter lies in the flat vector."""

    name: str
    shape: torch.Size
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()


def parameter_slices(module: nn.Module) -> tuple[ParameterSlice, ...]:
    """The parameters that are trained, in the order of their declaration."""
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            slots.append(ParameterSlice(name, parameter.shape, start))
            start += parameter.numel()
    if not slots:
        raise TrainingError("the model has no parameters to train")
    return tuple(slots)


def dim_of(module: nn.Module) -> int:
    """How many numbers make the model."""
    return parameter_slices(module)[-1].stop


def flatten(module: nn.Module) -> Array:
    """The parameters as one vector of their own."""
    values = [module.get_parameter(slot.name).detach().reshape(-1) for slot in parameter_slices(module)]
    return torch.cat(values).cpu().numpy()


class FlatModel:
    """`module`, moved to `device`, with all its parameters in one piece of memory.

    `draws` says whether it uses chance in training, as dropout does.

    Loading a vector is one copy, and so is reading it. The module is taken over: its parameters are the views
    from now on.
    """

    def __init__(self, module: nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
        _check_stateless(module)
        self.module = module.to(device=device, dtype=dtype)
        self.slots = parameter_slices(module)
        self.dim = self.slots[-1].stop
        self.device, self.dtype = device, dtype
        self.draws = any(_draws(part) for part in module.modules())
        self._watched = False
        self.values = torch.zeros(self.dim, device=device, dtype=dtype)
        self.gradient = torch.zeros_like(self.values)
        for slot in self.slots:
            parameter = module.get_parameter(slot.name)
            view = self.values[slot.start : slot.stop].view(slot.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[slot.start : slot.stop].view(slot.shape)

    def watch(self, inputs: Tensor) -> None:
        """See once whether the model uses chance that none of its parts tells of, as functional dropout."""
        if not self._watched and not self.draws:
            self.draws = _uses_chance(self.module, inputs[:2])
        self._watched = True

    def tensor(self, vector: Array, length: int | None = None) -> Tensor:
        """A vector from outside on this device, shared with it where that is possible.

        `length` is that of a model unless it is given.
        """
        vector, length = np.asarray(vector), self.dim if length is None else length
        if vector.shape != (length,):
            what = "a model" if length == self.dim else "a point"
            raise TrainingError(f"{what} of {length} parameters cannot be made of shape {vector.shape}")
        if not vector.flags.writeable:  # torch would warn, and nobody writes here
            vector = vector.astype(_NUMPY[self.dtype], copy=True)
        return torch.from_numpy(vector).to(device=self.device, dtype=self.dtype)

    def load(self, vector: Array) -> None:
        self.values.copy_(self.tensor(vector))

    def read(self) -> Array:
        """The vector as it is, in memory of its own."""
        return self.values.cpu().numpy().copy()


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _draws(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU)


def _uses_chance(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a pass moves torch's generators on, which are left as they were."""
    devices = [inputs.device] if inputs.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        before = _states(inputs.device)
        module.train()(inputs)
        return any(not torch.equal(*pair) for pair in zip(before, _states(inputs.device), strict=True))


def _states(device: torch.device) -> list[Tensor]:
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _check_stateless(module: nn.Module) -> None:
    """A model is its parameters. What else changes in training would be lost between two rounds."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) or getattr(part, "track_running_stats", False):
            raise TrainingError(
                f"{name or 'the model'} needs statistics of whole batches, which are no parameters and in no "
                "sum: use GroupNorm"
            )
