"""Gradient steps on the model of one client (a vector) or of many clients (the rows of a matrix)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fl.subspace_projection import Projection
from fl.training_settings import Training
from protocols.learner import Steering

Column: TypeAlias = Tensor | float


@dataclass(frozen=True)
class PenaltyTensors:
    """The penalty pull / power * |P w - center|^power on a model w, in the l1 norm (`power` 1) or l2 norm
    (2). P is `projection` (None: identity). Tensors are vectors, or matrices with a row per client."""

    projection: Projection | None  # None for the identity
    center: Tensor
    pull: Column
    power: int

    def force(self, values: Tensor) -> Tensor:
        """Return the gradient of the penalty at the model or models `values`, in the shape of `values`."""
        off = (values if self.projection is None else self.projection.project(values)) - self.center
        force = (off.sign_() if self.power == 1 else off).mul_(self.pull)
        return force if self.projection is None else self.projection.lift(force)

    def rows(self, count: int) -> PenaltyTensors:
        """Return the penalty terms of the first `count` clients (rows)."""
        return PenaltyTensors(self.projection, self.center[:count], _first(self.pull, count), self.power)


@dataclass(frozen=True)
class StepTerms:
    """The terms that an algorithm adds to plain gradient steps; `protocols.learner.Steering` explains them.
    Tensors are vectors for one client, or matrices with a row per client."""

    pull: Column = 0.0
    anchor: Tensor | None = None
    correction: Tensor | None = None
    mix: Column = 0.0
    target: Tensor | None = None
    only: Tensor | None = None  # 1 for parameters that may change, 0 for others
    penalty: PenaltyTensors | None = None

    def rows(self, count: int) -> StepTerms:
        """Return the terms of the first `count` clients (rows)."""
        return StepTerms(
            _first(self.pull, count),
            None if self.anchor is None else self.anchor[:count],
            None if self.correction is None else self.correction[:count],
            _first(self.mix, count),
            None if self.target is None else self.target[:count],
            None if self.only is None else self.only[:count],
            None if self.penalty is None else self.penalty.rows(count),
        )


class Descent:
    """Takes gradient steps with learning rate `rate`, extra `terms`, and momentum, clipping and weight decay
    as in `training`. `values`, one model or a matrix with a model per row, is updated in place."""

    def __init__(self, training: Training, values: Tensor, rate: Column, terms: StepTerms) -> None:
        self._training = training
        self._values = values
        self._rate = rate
        self._terms = terms
        self._speed = torch.zeros_like(values) if training.momentum else None

    def step(self, gradient: Tensor) -> None:
        """Take one step. `gradient` is the gradient of the loss at the current models; it is overwritten."""
        training, terms, values = self._training, self._terms, self._values
        if training.clip is not None:
            if terms.only is not None:  # fixed parameters do not count towards the norm
                gradient.mul_(terms.only)
            gradient.mul_(_clip_factor(gradient, training.clip))
        if training.weight_decay:
            gradient.add_(values, alpha=training.weight_decay)
        if terms.anchor is not None:
            gradient.add_((values - terms.anchor).mul_(terms.pull))
        if terms.correction is not None:
            gradient.add_(terms.correction)
        if terms.penalty is not None:
            gradient.add_(terms.penalty.force(values))
        if terms.only is not None:
            gradient.mul_(terms.only)
        if self._speed is not None:
            gradient = self._speed.mul_(training.momentum).add_(gradient)
        _subtract(values, gradient, self._rate)
        if terms.target is not None:
            self._mix(values, terms.target)

    def _mix(self, values: Tensor, target: Tensor) -> None:
        moved = 1 - 1 / (1 + self._rate * self._terms.mix)
        change = (target - values).mul_(moved)
        values.add_(change if self._terms.only is None else change.mul_(self._terms.only))

    def rows(self, count: int) -> None:
        """Continue with the first `count` clients (rows) only, because the others have done all steps."""
        self._values = self._values[:count]
        self._rate = _first(self._rate, count)
        self._terms = self._terms.rows(count)
        self._speed = None if self._speed is None else self._speed[:count]


def _clip_factor(gradient: Tensor, clip: float) -> Tensor:
    """Return the factor, for each client, that scales its gradient to a norm of at most `clip`. Norms are in
    double precision (not on mps devices, which lack it), as squares of large float32 values overflow."""
    wide = torch.float32 if gradient.device.type == "mps" else torch.float64
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=wide)
    return (clip / norm).clamp_(max=1.0).to(gradient.dtype)


def _subtract(values: Tensor, gradient: Tensor, rate: Column) -> None:
    if isinstance(rate, float):
        values.sub_(gradient, alpha=rate)
    else:
        values.addcmul_(gradient, rate, value=-1)


def column(numbers: Sequence[float], like: Tensor) -> Column:
    """Return `numbers`, one per client, as a column on `like`'s device, or as a float if all are equal."""
    if len(set(numbers)) == 1:
        return float(numbers[0])
    return torch.tensor(numbers, device=like.device, dtype=like.dtype).unsqueeze(1)


def _first(column: Column, count: int) -> Column:
    return column if isinstance(column, float) else column[:count]


def pulls(steering: Steering) -> bool:
    """Return whether `steering` has a proximal term that is not zero."""
    return steering.anchor is not None and steering.pull != 0


def mixes(steering: Steering) -> bool:
    return steering.target is not None and steering.mix != 0
