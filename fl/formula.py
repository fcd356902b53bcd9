"""The gradients of many softmax regressions by their formula.

Where a model is one small matrix, automatic differentiation takes many times as long to get under way as the
arithmetic itself does. With probabilities p of a sample x of class y, the gradient of the cross-entropy in
the matrix is (p - e_y) x^T, and p - e_y in the constant term.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fl.flat import FlatModel
from fl.models.linear import Softmax
from fl.objective import CrossEntropy
from fl.store import Store
from fl.training import Training


class Batches(Protocol):
    """What so many clients see in a step, a row for each client, and the weight of every sample."""

    def at(self, step: int, active: int) -> tuple[Store, Tensor]: ...


def has_formula(flat: FlatModel, training: Training) -> bool:
    """Whether the model and its loss are those of the formula, and all of the model is trained."""
    return (
        type(flat.module) is Softmax
        and isinstance(training.objective, CrossEntropy)
        and len(flat.slots) == len(list(flat.module.parameters()))
    )


class FormulaRows:
    """Some clients' softmax regressions in the rows of a matrix, and their gradients."""

    def __init__(self, flat: FlatModel, values: Tensor) -> None:
        self.count = len(values)
        self._gradient = torch.empty_like(values)
        classes, features = flat.slots[0].shape
        size, shape = classes * features, (self.count, classes, features)
        self._weights = values[:, :size].view(shape).transpose(1, 2)
        self._slopes = self._gradient[:, :size].view(shape)
        self._biased = len(flat.slots) > 1
        self._biases, self._shifts = values[:, None, size:], self._gradient[:, size:]

    @torch.no_grad()
    def gradient(self, schedule: Batches, step: int) -> Tensor:
        """Every client's gradient of the mean loss of its batch in that step."""
        batch, weights = schedule.at(step, self.count)
        inputs = batch.inputs.view(*batch.targets.shape, -1)
        if self._biased:
            logits = torch.baddbmm(self._biases, inputs, self._weights)
        else:
            logits = torch.bmm(inputs, self._weights)
        errors = logits.softmax(dim=2)
        errors.scatter_add_(
            2, batch.targets[:, :, None], errors.new_full((1,), -1.0).expand(*batch.targets.shape, 1)
        )
        errors.mul_(weights[:, :, None])
        self._slopes.copy_(torch.bmm(errors.transpose(1, 2), inputs))
        if self._biased:
            torch.sum(errors, dim=1, out=self._shifts)
        return self._gradient
