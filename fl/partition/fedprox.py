"""Partitions of samples from the code of "Federated optimization in heterogeneous networks" (FedProx)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.random import Generator

from fl.checks import counted, finite, positive
from fl.errors import DataError
from fl.partition.class_pools import Pools, few_enough
from fl.partition.part_sizes import enough, filled, proportions
from fl.samples import Array

_MOST: Final = 1 << 40  # samples of a client


def fedprox_mnist(
    labels: Array, clients: int, rng: Generator, *, classes: int = 2, first: int = 5, sigma: float = 2.0
) -> tuple[Array, ...]:
    """Return each client's sample indices: `classes` classes each, and very different numbers of samples.

    This is FedProx's partition of MNIST, for 1000 clients. Client k has the classes k, ...,
    k + `classes` - 1, modulo the number of classes. It gets `first` samples of each. What remains of a class
    is divided among its clients in proportion to lognormal draws (their logarithms have mean 0 and standard
    deviation `sigma`), rounded down; so about 1 % of MNIST is left over. The released script gives a client
    two digits; the paper says one (`classes=1`). Raises `DataError` if a class is too small.
    """
    pools = Pools(labels, rng)
    number = len(pools.classes)
    few_enough(classes, number)
    enough(len(labels), counted("clients", clients) * counted("first", first), "the first of all clients")
    held = _rotated(clients, classes, number)
    sizes = np.full(held.shape, first)
    sigma = positive("sigma", sigma)
    for index, there in enumerate(pools.left):
        mine = held == index
        rest = there - sizes[mine].sum()
        if rest < 0:
            raise _short(pools.classes[index], there, sizes[mine].sum())
        weights = rng.lognormal(0.0, sigma, np.count_nonzero(mine))
        sizes[mine] += (proportions(weights) * rest).astype(int)
    return _dealt(pools, held, sizes)


def fedprox_nist(
    labels: Array,
    clients: int,
    rng: Generator,
    *,
    classes: int = 5,
    mean: float = 4.0,
    sigma: float = 1.0,
    minimum: int = 5,
) -> tuple[Array, ...]:
    """Return each client's sample indices: `classes` classes each, with equally many samples of each class.

    This is FedProx's partition of letters from NIST. Client k has the classes k, ..., k + `classes` - 1,
    modulo the number of classes. Its number of samples is `minimum` plus a lognormal draw (the logarithm has
    mean `mean` and standard deviation `sigma`), divided evenly over its classes and rounded down, but at
    least two per class. The paper has 200 clients, letters a to j, and 5 classes per client. The released
    script has 3, and its clients may share samples, unlike here. Raises `DataError` if a class is too small.
    """
    pools = Pools(labels, rng)
    number = len(pools.classes)
    few_enough(classes, number)
    needed = counted("clients", clients) * max(1, counted("minimum", minimum, 0))
    enough(len(labels), needed, "the minimum for all clients")
    held = _rotated(clients, classes, number)
    drawn = rng.lognormal(finite("mean", mean), positive("sigma", sigma), clients)
    # Limited, since a draw may exceed the range of integers; such a size fails the check below anyway.
    drawn = np.minimum(drawn, _MOST) + minimum
    each = np.maximum(2, drawn // classes).astype(int)
    sizes = np.repeat(each[:, None], classes, axis=1)
    for index, there in enumerate(pools.left):
        if (needed := sizes[held == index].sum()) > there:
            raise _short(pools.classes[index], there, needed)
    return _dealt(pools, held, sizes)


def _rotated(clients: int, classes: int, number: int) -> Array:
    """Return a matrix: row k has client k's class indices k, ..., k + `classes` - 1, modulo `number`."""
    return (np.arange(clients)[:, None] + np.arange(classes)) % number


def _dealt(pools: Pools, held: Array, sizes: Array) -> tuple[Array, ...]:
    return filled(
        [
            np.concatenate([pools.take(index, size) for index, size in zip(indices, row, strict=True)])
            for indices, row in zip(held, sizes, strict=True)
        ]
    )


def _short(label: int, there: int, needed: int) -> DataError:
    return DataError(
        f"class {label} has {there} samples, but its clients need {needed}: "
        "ask for fewer clients, or for fewer samples each"
    )
