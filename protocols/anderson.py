"""Anderson acceleration: combines the last points of a fixed-point iteration into a better next point.

For an iteration u <- T(u), the last pairs (u_s, T(u_s)) are stored. Weights pi that add up to one are chosen
so that the weighted sum of the residuals u_s - T(u_s) is as short as possible. The next point is the sum of
the T(u_s) with the same weights ("type II"). The weights depend only on the Gram matrix G of the residuals:

    pi = G^+ 1 / (1' G^+ 1)      with the pseudo-inverse G^+ and the vector 1 of ones

This is equation (45) of the book chapter "A Unifying Framework for Federated Learning", which has no
safeguard. The ridge and the safeguard are those of "Anderson Accelerated Douglas-Rachford Splitting" (A2DR).
`damping` is taken from the chapter's scripts for neural networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols import checks
from protocols.serialisation import Vector

Matrix = NDArray[np.float64]

# A2DR's constants D and 1 + epsilon.
_GENEROUS: Final = 1e6
_FALLING: Final = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class Anderson:
    """The settings of Anderson acceleration, for an iteration u <- T(u) with residuals u - T(u).

    `memory`          tau: the last tau + 1 pairs (u, T(u)) are combined; 0 turns the acceleration off.
    `regularisation`  ridge on the diagonal of the Gram matrix of the residuals, relative to its trace.
    `damping`         fraction of the weights that is moved to the newest pair, from 0 to 1 (a plain step).
    `safeguard`       whether residuals are checked regularly. While they are too long, nothing is combined.
    `patience`        number of combinations between two such checks.
    """

    memory: int = 2
    regularisation: float = 0.0
    damping: float = 0.0
    safeguard: bool = False
    patience: int = 10

    def __post_init__(self) -> None:
        checks.whole("memory", self.memory, 0, 64)
        checks.real("regularisation", self.regularisation, 0)
        checks.real("damping", self.damping, 0, 1)
        checks.truth("safeguard", self.safeguard)
        checks.whole("patience", self.patience, 1)

    def weights(self, gram: Matrix) -> Vector:
        """Return the weights with which the stored pairs (u, T(u)) are combined, in the order of `gram`,
        which has the inner products of the residuals u - T(u), the newest last. If all residuals are zero or
        `gram` has infinite entries, all weight is on the newest pair, so that the next point is its T(u)."""
        plain = np.zeros(len(gram))
        plain[-1] = 1.0
        with np.errstate(all="ignore"):
            ridged = gram + self.regularisation * np.trace(gram) * np.eye(len(gram))
            if not np.isfinite(ridged).all():
                return plain
            found = np.linalg.pinv(ridged).sum(axis=1)
            weights = found / found.sum()
        if not np.isfinite(weights).all():
            return plain
        return np.asarray((1 - self.damping) * weights + self.damping * plain, np.float64)


@dataclass(frozen=True)
class AndersonSafeguard:
    """The state of a safeguard of Anderson acceleration: it rejects combined points if residuals stay long.

    `first`     norm of the first residual; 0 before there is one.
    `accepted`  number of combinations that were accepted so far.
    `unseen`    number of combinations that were accepted since the last check.
    `strict`    whether the next combination must be checked: True at first, and after a failed check.

    >>> guard = AndersonSafeguard().met(1.0)
    >>> guard.judge(0.5, patience=10)[0], guard.judge(1e7, patience=10)[0]
    (True, False)
    """

    first: float = 0.0
    accepted: int = 0
    unseen: int = 0
    strict: bool = True

    def met(self, residual: float) -> AndersonSafeguard:
        """Return this state with the norm `residual` as `first`; unchanged if `first` is set already."""
        return self if self.first else replace(self, first=residual)

    def judge(self, residual: float, *, patience: int) -> tuple[bool, AndersonSafeguard]:
        """Return whether the next combined point is accepted, and the new state. A check compares `residual`,
        the norm of the last residual, with a falling limit; a success accepts `patience` points in a row."""
        if not self.strict and self.unseen < patience:
            return True, replace(self, accepted=self.accepted + 1, unseen=self.unseen + 1)
        limit = _GENEROUS * self.first * (self.accepted / patience + 1) ** -_FALLING
        if residual <= limit:
            return True, replace(self, accepted=self.accepted + 1, unseen=1, strict=False)
        return False, replace(self, unseen=0, strict=True)


def combined(weights: Sequence[float] | Vector, vectors: Sequence[Vector]) -> Vector:
    """Return the sum of the last len(weights) of the `vectors`, each times its weight."""
    chosen = vectors[len(vectors) - len(weights) :]
    total = np.zeros_like(chosen[0])
    for weight, vector in zip(weights, chosen, strict=True):
        total = total + weight * vector
    return np.asarray(total, np.float64)


def gram_of(residuals: Sequence[Vector]) -> Matrix:
    """Return the Gram matrix of the residuals: all their inner products."""
    stacked = np.array(residuals)
    return np.asarray(stacked @ stacked.T, np.float64)
