"""Exact proximal operators, for linear models with a squared or a logistic loss.

A client's objective is the mean loss of its n samples, as everywhere in this package, plus weight decay:

    f(w) = 1/n sum_j loss_j(w) + decay / 2 |w|^2

Its proximal operator with step eta is argmin_w f(w) + |w - point|^2 / (2 eta). In papers that sum over
samples, such as "A Unifying Framework for Federated Learning", f is n times larger and eta n times smaller.

For the squared loss, the minimum solves a linear equation; one decomposition of its matrix serves every eta.
For the logistic loss, Newton's method finds it to machine precision. Both compute in double precision. With
the data of all clients, the same classes compute the optimum that experiments compare their models with.
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

from fl.errors import DataError, TrainingError
from fl.flat_model import FlatModel
from fl.loss_functions import LogisticLoss, SquaredLoss
from fl.models.linear_and_mlp import Linear
from fl.sample_tensors import SampleTensors
from fl.samples import Array
from fl.training_settings import Training

_MOST: Final = 2048  # parameters; for more, local steps are faster than computing with the matrix
_DEPENDENT: Final = 1e-12  # relative to the largest eigenvalue; smaller ones are rounding errors


class ExactObjective(ABC):
    """The objective f of one client (mean loss plus weight decay), its proximal operator and its minimum."""

    def __init__(self, flat: FlatModel, store: SampleTensors, decay: float) -> None:
        self.dim, self.decay = flat.dim, decay
        self._store = store
        self._biased = len(flat.slots) > 1

    def matrix(self) -> tuple[Array, Array]:
        """Return the inputs as float64, one column per parameter (ones for the bias), and the targets."""
        inputs = self._store.inputs.reshape(len(self._store), -1).double().cpu().numpy()
        if self._biased:  # the bias is the last column
            inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        return inputs, self._store.targets.double().cpu().numpy()

    def proximal(self, point: Array, eta: float) -> Array:
        """Return the minimiser of f(w) + |w - point|^2 / (2 eta), or of f if `eta` is infinite; f is mean
        loss plus weight decay. Return NaN if `point` is not finite. Raise `TrainingError` unless eta > 0."""
        if not eta > 0:
            raise TrainingError(f"eta must be above 0, not {eta!r}", parameter="eta")
        start = np.asarray(point, np.float64)
        if start.shape != (self.dim,):
            raise TrainingError(f"a model of {self.dim} parameters, not one of shape {start.shape}")
        if not np.isfinite(start).all():
            return np.full_like(start, np.nan)  # a diverged model stays diverged, as with local steps
        return self.nearest(start, 1.0 / eta)

    @abstractmethod
    def nearest(self, point: Array, pull: float) -> Array:
        """Return the minimiser of f(w) + pull / 2 * |w - point|^2, with f the mean loss plus weight decay."""

    @cached_property
    def optimum(self) -> Array:
        """The minimiser of f, mean loss plus weight decay. Raises `DataError` unless there is exactly one."""
        return self.nearest(np.zeros(self.dim), 0.0)

    @abstractmethod
    def excess(self, model: Array) -> float:
        """Return f(model) minus the minimum of f, the client's mean loss plus weight decay."""


class ExactLeastSquares(ExactObjective):
    """A linear model's objective f: half the mean squared error + weight decay."""

    def nearest(self, point: Array, pull: float) -> Array:
        values, vectors = self._eigen
        bends = values + (self.decay + pull)
        if bends[0] <= _DEPENDENT * bends[-1]:
            raise DataError(
                "columns are linearly dependent, so there is no unique optimum: choose a finite eta"
            )
        return np.asarray(vectors @ ((vectors.T @ (self.normal[1] + pull * point)) / bends))

    def excess(self, model: Array) -> float:
        # By curvature: the difference of two losses loses precision near the optimum.
        values, vectors = self._eigen
        away = vectors.T @ (np.asarray(model, np.float64) - self.optimum)
        return float(0.5 * (values + self.decay) @ (away * away))

    @cached_property
    def normal(self) -> tuple[Array, Array]:
        """Matrix and vector that give the gradient of half the mean squared error: matrix @ w - vector."""
        inputs, targets = self.matrix()
        return np.asarray(inputs.T @ inputs / len(inputs)), np.asarray(targets @ inputs / len(inputs))

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.normal[0])
        return np.maximum(values, 0.0), vectors


class ExactLogistic(ExactObjective):
    """A linear model's objective f: mean logistic loss + weight decay. Targets are -1 and 1, or 0 and 1."""

    def nearest(self, point: Array, pull: float) -> Array:
        rows = self._signed

        def gradient(model: Array) -> Array:
            probabilities = sigmoid(-(rows @ model))
            return self.decay * model + pull * (model - point) - probabilities @ rows / len(rows)

        def hessian(model: Array) -> Array:
            probabilities = sigmoid(rows @ model)  # the signs of the rows cancel
            found = (rows.T * (probabilities * (1 - probabilities) / len(rows))) @ rows
            found[np.diag_indices_from(found)] += self.decay + pull
            return np.asarray(found)

        def value(model: Array) -> float:
            away = model - point
            return self._value(model) + 0.5 * pull * float(away @ away)

        return minimum(gradient, hessian, value, point)

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
    """The gradient of half the mean squared error of a linear model on all of a client's data, as a function
    of the model: matrix @ model - vector."""

    matrix: Tensor
    vector: Tensor

    @classmethod
    def of(cls, squares: ExactLeastSquares, flat: FlatModel) -> LeastSquaresGradient:
        matrix, vector = (torch.from_numpy(each).to(flat.values) for each in squares.normal)
        return cls(matrix, vector)

    def __call__(self, model: Tensor) -> Tensor:
        return torch.addmv(-self.vector, self.matrix, model)


def exact_objective(flat: FlatModel, training: Training, store: SampleTensors) -> ExactObjective | None:
    """Return the objective of a client with the samples of `store`. Return None if no exact proximal operator
    is known for the model and loss, or if the model is too large for it."""
    kinds: dict[type, type[ExactObjective]] = {SquaredLoss: ExactLeastSquares, LogisticLoss: ExactLogistic}
    kind = kinds.get(type(training.objective))
    if kind is None or not is_linear(flat) or flat.dim > _MOST:
        return None
    return kind(flat, store, training.weight_decay)


def is_linear(flat: FlatModel) -> bool:
    """Return whether the model is a linear regression (`Linear`) with all its parameters trainable."""
    return type(flat.module) is Linear and len(flat.slots) == len(list(flat.module.parameters()))


def sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


_STEPS: Final = 100  # Newton's method needs about ten steps; with this many, it does not converge.


def minimum(
    gradient: Callable[[Array], Array],
    hessian: Callable[[Array], Array],
    value: Callable[[Array], float],
    start: Array,
) -> Array:
    """Return the minimiser of the convex function `value`, found by Newton's method from `start` with the
    given gradient and Hessian. Raise `DataError` if the method does not converge."""
    model = np.array(start, dtype=np.float64)
    for _ in range(_STEPS):
        step = np.linalg.solve(hessian(model), gradient(model))
        if np.abs(step).max() <= 1e-13 * max(1.0, np.abs(model).max()):
            return np.asarray(model - step)
        here, length = value(model), 1.0
        # Far from the minimum a full step can overshoot. Near the minimum, values are equal up to rounding.
        while value(model - length * step) > here + 1e-12 * abs(here):
            length /= 2
        model -= length * step
    raise DataError("no optimum was found: the classes are separated by too wide a margin; add noise")
