"""What a model is trained for: the loss of one sample, and when it counts as right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fl.errors import TrainingError
from fl.samples import Array


class Objective(ABC):
    """Over any number of leading axes, the last of which counts samples."""

    whole_targets: bool  # classes, not amounts

    @abstractmethod
    def check(self, targets: Array, outputs: int) -> None:
        """Raise if there are targets that a model with so many outputs cannot have."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss for every sample."""

    @abstractmethod
    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One truth value for every sample."""


class CrossEntropy(Objective):
    """Of classes 0, 1, ...; `outputs` have one logit for each."""

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
        # The largest of logits that are not numbers is the first one, which would make class 0 right.
        return (outputs.argmax(dim=-1) == targets) & outputs.isfinite().all(dim=-1)


class SquaredLoss(Objective):
    """Half the squared error. In a regression nothing is right or wrong, so nothing counts as right."""

    whole_targets = False

    def check(self, targets: Array, outputs: int) -> None:
        """Every amount is possible."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square() / 2

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(targets, dtype=torch.bool)


class LogisticLoss(Objective):
    """log(1 + exp(-y z)) of labels y = -1 and 1 and one output z. Classes 0 and 1 are such labels as well."""

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
    """By its name."""
    if name not in OBJECTIVES:
        raise TrainingError(f"no loss is called {name!r}; there are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
