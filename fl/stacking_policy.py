"""Decides which clients are trained at once, in one stack (`fl.stacked_trainer`), and which one by one.

The decision uses no measured times, because then the same seed could give different results. It depends only
on model, batch sizes and steps. Its constants come from measurements, which `secagg bench training` repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from fl.checks import unknown_name
from fl.flat_model import FlatModel
from fl.sample_tensors import SampleTensors
from fl.stacked_trainer import StackedTrainer
from fl.trainer import Trainer

AUTO: Final = "auto"
TOGETHER: Final = "together"
ONE_BY_ONE: Final = "one-by-one"
BATCHING_MODES: Final = (AUTO, TOGETHER, ONE_BY_ONE)

_MOST_NUMBERS: Final = 3 << 19  # parameters of all clients trained together; more overflow the caches
_STRETCH: Final = 2  # limit on the ratio of the widest to the narrowest batch; narrower ones are padded
_SHARED_STEP: Final = 2.5  # cost of a stacked step of a small model, relative to a single client's step
_LEAST: Final = 4  # fewest clients for which stacking pays
_MOST_WORK: Final = 5_000_000  # most multiplications in the convolutions of a stacked step


def check_batching(batching: str) -> None:
    """Raise `TrainingError` unless `batching` is "auto", "together" or "one-by-one"."""
    if batching not in BATCHING_MODES:
        raise unknown_name("batching mode", batching, BATCHING_MODES, parameter="batching")


def can_stack(flat: FlatModel) -> bool:
    """Return whether copies of the model can be trained in one stack: no layer is random or unsupported."""
    return not flat.draws and not any(map(_is_unstackable, flat.module.modules()))


def _is_unstackable(part: nn.Module) -> bool:
    """Return whether this layer cannot be trained in a stack of many clients' models: a torch RNN, or an
    embedding with a padding vector, which stacked training would wrongly change."""
    return isinstance(part, nn.RNNBase) or (isinstance(part, nn.Embedding) and part.padding_idx is not None)


def convolution_work(module: nn.Module, inputs: Tensor) -> int:
    """Return the multiplications per sample in the module's convolutions. May leave it in evaluation mode."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, outputs: Tensor) -> None:
        weight: Tensor = layer.get_parameter("weight")
        counts.append(weight.numel() * outputs[0, 0].numel())

    hooks = [part.register_forward_hook(count) for part in module.modules() if _is_convolution(part)]
    try:
        if hooks:
            with torch.no_grad():
                module.eval()(inputs[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _is_convolution(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.conv._ConvNd)


def _convolutions_too_large(flat: FlatModel, work: int | None, width: int) -> bool:
    """Return whether the model's convolutions would be slow in a stack of many clients' models: on a CPU, if
    `work`, the multiplications per sample, is None or large for batches of `width` samples."""
    if flat.device.type != "cpu" or not any(map(_is_convolution, flat.module.modules())):
        return False
    return work is None or work * width > _MOST_WORK


def client_batches(
    flat: FlatModel,
    batching: str,
    widths: Sequence[int],
    steps: Sequence[int],
    work: int | None = None,
    *,
    formula: bool = False,
) -> list[list[int]]:
    """Return the clients in groups, each to be trained in one stack; a client alone in its group is not
    stacked. Clients are indices into `widths` and `steps`, their batch sizes and numbers of steps.

    `batching` "auto" stacks clients where this is faster, "together" where possible, "one-by-one" never.
    `work` is the result of `convolution_work`; None counts as large. `formula` says that `FormulaRows`
    computes gradients: a stacked step is then so cheap that clients with many steps are stacked, too.
    """
    clients = range(len(widths))
    if batching == ONE_BY_ONE or not can_stack(flat):
        return [[client] for client in clients]
    most = max(2, _MOST_NUMBERS // flat.dim)
    if batching == AUTO and (most < _LEAST or _convolutions_too_large(flat, work, max(widths))):
        return [[client] for client in clients]
    longest = [] if batching == TOGETHER or formula else _longest(steps)
    chosen: list[list[int]] = []
    for client in sorted(set(clients) - set(longest), key=lambda k: widths[k]):
        first = chosen[-1][0] if chosen else None
        if first is None or len(chosen[-1]) >= most or widths[client] > _STRETCH * widths[first]:
            chosen.append([])
        chosen[-1].append(client)
    return chosen + [[client] for client in longest]


def _longest(steps: Sequence[int]) -> list[int]:
    """Return the indices of clients whose steps exceed those of others so far that stacking is slower."""
    order = sorted(range(len(steps)), key=lambda k: -steps[k])
    best, least, alone = 0, _SHARED_STEP * steps[order[0]], 0.0
    for count, client in enumerate(order, 1):
        alone += steps[client]
        rest = _SHARED_STEP * steps[order[count]] if count < len(order) else 0.0
        if alone + rest < least:
            best, least = count, alone + rest
    return order[:best]


_WIDTHS = (3, 2)  # samples of two clients; the second batch is padded
_SPREAD = 0.1  # standard deviation of the random test model
_CLOSE = 1e-4


def stacking_agrees(stack: StackedTrainer, trainers: Sequence[Trainer]) -> bool:
    """Compute two test gradients in a stack and one by one. Return whether the stack works and gives nearly
    the same gradients. The model of the client with the most samples is overwritten."""
    largest = sorted(trainers, key=lambda each: -each.samples)[:2]
    batches = [
        each.train_store.part(0, width) for each, width in zip((*largest, largest[0]), _WIDTHS, strict=False)
    ]
    generator = torch.Generator().manual_seed(0)
    model = torch.randn(stack.flat.dim, generator=generator, dtype=stack.flat.dtype) * _SPREAD
    trainer, gradients = largest[0], []
    for batch in batches:
        trainer.flat.values.copy_(model)
        trainer.backward(batch)
        gradients.append(trainer.flat.gradient.clone())
    alone = torch.stack(gradients)
    try:
        together = stack.gradient_at(model.to(stack.flat.device).repeat(2, 1), *_padded(batches))
    except Exception:  # a failure here means only that this model cannot be stacked
        return False
    allowed = _CLOSE * max(float(alone.abs().max()), _CLOSE)
    return bool(((together - alone).abs() <= allowed).all())


def _padded(batches: Sequence[SampleTensors]) -> tuple[SampleTensors, Tensor]:
    """Return the batches as one stack, and the weight of every sample in its batch's mean. Short batches are
    padded with copies of their first sample, which have weight zero."""
    widest = max(map(len, batches))
    padded, weights = [], []
    for batch in batches:
        positions = torch.arange(widest, device=batch.inputs.device)
        present = positions < len(batch)
        padded.append(batch.at(torch.where(present, positions, 0)))
        weights.append(present / len(batch))
    inputs = torch.stack([each.inputs for each in padded])
    dtype = inputs.dtype if inputs.is_floating_point() else torch.get_default_dtype()
    targets = torch.stack([each.targets for each in padded])
    return SampleTensors(inputs, targets), torch.stack(weights).to(dtype)
