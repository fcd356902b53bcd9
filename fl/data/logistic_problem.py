"""The logistic regression problem of "A unifying framework for federated learning".

Each of m users has n samples. User i has inputs a_ij and labels b_ij, -1 or 1, and the objective f_i(w) =
sum_j log(1 + exp(-b_ij a_ij w)) + |w|^2 / (2 m n). Users jointly minimise the sum of their objectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch

from fl.checks import checked_seed, counted, not_negative
from fl.data.least_squares_problem import SEED, as_federation, check_shapes, positive_eta
from fl.errors import DataError
from fl.exact_proximal import minimum, sigmoid
from fl.federation import Federation
from fl.samples import Array

_FLIP: Final = 0.5  # Labels are flipped if the noise is at least this far from zero.


@dataclass(frozen=True, eq=False, repr=False)  # samples are private data
class LogisticProblem:
    """Logistic regression over several users: their inputs `a` (users x rows x features), their labels `b`
    (users x rows), -1 or 1, and the true model `truth`. Raises `DataError` for other shapes or labels."""

    a: Array
    b: Array
    truth: Array

    def __post_init__(self) -> None:
        check_shapes(self.a, self.b, self.truth)
        if not np.isin(self.b, (-1, 1)).all():
            raise DataError("labels of a logistic regression must be -1 and 1")

    @property
    def users(self) -> int:
        return len(self.a)

    @property
    def decay(self) -> float:
        """The factor of |w|^2 / 2 in the objective of every user: 1 / (number of rows of all users)."""
        return 1.0 / self.b.size

    def objective(self, model: Array) -> float:
        """Return the sum over users of (logistic losses of the rows + decay / 2 |w|^2) at w = `model`."""
        losses = np.logaddexp(0.0, -(self._signed @ model))
        return float(losses.sum() + 0.5 * self.users * self.decay * (model @ model))

    def gradients(self, models: Array) -> Array:
        """Return the gradient of every user's objective (logistic losses plus decay / 2 |w|^2), one per row.
        `models` is one model w for all users, or has one per row."""
        each = np.broadcast_to(models, (self.users, self.a.shape[2]))
        return np.array([self._gradient(user, model) for user, model in enumerate(each)])

    def proximal(self, points: Array, eta: float) -> Array:
        """Return the model w that minimises f_i(w) + |w - u_i|^2 / (2 eta) for every user i, one per row; f_i
        is the user's objective. `points` is one u for all, or has one u_i per row. `eta` may be infinite."""
        inverse = 1.0 / positive_eta(eta)
        each = np.broadcast_to(points, (self.users, self.a.shape[2]))
        return np.array([self._nearest(user, point, inverse) for user, point in enumerate(each)])

    @cached_property
    def optimum(self) -> Array:
        """The model that minimises the sum of all users' objectives, to machine precision."""

        def gradient(model: Array) -> Array:
            return np.asarray(self.gradients(model).sum(axis=0))

        def hessian(model: Array) -> Array:
            return np.asarray(sum(self._hessian(user, model) for user in range(self.users)))

        return minimum(gradient, hessian, self.objective, np.zeros(self.a.shape[2]))

    def federation(self) -> Federation:
        """Return a federation: one client per user, classes 0 and 1, all rows for training, in float64."""
        return as_federation(self.a, (self.b > 0).astype(np.int64), 2, "logistic regression")

    @cached_property
    def _signed(self) -> Array:
        return np.asarray(self.a * self.b[..., None])

    def _gradient(self, user: int, model: Array) -> Array:
        rows = self._signed[user]
        return np.asarray(self.decay * model - sigmoid(-(rows @ model)) @ rows)

    def _hessian(self, user: int, model: Array) -> Array:
        rows = self.a[user]
        chance = sigmoid(rows @ model)
        return np.asarray((rows.T * (chance * (1 - chance))) @ rows + self.decay * np.eye(len(model)))

    def _nearest(self, user: int, point: Array, inverse: float) -> Array:
        def gradient(model: Array) -> Array:
            return self._gradient(user, model) + inverse * (model - point)

        def hessian(model: Array) -> Array:
            return self._hessian(user, model) + inverse * np.eye(len(model))

        def value(model: Array) -> float:
            away = model - point
            losses = np.logaddexp(0.0, -(self._signed[user] @ model))
            return float(losses.sum() + 0.5 * (self.decay * (model @ model) + inverse * (away @ away)))

        return minimum(gradient, hessian, value, point)


def logistic(
    *, users: int = 10, features: int = 100, rows: int = 1000, noise: float = 0.0, seed: int = SEED
) -> LogisticProblem:
    """Return the logistic regression of "A unifying framework for federated learning": entries of the inputs
    A and of the model `truth` are N(0, 1), and labels b are -1 or 1 with P{b = 1} = sigmoid(A truth).

    `noise`  a label is flipped if a draw of N(0, noise^2) is at least 1/2 away from zero. It is 0 in most
             experiments, and 0.257 (one label in twenty is flipped) for more heterogeneity.

    Numbers are drawn by torch in single precision, in the order of the paper's script on heterogeneity: the
    true model, all matrices, then for every user the noise and the labels.
    """
    for name, value in (("users", users), ("features", features), ("rows", rows)):
        counted(name, value, 1)
    not_negative("noise", noise)
    rng = torch.Generator().manual_seed(checked_seed(seed))
    truth = torch.randn(features, generator=rng)
    matrices = [torch.randn(rows, features, generator=rng) for _ in range(users)]
    labels = []
    for matrix in matrices:
        flipped = (noise * torch.randn(rows, 1, generator=rng)).abs() >= _FLIP
        drawn = 2 * torch.bernoulli(torch.sigmoid(matrix @ truth[:, None]), generator=rng) - 1
        labels.append(torch.where(flipped, -drawn, drawn)[:, 0])
    a, b = torch.stack(matrices).double().numpy(), torch.stack(labels).double().numpy()
    return LogisticProblem(a, b, truth.double().numpy())
