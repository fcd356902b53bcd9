"""Proximal operators that can be computed exactly: those of linear models with a squared or a logistic loss.

With n samples, a client's objective is, as everywhere in this package, a mean:

    f(w) = 1/n sum_j loss_j(w) + decay / 2 |w|^2

and its proximal operator with step eta is argmin_w f(w) + |w - point|^2 / (2 eta). Papers that sum over
samples, as "A Unifying Framework for Federated Learning" does, have f times n, and their eta is ours / n.

For the squared loss the minimum solves a linear equation, and one decomposition serves every eta; for the
logistic loss it is found by Newton's method to machine precision, which counts as exact. Both are in double
precision, whatever the model is trained in. What is exact for one client is exact for all data in one place,
so the same objects know the optimum that experiments are measured by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fl.batches import SampleTensors
from fl.errors import DataError, TrainingError
from fl.flat_model import FlatModel
from fl.models.linear import Linear
from fl.objective import LogisticLoss, SquaredLoss
from fl.samples import Array
from fl.training import Training

_MOST: Final = 2048  # parameters, beyond which a matrix of them takes longer than many local steps
_DEPENDENT: Final = 1e-12  # of the largest eigenvalue, below which there is no curvature but rounding


class ExactObjective(ABC):
    """A client's objective, minimised exactly. Nothing is computed before it is asked for."""

    def __init__(self, flat: FlatModel, store: SampleTensors, decay: float) -> None:
        self.dim, self.decay = flat.dim, decay
        self._store = store
        self._biased = len(flat.slots) > 1

    def matrix(self) -> tuple[Array, Array]:
        """Inputs with a column for every parameter, and targets, in double precision."""
        inputs = self._store.inputs.reshape(len(self._store), -1).double().cpu().numpy()
        if self._biased:  # the constant term comes last
            inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        return inputs, self._store.targets.double().cpu().numpy()

    def proximal(self, point: Array, eta: float) -> Array:
        """The model that is best in view of `point`; with an infinite `eta`, the best of all."""
        if not eta > 0:
            raise TrainingError(f"the step of a proximal operator is above 0, not {eta!r}")
        start = np.asarray(point, np.float64)
        if start.shape != (self.dim,):
            raise TrainingError(f"a model of {self.dim} parameters, not one of shape {start.shape}")
        if not np.isfinite(start).all():
            return np.full_like(start, np.nan)  # as from local steps: who diverged stays diverged
        return self.nearest(start, 1.0 / eta)

    @abstractmethod
    def nearest(self, point: Array, pull: float) -> Array:
        """The minimum of f(w) + pull / 2 * |w - point|^2."""

    @cached_property
    def optimum(self) -> Array:
        return self.nearest(np.zeros(self.dim), 0.0)

    @abstractmethod
    def excess(self, model: Array) -> float:
        """By how much f is above its least at `model`."""


class ExactLeastSquares(ExactObjective):
    """Half the squared error."""

    def nearest(self, point: Array, pull: float) -> Array:
        values, vectors = self._eigen
        bends = values + (self.decay + pull)
        if bends[0] <= _DEPENDENT * bends[-1]:
            raise DataError("columns depend on each other, so there is no optimum: choose a finite eta")
        return np.asarray(vectors @ ((vectors.T @ (self.normal[1] + pull * point)) / bends))

    def excess(self, model: Array) -> float:
        values, vectors = self._eigen  # by curvature, as the difference of two losses is rounding in the end
        away = vectors.T @ (np.asarray(model, np.float64) - self.optimum)
        return float(0.5 * (values + self.decay) @ (away * away))

    @cached_property
    def normal(self) -> tuple[Array, Array]:
        """The matrix and the vector of the normal equations, whose difference at a model is the gradient."""
        inputs, targets = self.matrix()
        return np.asarray(inputs.T @ inputs / len(inputs)), np.asarray(targets @ inputs / len(inputs))

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.normal[0])
        return np.maximum(values, 0.0), vectors


class ExactLogistic(ExactObjective):
    """Targets are -1 and 1, or 0 and 1."""

    def nearest(self, point: Array, pull: float) -> Array:
        rows = self._signed

        def slope(model: Array) -> Array:
            chances = _sigmoid(-(rows @ model))
            return self.decay * model + pull * (model - point) - chances @ rows / len(rows)

        def bend(model: Array) -> Array:
            chances = _sigmoid(rows @ model)  # the sign of a row is in both factors, and goes
            found = (rows.T * (chances * (1 - chances) / len(rows))) @ rows
            found[np.diag_indices_from(found)] += self.decay + pull
            return np.asarray(found)

        def value(model: Array) -> float:
            away = model - point
            return self._value(model) + 0.5 * pull * float(away @ away)

        return minimum(slope, bend, value, point)

    def excess(self, model: Array) -> float:
        return max(0.0, self._value(np.asarray(model, np.float64)) - self._least)

    def _value(self, model: Array) -> float:
        losses = np.logaddexp(0.0, -(self._signed @ model))
        return float(losses.mean() + 0.5 * self.decay * (model @ model))

    @cached_property
    def _least(self) -> float:
        return self._value(self.optimum)

    @cached_property
    def _signed(self) -> Array:
        inputs, targets = self.matrix()
        return np.asarray(inputs * np.where(targets > 0, 1.0, -1.0)[:, None])


@dataclass(frozen=True, eq=False)
class LeastSquaresGradient:
    """The gradient of the mean squared loss on all of a client's data: matrix times model minus vector."""

    matrix: Tensor
    vector: Tensor

    @classmethod
    def of(cls, squares: ExactLeastSquares, flat: FlatModel) -> LeastSquaresGradient:
        matrix, vector = (torch.from_numpy(each).to(flat.values) for each in squares.normal)
        return cls(matrix, vector)

    def __call__(self, model: Tensor) -> Tensor:
        return torch.addmv(-self.vector, self.matrix, model)


def exact_objective(flat: FlatModel, training: Training, store: SampleTensors) -> ExactObjective | None:
    """The objective of whoever has the samples of `store`, if its proximal operator is known exactly."""
    kinds: dict[type, type[ExactObjective]] = {SquaredLoss: ExactLeastSquares, LogisticLoss: ExactLogistic}
    kind = kinds.get(type(training.objective))
    if kind is None or not is_linear(flat) or flat.dim > _MOST:
        return None
    return kind(flat, store, training.weight_decay)


def is_linear(flat: FlatModel) -> bool:
    """Whether it is this package's linear model, all of which is trained."""
    return type(flat.module) is Linear and len(flat.slots) == len(list(flat.module.parameters()))


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


_STEPS: Final = 100  # It needs about ten; more than this means that it will not get there.


def minimum(
    slope: Callable[[Array], Array],
    bend: Callable[[Array], Array],
    value: Callable[[Array], float],
    start: Array,
) -> Array:
    """Where `value` is least, given its gradient and its Hessian: until a step is nothing but rounding."""
    model = np.array(start, dtype=np.float64)
    for _ in range(_STEPS):
        step = np.linalg.solve(bend(model), slope(model))
        if np.abs(step).max() <= 1e-13 * max(1.0, np.abs(model).max()):
            return np.asarray(model - step)
        here, length = value(model), 1.0
        # Far from the minimum a full step can overshoot; near to it, values are equal up to rounding.
        while value(model - length * step) > here + 1e-12 * abs(here):
            length /= 2
        model -= length * step
    raise DataError("no optimum was found: the labels can be told apart by too wide a margin; add noise")
