"""The gradients of many softmax regressions by their formula, in numpy.

Where a model is one small matrix, automatic differentiation takes many times as long to get under way as the
arithmetic itself does, and so do operations of torch. With probabilities p of a sample x of class y, the
gradient of the cross-entropy in the matrix is (p - e_y) x^T, and p - e_y in the constant term.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fl.flat import FlatModel
from fl.models.linear import Softmax
from fl.objective import CrossEntropy
from fl.samples import Array
from fl.training import Training


class Arrays(Protocol):
    """Inputs, targets and weights of what so many clients see in a step, a row for each client."""

    def arrays(self, step: int, active: int) -> tuple[Array, Array, Array]: ...


def has_formula(flat: FlatModel, training: Training) -> bool:
    """Whether the model and its loss are those of the formula, all of the model is trained, and on a CPU."""
    module = flat.module
    return (
        type(module) is Softmax
        and isinstance(training.objective, CrossEntropy)
        and len(flat.slots) == len(list(module.parameters()))
        and flat.device.type == "cpu"
    )


class FormulaRows:
    """Some clients' softmax regressions in the rows of a matrix, and their gradients."""

    def __init__(self, flat: FlatModel, values: Tensor) -> None:
        self.count = len(values)
        self._gradient = torch.empty_like(values)
        models, gradients = values.numpy(), self._gradient.numpy()  # in the same memory
        classes, features = flat.slots[0].shape
        size, shape = classes * features, (self.count, classes, features)
        self._weights = models[:, :size].reshape(shape).transpose(0, 2, 1)
        self._biases = models[:, None, size:]
        self._slopes = gradients[:, :size].reshape(shape)
        self._shifts = gradients[:, size:]
        self._classes = np.eye(classes, dtype=models.dtype)

    @np.errstate(over="ignore", invalid="ignore")  # models that diverge are told by their losses
    def gradient(self, schedule: Arrays, step: int) -> Tensor:
        """Every client's gradient of the mean loss of its batch in that step."""
        inputs, targets, weights = schedule.arrays(step, self.count)
        inputs = inputs.reshape(*targets.shape, -1)
        errors = np.matmul(inputs, self._weights)
        if self._shifts.size:
            errors += self._biases
        errors -= errors.max(axis=2, keepdims=True)
        np.exp(errors, out=errors)
        errors /= errors.sum(axis=2, keepdims=True)
        errors -= self._classes.take(targets, axis=0)
        errors *= weights[:, :, None]
        np.matmul(errors.transpose(0, 2, 1), inputs, out=self._slopes)
        if self._shifts.size:
            errors.sum(axis=1, out=self._shifts)
        return self._gradient
