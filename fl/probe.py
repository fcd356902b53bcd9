"""Whether a model can be trained in a stack: tried out, because a module is anybody's code.

Some operations cannot be stacked, some ignore what they are told then, and a module that looks at its batch
as a whole would see what short batches are filled up with. What is tried depends on the model and on samples,
not on the clock, so the answer is the same every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.stacked import Stack
from fl.store import Store
from fl.trainer import Trainer

_WIDTHS = (3, 2)  # samples of two clients; the second batch is filled up
_SPREAD = 0.1  # of the model that is tried
_CLOSE = 1e-4


def stacks(stack: Stack, trainers: Sequence[Trainer]) -> bool:
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


def _alone(trainer: Trainer, model: Tensor, batch: Store) -> Tensor:
    trainer.flat.values.copy_(model)
    trainer.backward(batch)
    return trainer.flat.gradient.clone()


def _filled(batches: Sequence[Store]) -> tuple[Store, Tensor]:
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
    return Store(inputs, targets), torch.stack(weights).to(dtype)
