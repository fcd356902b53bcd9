"""What the ways to partition share: samples by class, shares of a total, and the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.random import Generator

from fl.checks import counted
from fl.errors import DataError
from fl.samples import Array, array

_NAMED: Final = 10


class Pools:
    """Samples by class, in random order; each is handed out once.

    Classes are known by their place in `classes`, which holds the labels in ascending order.
    """

    def __init__(self, labels: Array, rng: Generator) -> None:
        labels = whole(labels)
        self.classes, sizes = np.unique(labels, return_counts=True)
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        self._pools: list[Array] = np.split(order, np.cumsum(sizes)[:-1])

    @property
    def left(self) -> Array:
        """How many samples of each class nobody has yet."""
        return np.array([len(pool) for pool in self._pools])

    def take(self, place: int, count: int) -> Array:
        """The next `count` samples of a class, or as many as are left."""
        taken, self._pools[place] = np.split(self._pools[place], [count])
        return taken

    def cut(self, place: int, shards: int) -> list[Array]:
        """All that is left of a class, in shards whose sizes differ by at most one."""
        pool = self.take(place, len(self._pools[place]))
        return np.array_split(pool, shards)


def whole(labels: Array) -> Array:
    """`labels`, if they are those of a classification."""
    labels = array("labels", labels)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"labels of type {labels.dtype} and shape {labels.shape} are no classes, one whole number to a "
            "sample: convert them, or use a partition that does not look at them (iid, power_law, by_owner)"
        )
    return labels


def few_enough(classes: int, there: int) -> int:
    """How many `classes` a client is to have, if `there` are as many."""
    if counted("classes", classes) > there:
        raise DataError(f"{classes} classes for each client, but there are {there}: ask for at most {there}")
    return classes


def enough(samples: int, needed: int, what: str) -> None:
    """Raises `DataError` if `what` needs more samples than there are."""
    if needed > samples:
        raise DataError(
            f"{what} takes {needed} samples, but there are {samples}: "
            "ask for fewer clients, or for fewer samples each"
        )


def proportions(weights: Array) -> Array:
    """`weights` that sum to one. There may be none."""
    with np.errstate(over="ignore"):
        total = weights.sum()
    if len(weights) and not 0 < total < np.inf:
        raise DataError(
            "the weights by which samples are shared out are infinite, or all zero: choose a smaller sigma"
        )
    parts: Array = weights / total
    return parts


def apportion(weights: Array, total: int) -> Array:
    """`total` in whole shares by `weights`: rounded down, then one more for the largest remainders."""
    exact = proportions(weights) * total
    shares: Array = np.floor(exact).astype(np.intp)
    # A sum of floors can only fall short, and by less than one for each share.
    behind = np.argsort(shares - exact, kind="stable")[: total - shares.sum()]
    shares[behind] += 1
    return shares


def cut(order: Array, sizes: Array) -> tuple[Array, ...]:
    """Consecutive pieces of `order`; what is left after the last of them belongs to nobody."""
    return tuple(np.split(order, np.cumsum(sizes))[:-1])


def filled(parts: Sequence[Array]) -> tuple[Array, ...]:
    """`parts`, if every client has samples."""
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise DataError(
            f"{named(empty)} of {len(parts)} would have no samples: ask for fewer clients, "
            "for a larger minimum, or leave out the small ones (at_least)"
        )
    return tuple(parts)


def named(clients: Sequence[int]) -> str:
    """Clients by id, the first few of them if they are many."""
    shown = ", ".join(str(client) for client in clients[:_NAMED])
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"client{'s' * (len(clients) > 1)} {shown}{more}"


Range: TypeAlias = tuple[int, float, int]


@dataclass(frozen=True)
class PartitionSummary:
    """Smallest, median and largest of what clients have; `classes` is None for a regression."""

    clients: int
    used: int
    there: int
    samples: Range
    classes: Range | None

    def __str__(self) -> str:
        lines = [
            f"{self.clients} clients, {self.used} of {self.there} samples",
            f"{'for each client':<16}{'min':>8}{'median':>10}{'max':>8}",
            _line("samples", self.samples),
        ]
        if self.classes is not None:
            lines.append(_line("classes", self.classes))
        return "\n".join(lines)


def describe(parts: Sequence[Array], labels: Array) -> PartitionSummary:
    """How many samples and classes the clients of a partition have. Its `str` is a table."""
    if not parts:
        raise DataError("there are no parts to describe")
    sizes = [len(part) for part in parts]
    classes = None
    if labels.dtype.kind in "iu":
        classes = _range([len(np.unique(labels[part])) for part in parts])
    return PartitionSummary(len(parts), sum(sizes), len(labels), _range(sizes), classes)


def _range(values: list[int]) -> Range:
    return min(values), float(np.median(values)), max(values)


def _line(what: str, values: Range) -> str:
    least, median, most = values
    return f"{what:<16}{least:>8}{median:>10g}{most:>8}"
