"""How a model does over clients: on average, and for those it serves worst.

Accuracies and errors are fractions of one. What papers print is in `AccuracySpread`, in points of per cent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, same_length, series
from fl.errors import FLError
from fl.samples import Array

# A tenth of 30 clients is 3, though 0.1 * 30 may come out below.
_ROUNDING = 1e-9


class Scored(Protocol):
    """What a learner says of a model on its held-out data."""

    @property
    def correct(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def loss(self) -> float: ...


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Of `total` held-out samples, how many were `correct`, and their mean `loss`: one of each to a client.

    A model that diverged may have the loss inf. NaN is refused: whoever scores has to say what it means.
    """

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
                f"{len(empty)} clients have no samples to be judged by, the first at index {empty[0]}: "
                "leave them out"
            )
        if (wrong := np.flatnonzero((correct < 0) | (correct > total))).size:
            first = wrong[0]
            raise FLError(
                f"at index {first}, {correct[first]:g} of {total[first]:g} samples are said to be correct: "
                "give a count from 0 to the total"
            )
        for name, values in (("correct", correct), ("total", total), ("loss", loss)):
            object.__setattr__(self, name, values)

    @staticmethod
    def of(scores: Iterable[Scored]) -> ClientScores:
        """Of what every client's learner said, in the order given.

        A learner's loss of NaN is that of a model that diverged, so it counts as infinite.
        """
        rows = [(each.correct, each.total, _or_infinite(each.loss)) for each in scores]
        if not rows:
            raise FLError("there are no scores: let at least one client judge the model")
        correct, total, loss = np.array(rows, dtype=np.float64).T
        return ClientScores(correct, total, loss)

    def __len__(self) -> int:
        return len(self.total)

    def only(self, chosen: ArrayLike) -> ClientScores:
        """Those of the clients for which `chosen` is true, such as the benign ones."""
        mask = np.asarray(chosen)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise FLError("clients are chosen by a list of true and false, one for each")
        same_length("choices", mask, "clients", self)
        if not mask.any():
            raise FLError("no client is chosen: choose at least one")
        return ClientScores(self.correct[mask], self.total[mask], self.loss[mask])

    @property
    def accuracy(self) -> Floats:
        """Of each client."""
        return np.asarray(self.correct / self.total)

    @property
    def error(self) -> Floats:
        """Of each client, the share of its samples that are wrong."""
        return np.asarray((self.total - self.correct) / self.total)

    @property
    def mean_accuracy(self) -> float:
        """Every client counts the same, as in Delta-FL."""
        return float(self.accuracy.mean())

    @property
    def pooled_accuracy(self) -> float:
        """Every sample counts the same, as in RFA, and as FedBC's global accuracy."""
        return float(self.correct.sum() / self.total.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.mean())

    @property
    def pooled_loss(self) -> float:
        return float((self.loss * self.total).sum() / self.total.sum())

    def spread(self) -> AccuracySpread:
        """The accuracies as papers print them."""
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
    """Accuracies over clients, in points of per cent.

    `mean`          where every client counts the same; `pooled`: where every sample does.
    `best_tenth`    the mean over the best tenth of clients, and `worst_tenth` over the worst (q-FFL).
    `error_90`      the 90th percentile of the clients' errors (Delta-FL).
    `variance`      over clients, in squared points (q-FFL).
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
    """The value that `percent` of the values do not exceed.

    Between two values it is interpolated linearly: of n sorted values, it is the one at position
    (n - 1) * percent / 100, counted from 0. So 0 gives the least and 100 the greatest value, and the
    90th percentile of errors is one minus the 10th of accuracies.
    """
    numbers = series("values", values)
    if not 0 <= percent <= 100:
        raise FLError(f"a percentile of {percent}: give one from 0 to 100")
    return float(np.percentile(numbers, percent, method="linear"))


def worst_share(accuracies: ArrayLike, share: float = 0.1) -> float:
    """The mean over the lowest `share` of the accuracies: of n, over floor(share * n), and at least one."""
    numbers = np.sort(series("accuracies", accuracies))
    return float(numbers[: _tail(len(numbers), share)].mean())


def best_share(accuracies: ArrayLike, share: float = 0.1) -> float:
    """The mean over the highest `share` of the accuracies, counted as for the worst."""
    numbers = np.sort(series("accuracies", accuracies))
    return float(numbers[-_tail(len(numbers), share) :].mean())


def variance(values: ArrayLike) -> float:
    """Over clients, all of whom are there: the sum of squares is divided by their number."""
    return float(series("values", values).var())


def variance_points(accuracies: ArrayLike) -> float:
    """The variance of fractions in squared points of per cent: 10,000 times that of the fractions."""
    return 1e4 * variance(accuracies)


def _or_infinite(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def _tail(clients: int, share: float) -> int:
    if not 0 < share <= 1:
        raise FLError(f"a share of {share} of the clients: give one above 0 and at most 1")
    return max(1, int(share * clients + _ROUNDING))
