"""One by one or together: which of the two is faster for a model.

The answer must not depend on the clock, or the same seed would not always give the same bits. So it is a rule
about the architecture, found by measurement (`secagg bench training` repeats that).
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import torch
from torch import Tensor, nn

from fl.batches import SampleTensors
from fl.errors import TrainingError
from fl.flat_model import FlatModel
from fl.stacked_trainer import StackedTrainer
from fl.trainer import Trainer

AUTO: Final = "auto"
TOGETHER: Final = "together"
ONE_BY_ONE: Final = "one-by-one"
BATCHING_MODES: Final = (AUTO, TOGETHER, ONE_BY_ONE)

_MOST_NUMBERS: Final = 3 << 19  # parameters of all clients that are trained at once, or caches overflow
_STRETCH: Final = 2  # how much wider the widest batch may be than the narrowest, which is filled up to it
_SHARED_STEP: Final = 2.5  # what a step of a small model costs together, one client's own step being 1
_LEAST: Final = 4  # clients, below which it is not worth it
_MOST_WORK: Final = 5_000_000  # multiplications in a step's convolutions, if clients are to share the step


def check_batching(batching: str) -> None:
    if batching not in BATCHING_MODES:
        near = get_close_matches(str(batching), BATCHING_MODES, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise TrainingError(
            f"there is no batching mode {batching!r}{meant}; choose {', '.join(BATCHING_MODES)}"
        )


def can_stack(flat: FlatModel) -> bool:
    """Whether the results would be those of one by one: chance in a model is drawn client by client."""
    return not flat.draws and not any(map(_cannot, flat.module.modules()))


def _cannot(part: nn.Module) -> bool:
    """Torch has no stacked cells, and forgets in a stack that padding is not trained."""
    return isinstance(part, nn.RNNBase) or (isinstance(part, nn.Embedding) and part.padding_idx is not None)


def convolution_work(module: nn.Module, inputs: Tensor) -> int:
    """Multiplications in all convolutions of `module` for one sample such as the first of `inputs`."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, outputs: Tensor) -> None:
        weight: Tensor = layer.get_parameter("weight")
        counts.append(weight.numel() * outputs[0, 0].numel())

    hooks = [part.register_forward_hook(count) for part in module.modules() if _convolves(part)]
    try:
        if hooks:
            with torch.no_grad():
                module.eval()(inputs[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _convolves(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.conv._ConvNd)


def _too_much(flat: FlatModel, work: int | None, width: int) -> bool:
    """Whether a client's convolutions are too large to be done with those of others.

    On a CPU, a convolution with other weights for every client is slow. It pays only where getting started
    takes as long as the arithmetic.
    """
    if flat.device.type != "cpu" or not any(map(_convolves, flat.module.modules())):
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
    """Which clients to train at once, given the samples in a batch and the steps of each.

    `work` is that of convolutions for one sample; where nobody counted it, it is taken to be a lot. With a
    `formula`, a step together costs no more than one alone.
    """
    clients = range(len(widths))
    if batching == ONE_BY_ONE or not can_stack(flat):
        return [[client] for client in clients]
    most = max(2, _MOST_NUMBERS // flat.dim)
    if batching == AUTO and (most < _LEAST or _too_much(flat, work, max(widths))):
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
    """Clients with so many more steps than the rest that nobody is left to share most of them with."""
    order = sorted(range(len(steps)), key=lambda k: -steps[k])
    best, least, alone = 0, _SHARED_STEP * steps[order[0]], 0.0
    for count, client in enumerate(order, 1):
        alone += steps[client]
        rest = _SHARED_STEP * steps[order[count]] if count < len(order) else 0.0
        if alone + rest < least:
            best, least = count, alone + rest
    return order[:best]


_WIDTHS = (3, 2)  # samples of two clients; the second batch is filled up
_SPREAD = 0.1  # of the model that is tried
_CLOSE = 1e-4


def stacking_agrees(stack: StackedTrainer, trainers: Sequence[Trainer]) -> bool:
    """Whether gradients of two clients come out the same together as one by one. Nothing is trained."""
    largest = sorted(trainers, key=lambda each: -each.samples)[:2]
    batches = [
        each.train_store.part(0, width) for each, width in zip((*largest, largest[0]), _WIDTHS, strict=False)
    ]
    generator = torch.Generator().manual_seed(0)
    model = torch.randn(stack.flat.dim, generator=generator, dtype=stack.flat.dtype) * _SPREAD
    alone = torch.stack([_alone(largest[0], model, batch) for batch in batches])
    try:
        together = stack.gradient_at(model.to(stack.flat.device).repeat(2, 1), *_filled(batches))
    except Exception:  # whatever goes wrong, it does not go wrong one by one
        return False
    allowed = _CLOSE * max(float(alone.abs().max()), _CLOSE)
    return bool(((together - alone).abs() <= allowed).all())


def _alone(trainer: Trainer, model: Tensor, batch: SampleTensors) -> Tensor:
    trainer.flat.values.copy_(model)
    trainer.backward(batch)
    return trainer.flat.gradient.clone()


def _filled(batches: Sequence[SampleTensors]) -> tuple[SampleTensors, Tensor]:
    """One batch of them all, short ones filled up with their first sample, and the weight of every sample."""
    widest = max(map(len, batches))
    wholes, weights = [], []
    for batch in batches:
        places = torch.arange(widest, device=batch.inputs.device)
        there = places < len(batch)
        wholes.append(batch.at(torch.where(there, places, 0)))
        weights.append(there / len(batch))
    inputs = torch.stack([whole.inputs for whole in wholes])
    dtype = inputs.dtype if inputs.is_floating_point() else torch.get_default_dtype()
    targets = torch.stack([whole.targets for whole in wholes])
    return SampleTensors(inputs, targets), torch.stack(weights).to(dtype)
