"""Helper functions of partitions: drawing samples by class, computing proportional sizes, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator

from fl.checks import counted
from fl.errors import DataError
from fl.samples import Array, array

_NAMED: Final = 10


class Pools:
    """Supplies of sample indices, one per class, in random order; every index is handed out only once.
    `classes` has all labels in ascending order. Methods take the position of a class in it as `index`."""

    def __init__(self, labels: Array, rng: Generator) -> None:
        labels = class_labels(labels)
        self.classes, sizes = np.unique(labels, return_counts=True)
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        self._pools: list[Array] = np.split(order, np.cumsum(sizes)[:-1])

    @property
    def left(self) -> Array:
        """The number of samples of each class that are not yet taken, in the order of `classes`."""
        return np.array([len(pool) for pool in self._pools])

    def take(self, index: int, count: int) -> Array:
        """Return the indices of the next `count` samples of a class, or of all that remain."""
        taken, self._pools[index] = np.split(self._pools[index], [count])
        return taken

    def cut(self, index: int, shards: int) -> list[Array]:
        """Return the indices of all remaining samples of a class, in arrays of equal size (up to one)."""
        return np.array_split(self.take(index, len(self._pools[index])), shards)


def class_labels(labels: Array) -> Array:
    """Return `labels` as an array. Raise `DataError` unless they are class labels, one integer per sample."""
    labels = array("labels", labels)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"labels of type {labels.dtype} and shape {labels.shape} are not classes, one whole number per "
            "sample: convert them, or use a partition that does not look at them (iid, power_law, by_owner)"
        )
    return labels


def few_enough(classes: int, there: int) -> int:
    """Return `classes` (per client). Raise `DataError` if it exceeds `there`, the number of all classes."""
    if counted("classes", classes) > there:
        raise DataError(f"{classes} classes for each client, but there are {there}: ask for at most {there}")
    return classes


def enough(samples: int, needed: int, what: str) -> None:
    """Raise `DataError` if `needed` is more than `samples`. `what` says in the error what needs so many."""
    if needed > samples:
        raise DataError(
            f"{what} takes {needed} samples, but there are {samples}: "
            "ask for fewer clients, or for fewer samples each"
        )


def proportions(weights: Array) -> Array:
    """Return `weights` divided by their sum. Raise `DataError` if the sum is zero or infinite."""
    with np.errstate(over="ignore"):
        total = weights.sum()
    if len(weights) and not 0 < total < np.inf:
        raise DataError("the weights of the clients are infinite, or all zero: choose a smaller sigma")
    parts: Array = weights / total
    return parts


def apportion(weights: Array, total: int) -> Array:
    """Return integers in proportion to `weights` that sum to `total`: rounded down, then one more for those
    with the largest remainders."""
    exact = proportions(weights) * total
    shares: Array = np.floor(exact).astype(np.intp)
    # The sum of floors falls short by less than one per share.
    behind = np.argsort(shares - exact, kind="stable")[: total - shares.sum()]
    shares[behind] += 1
    return shares


def cut(order: Array, sizes: Array) -> tuple[Array, ...]:
    """Return consecutive pieces of `order` with the given sizes. The rest of `order` is left out."""
    return tuple(np.split(order, np.cumsum(sizes))[:-1])


def filled(parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return `parts`, arrays of indices by client, as a tuple. Raise `DataError` if one is empty."""
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise DataError(
            f"{named(empty)} of {len(parts)} would have no samples: ask for fewer clients, "
            "for a larger minimum, or leave out the small ones (at_least)"
        )
    return tuple(parts)


def named(clients: Sequence[int]) -> str:
    """Return the ids of clients as text, only the first few if there are many."""
    shown = ", ".join(str(client) for client in clients[:_NAMED])
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"client{'s' * (len(clients) > 1)} {shown}{more}"
