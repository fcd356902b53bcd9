"""Accuracy and loss over clients: on average, and for the clients with the worst results.

Accuracies and errors are fractions of one, except in `AccuracySpread`, which has percentages as in papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, same_length, series
from fl.errors import FLError
from fl.samples import Array
from protocols.learner import Score

# A tenth of 30 clients is 3, although 0.1 * 30 may be slightly below 3 in floats.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Test results of several clients, as arrays with one entry per client: the number of samples `total`,
    how many were classified correctly, and the mean loss, which may be infinite. Raises `FLError` for NaN,
    for a client without samples, and for impossible counts."""

    correct: Array
    total: Array
    loss: Array

    def __post_init__(self) -> None:
        correct, total = series("counts of correct samples", self.correct), series("totals", self.total)
        loss = series("losses", self.loss, finite=False)
        same_length("counts of correct samples", correct, "totals", total)
        same_length("losses", loss, "totals", total)
        if (empty := np.flatnonzero(total <= 0)).size:
            raise FLError(
                f"{len(empty)} clients have no test samples, the first at index {empty[0]}: leave them out"
            )
        if (wrong := np.flatnonzero((correct < 0) | (correct > total))).size:
            first = wrong[0]
            raise FLError(
                f"at index {first}, {correct[first]:g} of {total[first]:g} samples are correct: "
                "give a count from 0 to the total"
            )
        for name, values in (("correct", correct), ("total", total), ("loss", loss)):
            object.__setattr__(self, name, values)

    @staticmethod
    def of(scores: Iterable[Score]) -> ClientScores:
        """Return `scores` in their order, NaN losses as infinite ones. Raise `FLError` without scores."""
        rows = [(each.correct, each.total, _or_infinite(each.loss)) for each in scores]
        if not rows:
            raise FLError("there are no scores: at least one client must evaluate the model")
        correct, total, loss = np.array(rows, dtype=np.float64).T
        return ClientScores(correct, total, loss)

    def __len__(self) -> int:
        return len(self.total)

    def only(self, chosen: ArrayLike) -> ClientScores:
        """Return the scores where `chosen`, a boolean per client, is true. Raise `FLError` if none is."""
        mask = np.asarray(chosen)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise FLError("give a list of booleans, one for each client")
        same_length("choices", mask, "clients", self)
        if not mask.any():
            raise FLError("no client is chosen: choose at least one")
        return ClientScores(self.correct[mask], self.total[mask], self.loss[mask])

    @property
    def accuracy(self) -> Floats:
        """The accuracy of each client, as a fraction of its test samples."""
        return np.asarray(self.correct / self.total)

    @property
    def error(self) -> Floats:
        """The error rate of each client, as a fraction of its test samples."""
        return np.asarray((self.total - self.correct) / self.total)

    @property
    def mean_accuracy(self) -> float:
        """The mean accuracy over clients, each with equal weight, as in the Delta-FL paper."""
        return float(self.accuracy.mean())

    @property
    def pooled_accuracy(self) -> float:
        """The accuracy over all clients' samples, each with equal weight, as in the RFA and FedBC papers."""
        return float(self.correct.sum() / self.total.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.mean())

    @property
    def pooled_loss(self) -> float:
        return float((self.loss * self.total).sum() / self.total.sum())

    def spread(self) -> AccuracySpread:
        """Return statistics of the clients' accuracies in percent, as papers print them."""
        accuracy = self.accuracy
        points = 100 * accuracy
        return AccuracySpread(
            clients=len(self),
            mean=float(points.mean()),
            pooled=100 * self.pooled_accuracy,
            best=float(points.max()),
            median=percentile(points, 50),
            worst=float(points.min()),
            best_tenth=best_share(points),
            worst_tenth=worst_share(points),
            error_90=percentile(100 * self.error, 90),
            variance=variance_points(accuracy),
        )


@dataclass(frozen=True)
class AccuracySpread:
    """Statistics of the accuracies of `clients` clients, in percent. All but `pooled` are over clients.

    `mean`          mean, each client with equal weight.
    `pooled`        mean over samples with equal weight.
    `best_tenth`    mean over the best tenth of clients; `worst_tenth`: over the worst tenth (as in q-FFL).
    `error_90`      90th percentile of the clients' error rates (as in Delta-FL).
    `variance`      variance over clients, in squared percentage points (as in q-FFL).
    """

    clients: int
    mean: float
    pooled: float
    best: float
    median: float
    worst: float
    best_tenth: float
    worst_tenth: float
    error_90: float
    variance: float


def percentile(values: ArrayLike, percent: float) -> float:
    """Return the percentile of `values` at `percent`, interpolated linearly: of n sorted values, the one at
    position (n - 1) * percent / 100, counted from 0. So 0 gives the smallest and 100 the largest value, and
    the 90th percentile of errors is one minus the 10th of accuracies."""
    numbers = series("values", values)
    if not 0 <= percent <= 100:
        raise FLError(f"percent must be from 0 to 100, not {percent}")
    return float(np.percentile(numbers, percent, method="linear"))


def worst_share(accuracies: ArrayLike, share: float = 0.1) -> float:
    """Return the mean over the lowest `share` of the accuracies: floor(share * n) of n, at least one."""
    numbers = np.sort(series("accuracies", accuracies))
    return float(numbers[: _tail(len(numbers), share)].mean())


def best_share(accuracies: ArrayLike, share: float = 0.1) -> float:
    """Return the mean over the highest `share` of the accuracies: floor(share * n) of n, at least one."""
    numbers = np.sort(series("accuracies", accuracies))
    return float(numbers[-_tail(len(numbers), share) :].mean())


def variance(values: ArrayLike) -> float:
    """Return the population variance of `values`."""
    return float(series("values", values).var())


def variance_points(accuracies: ArrayLike) -> float:
    """Return the variance of `accuracies`, which are fractions, in squared percentage points."""
    return 1e4 * variance(accuracies)


def _or_infinite(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def _tail(clients: int, share: float) -> int:
    if not 0 < share <= 1:
        raise FLError(f"share must be above 0 and at most 1, not {share}")
    return max(1, int(share * clients + _ROUNDING))
