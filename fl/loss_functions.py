"""Loss functions by name. Each computes the loss of every sample and says which predictions are correct."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.samples import Array


class Objective(ABC):
    """A loss function. Targets have the samples as last axis, and may have axes before it, such as clients.
    Outputs have the same shape. If `whole_targets`, they have one more axis at the end: classes."""

    whole_targets: bool  # whether targets are class labels

    @abstractmethod
    def check(self, targets: Array, outputs: int) -> None:
        """Raise `TrainingError` if `targets` do not fit a model with `outputs` outputs."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample."""

    @abstractmethod
    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return, for every sample, whether the prediction is correct."""


class CrossEntropy(Objective):
    """Cross-entropy for targets that are classes 0, 1, ...; a model has one output (logit) per class."""

    whole_targets = True

    def check(self, targets: Array, outputs: int) -> None:
        if len(targets) and not (targets.min() >= 0 and targets.max() < outputs):
            raise TrainingError(
                f"targets go from {targets.min()} to {targets.max()}, but the model has {outputs} classes, "
                "counted from 0"
            )

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = functional.cross_entropy(
            outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), reduction="none"
        )
        return flat.view(targets.shape)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # The argmax of NaN logits is 0, which would count class 0 as correct.
        return (outputs.argmax(dim=-1) == targets) & outputs.isfinite().all(dim=-1)


class SquaredLoss(Objective):
    """Half the squared error. In a regression, no prediction counts as correct."""

    whole_targets = False

    def check(self, targets: Array, outputs: int) -> None:
        """Accept all targets."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square() / 2

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(targets, dtype=torch.bool)


class LogisticLoss(Objective):
    """log(1 + exp(-y z)) for labels y = -1 and 1 and one output z. Labels 0 and 1 are also accepted."""

    whole_targets = False

    def check(self, targets: Array, outputs: int) -> None:  # noqa: ARG002
        if not any(np.isin(targets, pair).all() for pair in ((-1, 1), (0, 1))):
            raise TrainingError("the loss logistic needs two classes, as targets of -1 and 1 or of 0 and 1")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.softplus(torch.where(targets > 0, -outputs, outputs))

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.where(targets > 0, outputs, -outputs) > 0


OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {"cross-entropy": CrossEntropy(), "squared": SquaredLoss(), "logistic": LogisticLoss()}
)


def objective(name: str) -> Objective:
    """Return the loss function called `name`. Raise `TrainingError` if there is none."""
    if name not in OBJECTIVES:
        raise unknown_name("loss", name, OBJECTIVES, parameter="loss")
    return OBJECTIVES[name]
