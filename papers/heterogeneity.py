"""Measures of heterogeneity: how much clients' objectives differ, as defined by several papers.

`gradients` has one row per client: the gradients of all clients' objectives at the same model. `at_optimum`
is meant for the joint optimum; the other measures are bounded over all models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, number
from fl.errors import FLError


def at_optimum(gradients: ArrayLike, *, doubled: bool = False) -> float:
    """Return H = mean over clients of |grad f_i|^2, of "A unifying framework for federated learning".

    It is zero if all clients have the same optimum. The published values for least squares (Fig. 6) are
    `doubled`, and so four times as large: they were computed with 2 A'(Ax - b), twice the gradient of 1/2
    |Ax - b|^2.
    """
    squares = _squares(_matrix("gradients", gradients))
    return float(squares.mean()) * (4.0 if doubled else 1.0)


def diversity(gradients: ArrayLike) -> float:
    """Return the variance of gradients: mean of |grad f_i - mean gradient|^2.

    It is bounded in the analysis of lp-proj, "Personalized federated learning towards communication
    efficiency, robustness and fairness" (Assumption 3), and equals `at_optimum` if the mean gradient is
    zero.
    """
    rows = _matrix("gradients", gradients)
    return float(_squares(rows - rows.mean(axis=0)).mean())


def dissimilarity(gradients: ArrayLike) -> float:
    """Return B = sqrt(mean of |grad f_i|^2) / |mean gradient|.

    Of "Federated optimization in heterogeneous networks" (FedProx), where it is 1 if all gradients are
    zero. It is also 1 if all are equal, and infinite at a joint optimum that is not the optimum of every
    client.
    """
    rows = _matrix("gradients", gradients)
    mean = float(np.linalg.norm(rows.mean(axis=0)))
    spread = float(np.sqrt(_squares(rows).mean()))
    if mean == 0:
        return float("inf") if spread else 1.0
    return spread / mean


def largest_difference(gradients: ArrayLike, *, least: float = 1.0, most: float = 1.0) -> float:
    """Return the largest |a grad f_i - b grad f_j| over pairs of clients and a, b from `least` to `most`.

    Of "FedBC: federated learning beyond consensus" (Assumption 4.3), whose multipliers are in this range.
    """
    rows = _matrix("gradients", gradients)
    if not 0 <= number("least", least) <= number("most", most):
        raise FLError(f"multipliers from {least} to {most}: least must be zero or above, and not above most")
    # A norm is convex, so it is largest where both multipliers are at their bounds.
    return max(_farthest(first * rows, second * rows) for first in (least, most) for second in (least, most))


def model_spread(optima: ArrayLike) -> float:
    """Return the largest distance between the optima of two clients: Omega_Y of the analysis of RFA."""
    rows = _matrix("optima", optima)
    return _farthest(rows, rows)


def input_spread(second_moments: ArrayLike) -> float:
    """Return the largest eigenvalue of any H^-1/2 H_i H^-1/2, H the mean of H_i: Omega_X of RFA's analysis.

    `second_moments` are the matrices H_i = E[x x'] of all clients. The result is 1 if all are equal, and at
    most the number of clients.
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
    """Return the largest distance between different rows; zero if there is only one."""
    distances = [
        np.sqrt(_squares(np.delete(second, index, axis=0) - row)).max(initial=0.0)
        for index, row in enumerate(first)
    ]
    return float(max(distances))
