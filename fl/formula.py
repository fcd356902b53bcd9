"""The gradients of many softmax regressions by their formula.

Where a model is one matrix, getting automatic differentiation under way takes many times as long as the
arithmetic. With probabilities p of a sample x of class y, the gradient of the cross-entropy in the matrix is
(p - e_y) x^T, and p - e_y in the constant term.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl.flat import FlatModel
from fl.models.linear import Softmax
from fl.objective import CrossEntropy
from fl.store import Store
from fl.training import Training


def has_formula(flat: FlatModel, training: Training) -> bool:
    """Whether the model and its loss are those of the formula, and all of the model is trained."""
    module = flat.module
    return (
        type(module) is Softmax
        and isinstance(training.objective, CrossEntropy)
        and len(flat.slots) == len(list(module.parameters()))
    )


class FormulaRows:
    """Some clients' softmax regressions in the rows of a matrix, and their gradients."""

    def __init__(self, flat: FlatModel, values: Tensor) -> None:
        self.count = len(values)
        self._gradient = torch.empty_like(values)
        classes, features = flat.slots[0].shape
        size = classes * features
        self._weights = values[:, :size].view(-1, classes, features).mT
        self._biases = values[:, size:].unsqueeze(1) if len(flat.slots) > 1 else None
        self._slopes = self._gradient[:, :size].view(-1, classes, features)
        self._shifts = self._gradient[:, size:]
        self._minus = values.new_tensor([[[-1.0]]])

    @torch.no_grad()
    def gradient(self, batch: Store, weights: Tensor) -> Tensor:
        """Every client's gradient of the mean loss of its own batch, in which samples have these weights."""
        inputs, targets = batch.inputs.flatten(2), batch.targets.unsqueeze(2)
        if self._biases is None:
            outputs = torch.bmm(inputs, self._weights)
        else:
            outputs = torch.baddbmm(self._biases, inputs, self._weights)
        errors = outputs.softmax(dim=2).scatter_add_(2, targets, self._minus.expand(targets.shape))
        errors.mul_(weights.unsqueeze(2))
        torch.bmm(errors.mT, inputs, out=self._slopes)
        if self._biases is not None:
            torch.sum(errors, 1, out=self._shifts)
        return self._gradient
