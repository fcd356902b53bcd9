"""A torch model with all trainable parameters in one flat vector, and all their gradients in another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from fl.errors import TrainingError
from fl.samples import Array

_TRAINABLE: Final = (torch.float16, torch.float32, torch.float64)  # which numpy has, too


@dataclass(frozen=True)
class ParameterSlice:
    """The position of one named parameter tensor in the flat vector of a model's parameters."""

    name: str
    shape: torch.Size
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()


def parameter_slices(module: nn.Module) -> tuple[ParameterSlice, ...]:
    """Return the positions of all trainable parameters, in order. Raise `TrainingError` if there are none, or
    if a tensor of the module is of a kind that cannot be trained."""
    _check_tensors(module)
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            slots.append(ParameterSlice(name, parameter.shape, start))
            start += parameter.numel()
    if not slots:
        raise TrainingError("the model has no parameters to train: give it a layer that has some")
    return tuple(slots)


def _check_tensors(module: nn.Module) -> None:
    """Raise `TrainingError` if a tensor has no size yet, or numbers that a vector of real ones cannot hold.
    Fixed tensors are checked, too, because training converts them to its own precision."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise TrainingError(
                f"{name} has no size yet: give every layer its sizes (Linear in place of LazyLinear), or "
                "call the model with an example in the function that makes it"
            )
        if tensor.is_complex():
            raise TrainingError(
                f"{name} has complex numbers, but only real ones are trained: keep real and imaginary parts "
                "as real tensors (torch.view_as_real), and make complex ones in forward"
            )
        if tensor.requires_grad and tensor.dtype not in _TRAINABLE:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise TrainingError(f"{name} is {kind}, which is not trained: convert the model with .float()")


def dim_of(module: nn.Module) -> int:
    """Return the number of trainable parameters. Raise `TrainingError` as `parameter_slices` does."""
    return parameter_slices(module)[-1].stop


def flatten(module: nn.Module) -> Array:
    """Return a copy of the trainable parameters as one vector."""
    values = [module.get_parameter(slot.name).detach().reshape(-1) for slot in parameter_slices(module)]
    return torch.cat(values).cpu().numpy()


class FlatModel:
    """A torch `module` on `device`, with all trainable parameters stored in one contiguous vector, so that
    they are loaded or read in a single copy. The module itself is modified: its parameters become views of
    the vector. `draws` says whether training the module uses randomness, as dropout does."""

    def __init__(self, module: nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
        check_stateless(module)
        self.slots = parameter_slices(module)  # before the conversion, which would drop imaginary parts
        self.module = module.to(device=device, dtype=dtype)
        self.dim = self.slots[-1].stop
        self.device, self.dtype = device, dtype
        self.draws = any(_is_random(part) for part in module.modules())
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
        """Make a forward pass on two of the `inputs`, as in training. Set `draws` to true if it draws random
        numbers, even if no layer is known to, as with functional dropout. Raise `TrainingError` if it changes
        a buffer or a frozen parameter. Only the first call has an effect."""
        if self._watched:
            return
        before = _fixed_tensors(self.module)
        self.draws = _uses_randomness(self.module, inputs[:2]) or self.draws
        _check_unchanged(before, _fixed_tensors(self.module))
        self._watched = True

    def tensor(self, vector: Array, length: int | None = None) -> Tensor:
        """Return `vector` as a tensor on the model's device, without a copy if possible. Raise
        `TrainingError` unless it has `length` elements; by default, as many as the model has parameters."""
        vector, length = np.asarray(vector), self.dim if length is None else length
        if vector.shape != (length,):
            what = "a model" if length == self.dim else "a point"
            raise TrainingError(f"{what} of {length} parameters cannot be made of shape {vector.shape}")
        if not vector.flags.writeable:  # torch warns about read-only memory
            vector = vector.astype(_NUMPY[self.dtype], copy=True)
        return torch.from_numpy(vector).to(device=self.device, dtype=self.dtype)

    def load(self, vector: Array) -> None:
        """Set all parameters to `vector`. Raise `TrainingError` if it has another length."""
        self.values.copy_(self.tensor(vector))

    def read(self) -> Array:
        """Return a copy of the parameters as a vector."""
        return self.values.cpu().numpy().copy()


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _is_random(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU)


def _uses_randomness(module: nn.Module, inputs: Tensor) -> bool:
    """Return whether a forward pass in training mode draws from torch's generators. Their states are
    restored, but the module stays in training mode."""
    devices = [inputs.device] if inputs.is_cuda else []
    # Gradients stay enabled, because a module may do something else without them.
    with torch.random.fork_rng(devices=devices):
        before = _states(inputs.device)
        module.train()(inputs)
        return any(not torch.equal(*pair) for pair in zip(before, _states(inputs.device), strict=True))


def _states(device: torch.device) -> list[Tensor]:
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _fixed_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all buffers and frozen parameters, by name."""
    frozen = {name: each for name, each in module.named_parameters() if not each.requires_grad}
    fixed = {**frozen, **dict(module.named_buffers())}
    return {name: each.detach().to_dense().clone() for name, each in fixed.items()}


def _check_unchanged(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Raise `TrainingError` if a tensor has changed, because changes would be lost between rounds."""
    for name in before | after:
        if name not in before or name not in after or not _is_same(before[name], after[name]):
            raise _stateful(f"training changes the values of {name}", "make it trainable, or leave it fixed")


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def check_stateless(module: nn.Module) -> None:
    """Raise `TrainingError` if a layer is known to keep state that is not a parameter, such as statistics of
    batches, because it would be lost between rounds. This needs no data; `FlatModel.watch` finds more."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) or getattr(part, "track_running_stats", False):
            raise _stateful(f"{name or 'the model'} keeps batch statistics", "use GroupNorm")
        hooks = part._forward_pre_hooks.values()  # with which the older `spectral_norm` is made
        if isinstance(part, _SpectralNorm) or any(isinstance(each, SpectralNorm) for each in hooks):
            raise _stateful(
                f"{name or 'the model'} keeps vectors of spectral_norm",
                "use torch.nn.utils.parametrizations.weight_norm",
            )


def _stateful(problem: str, remedy: str) -> TrainingError:
    return TrainingError(f"{problem}, which are not trained parameters and not part of any sum: {remedy}")
