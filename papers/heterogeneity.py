"""How far clients pull a model in different directions, in the measures of several papers.

`gradients` has one client to a row: the gradients of all clients' objectives at the same model. Which model
it is matters: `at_optimum` is meant for the joint optimum, others are bounded over all models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, number
from fl.errors import FLError


def at_optimum(gradients: ArrayLike, *, doubled: bool = False) -> float:
    """H = mean over clients of |grad f_i|^2, of "A unifying framework for federated learning".

    Zero if all clients have the same optimum. The published values for least squares (Fig. 6) are `doubled`,
    and so four times as large: they were computed with 2 A'(Ax - b), twice the gradient of 1/2 |Ax - b|^2.
    """
    squares = _squares(_matrix("gradients", gradients))
    return float(squares.mean()) * (4.0 if doubled else 1.0)


def diversity(gradients: ArrayLike) -> float:
    """The variance of gradients: mean of |grad f_i - mean gradient|^2.

    Bounded in the analysis of lp-proj, "Personalized federated learning towards communication efficiency,
    robustness and fairness" (Assumption 3). Equal to `at_optimum` where the mean gradient is zero.
    """
    rows = _matrix("gradients", gradients)
    return float(_squares(rows - rows.mean(axis=0)).mean())


def dissimilarity(gradients: ArrayLike) -> float:
    """B = sqrt(mean of |grad f_i|^2) / |mean gradient|.

    Of "Federated optimization in heterogeneous networks" (FedProx), where it is 1 if all gradients are zero.
    Also 1 if all are equal. Infinite at a joint optimum that is not everybody's own.
    """
    rows = _matrix("gradients", gradients)
    mean = float(np.linalg.norm(rows.mean(axis=0)))
    spread = float(np.sqrt(_squares(rows).mean()))
    if mean == 0:
        return float("inf") if spread else 1.0
    return spread / mean


def largest_difference(gradients: ArrayLike, *, least: float = 1.0, most: float = 1.0) -> float:
    """The largest |a grad f_i - b grad f_j| over pairs of clients and a, b from `least` to `most`.

    Of "FedBC: federated learning beyond consensus" (Assumption 4.3), whose multipliers are between them.
    """
    rows = _matrix("gradients", gradients)
    if not 0 <= number("least", least) <= number("most", most):
        raise FLError(f"multipliers from {least} to {most}: least must be zero or above, and not above most")
    # A norm is convex, so it is largest where both multipliers are at their bounds.
    return max(_farthest(first * rows, second * rows) for first in (least, most) for second in (least, most))


def model_spread(optima: ArrayLike) -> float:
    """The largest distance between the optima of two clients: Omega_Y of the analysis of RFA."""
    rows = _matrix("optima", optima)
    return _farthest(rows, rows)


def input_spread(second_moments: ArrayLike) -> float:
    """The largest eigenvalue of any H^-1/2 H_i H^-1/2, H the mean of H_i: Omega_X of the analysis of RFA.

    `second_moments` are the matrices H_i = E[x x'] of all clients. 1 if all are equal, at most their number.
    """
    matrices = np.asarray(second_moments, dtype=np.float64)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        raise FLError(f"second moments must be clients x features x features, not {matrices.shape}")
    if not np.isfinite(matrices).all():
        raise FLError("second moments are not finite: leave out the clients whose inputs are not")
    try:
        root = np.linalg.inv(np.linalg.cholesky(matrices.mean(axis=0)))
    except np.linalg.LinAlgError:
        raise FLError(
            "inputs of all clients lie in a subspace: leave out features that depend on others"
        ) from None
    # Any root of the inverse gives the same eigenvalues; the triangular one is the cheapest.
    return float(np.linalg.eigvalsh(root @ matrices @ root.T).max())


def _matrix(name: str, values: ArrayLike) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or not rows.size:
        raise FLError(
            f"{name} must be clients x elements, one client to a row, not of shape {rows.shape}",
            parameter=name,
        )
    if not (finite := np.isfinite(rows).all(axis=1)).all():
        raise FLError(f"{name} of client {int(np.argmin(finite))} are not finite: find out what diverged")
    return rows


def _squares(rows: Floats) -> Floats:
    return np.asarray((rows * rows).sum(axis=1))


def _farthest(first: Floats, second: Floats) -> float:
    """The largest distance between different rows; zero if there is only one."""
    distances = [
        np.sqrt(_squares(np.delete(second, place, axis=0) - row)).max(initial=0.0)
        for place, row in enumerate(first)
    ]
    return float(max(distances))
