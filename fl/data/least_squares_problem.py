"""The least-squares problem of "A unifying framework for federated learning" (chapter on splitting schemes).

Every user i has a matrix A_i, a row per sample, and targets b_i. Users jointly minimise the sum over users of

    f_i(w) = 1/2 |A_i w - b_i|^2

`LeastSquaresProblem` computes gradients, proximal operators argmin_w f_i(w) + |w - u_i|^2 / (2 eta), and the
joint optimum in double precision: the chapter plots the distance of an algorithm's model from that optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.random import RandomState

from fl.checks import checked_seed, counted, not_negative
from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.samples import Array, Samples

SEED: Final = 100  # the seed of all released scripts


@dataclass(frozen=True, eq=False, repr=False)  # samples are private data
class LeastSquaresProblem:
    """Least squares over several users: inputs `a` (users x rows x features), targets `b` (users x rows), and
    the true model `truth`. Raises `DataError` for other shapes, or fewer rows of all users than features."""

    a: Array
    b: Array
    truth: Array

    def __post_init__(self) -> None:
        check_shapes(self.a, self.b, self.truth)
        if self.a.shape[0] * self.a.shape[1] < self.a.shape[2]:
            raise DataError("fewer rows than features, so there is no unique optimum: use more rows")

    @property
    def users(self) -> int:
        return len(self.a)

    def objective(self, model: Array) -> float:
        """Return the sum of all users' objectives 1/2 |A_i w - b_i|^2 at the model w = `model`."""
        residuals = self.a @ model - self.b
        return 0.5 * float(np.vdot(residuals, residuals))

    def gradients(self, models: Array) -> Array:
        """Return the gradient of every user's objective 1/2 |A_i w - b_i|^2, one per row. `models` is one
        model w for all users, or has one per row."""
        return _times(self._squares, self._each(models)) - self._products

    def proximal(self, points: Array, eta: float) -> Array:
        """Return the minimiser over w of 1/2 |A w - b|^2 + |w - u|^2 / (2 eta) for every user with inputs A
        and targets b, one per row. `points` is one u for all users, or has one u per row. With infinite
        `eta`, it is the user's own optimum; if that is not unique, `DataError` is raised."""
        inverse = 1.0 / positive_eta(eta)
        values, vectors = self._eigen
        if not inverse and values.min() <= 0:
            raise DataError("a user with dependent columns has no unique optimum: choose a finite eta")
        target = self._products + inverse * self._each(points)
        return _times(vectors, _times(np.swapaxes(vectors, 1, 2), target) / (values + inverse))

    def averaged(self, steps: float, eta: float) -> Array:
        """Return the model to which federated averaging converges if each user makes `steps` gradient steps
        of size `eta` per round. For infinite `steps`, this is the mean of the users' own optima."""
        if math.isinf(steps):
            return np.asarray(self.proximal(np.zeros(self.a.shape[2]), math.inf).mean(axis=0))
        values, vectors = self._eigen
        # Equation 21: the mean of (1 - eta value)^j over j < k is (1 - (1 - eta value)^k) / (k eta value).
        powers = 1.0 - (1.0 - positive_eta(eta) * values) ** steps
        small = values <= 0
        factors = np.where(small, 1.0, powers / np.where(small, 1.0, steps * eta * values))
        bent = (vectors * (values * factors)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        turned = _times(np.swapaxes(vectors, 1, 2), self._products)
        return np.asarray(np.linalg.solve(bent.sum(axis=0), _times(vectors, factors * turned).sum(axis=0)))

    @cached_property
    def optimum(self) -> Array:
        return np.asarray(np.linalg.solve(self._squares.sum(axis=0), self._products.sum(axis=0)))

    def federation(self) -> Federation:
        """Return a federation: one client per user, a regression, all rows for training, in float64."""
        return as_federation(self.a, self.b, None, "least squares")

    def _each(self, models: Array) -> Array:
        return np.broadcast_to(models, self._products.shape)

    @cached_property
    def _squares(self) -> Array:
        return np.asarray(np.swapaxes(self.a, 1, 2) @ self.a)

    @cached_property
    def _products(self) -> Array:
        return _times(np.swapaxes(self.a, 1, 2), self.b)

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        # One decomposition serves every eta, so a round of all users is a few products.
        values, vectors = np.linalg.eigh(self._squares)
        return values, vectors


def least_squares(
    *,
    users: int = 25,
    features: int = 100,
    rows: int = 5000,
    noise: float = 0.25,
    matrices_first: bool = False,
    seed: int = SEED,
) -> LeastSquaresProblem:
    """Return the least-squares problem of "A unifying framework for federated learning": entries of all
    matrices A and of the model `truth` are N(0, 1), and targets are b = A truth + N(0, noise^2).

    `noise`           a standard deviation. The paper says that the variance is 0.25; its scripts, and its
                      values of heterogeneity, have the standard deviation 0.25.
    `matrices_first`  whether all matrices are drawn before all noise, as in the script for Fig. 6. The other
                      scripts draw each user's matrix, then that user's noise.
    """
    for name, value in (("users", users), ("features", features), ("rows", rows)):
        counted(name, value, 1)
    not_negative("noise", noise)
    rng = RandomState(checked_seed(seed))
    truth = rng.standard_normal(features)
    a, errors = np.empty((users, rows, features)), np.empty((users, rows))
    for user in range(users):
        a[user] = rng.normal(0, 1, (rows, features))
        if not matrices_first:
            errors[user] = rng.normal(0, noise, rows)
    if matrices_first:
        errors = rng.normal(0, noise, (users, rows))
    return LeastSquaresProblem(a, a @ truth + errors, truth)


def check_shapes(a: Array, b: Array, truth: Array) -> None:
    """Raise `DataError` unless the arguments' shapes are users x rows x features, users x rows, features."""
    if a.ndim != 3 or b.shape != a.shape[:2] or truth.shape != a.shape[2:]:
        raise DataError(
            f"matrices {a.shape}, targets {b.shape} and a model {truth.shape} do not fit: "
            "give users x rows x features, users x rows, and features"
        )


def positive_eta(eta: float) -> float:
    """Return `eta`. Raise `DataError` unless it is above zero. It may be infinite."""
    if not eta > 0:
        raise DataError(f"eta must be above zero, not {eta!r}", parameter="eta")
    return eta


def as_federation(a: Array, b: Array, classes: int | None, name: str) -> Federation:
    """Return a federation of one client per user i, with inputs a[i] and targets b[i], all for training."""
    nothing = Samples(a[0, :0], b[0, :0])
    clients = {user: ClientData(Samples(a[user], b[user]), nothing, nothing) for user in range(len(a))}
    return Federation(clients, classes=classes, name=name)


def _times(matrices: Array, vectors: Array) -> Array:
    return np.asarray((matrices @ vectors[..., None])[..., 0])
