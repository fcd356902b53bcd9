"""Drawing samples by class for a partition: a pool of samples for each class, and checks of classes."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from fl.checks import counted
from fl.errors import DataError
from fl.samples import Array, array


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
        """Remove and return the next `count` indices of class `classes[index]`; all, if fewer remain."""
        taken, self._pools[index] = np.split(self._pools[index], [count])
        return taken

    def cut(self, index: int, shards: int) -> list[Array]:
        """Remove and return all remaining sample indices of the class `classes[index]`, as `shards` arrays
        whose lengths differ by at most one."""
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
    """Return `classes`. Raise `DataError` unless it is from 1 to `there`, the number of all classes."""
    if counted("classes", classes) > there:
        raise DataError(f"{classes} classes for each client, but there are {there}: ask for at most {there}")
    return classes
