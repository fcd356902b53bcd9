"""The partitions of "Federated optimization in heterogeneous networks" (FedProx), as released."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.random import Generator

from fl.checks import counted, finite, positive
from fl.errors import DataError
from fl.partition.pools import Pools, enough, few_enough, filled, proportions
from fl.samples import Array

_MOST: Final = 1 << 40  # samples of a client


def fedprox_mnist(
    labels: Array, clients: int, rng: Generator, *, classes: int = 2, first: int = 5, sigma: float = 2.0
) -> tuple[Array, ...]:
    """Two digits for every client, in very different numbers: 1000 clients in the paper.

    Client k has classes k, k+1, ... (modulo their number), `classes` of them. It has `first` samples of
    each; what is left of a class goes to its clients in proportion to draws of a lognormal
    distribution with parameters 0 and `sigma`. Numbers are rounded down, so some samples (about one
    in a hundred of MNIST) are left over. The paper says one digit: that is `classes=1`.
    """
    pools = Pools(labels, rng)
    number = len(pools.classes)
    few_enough(classes, number)
    enough(len(labels), counted("clients", clients) * counted("first", first), "the first of all clients")
    held = _rotated(clients, classes, number)
    sizes = np.full(held.shape, first)
    sigma = positive("sigma", sigma)
    for place, there in enumerate(pools.left):
        mine = held == place
        rest = there - sizes[mine].sum()
        if rest < 0:
            raise _short(pools.classes[place], there, sizes[mine].sum())
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
    """A few letters for every client, equally many of each: 200 clients and the letters a to j in the paper.

    Client k has classes k, k+1, ... (modulo their number), `classes` of them: 5 in the paper, 3 in the
    released script. Its number of samples is a draw of a lognormal distribution with parameters `mean`
    and `sigma`, plus `minimum`, but at least two of each class. The released script lets
    clients have samples in common; here nobody has another's.
    """
    pools = Pools(labels, rng)
    number = len(pools.classes)
    few_enough(classes, number)
    needed = counted("clients", clients) * max(1, counted("minimum", minimum, 0))
    enough(len(labels), needed, "the minimum for all clients")
    held = _rotated(clients, classes, number)
    drawn = rng.lognormal(finite("mean", mean), positive("sigma", sigma), clients)
    # Cut to what cannot be met either way, since a draw may be more than a whole number can be.
    drawn = np.minimum(drawn, _MOST) + minimum
    each = np.maximum(2, drawn // classes).astype(int)
    sizes = np.repeat(each[:, None], classes, axis=1)
    for place, there in enumerate(pools.left):
        if (needed := sizes[held == place].sum()) > there:
            raise _short(pools.classes[place], there, needed)
    return _dealt(pools, held, sizes)


def _rotated(clients: int, classes: int, number: int) -> Array:
    """The places of every client's classes, one client to a row."""
    return (np.arange(clients)[:, None] + np.arange(classes)) % number


def _dealt(pools: Pools, held: Array, sizes: Array) -> tuple[Array, ...]:
    return filled(
        [
            np.concatenate([pools.take(place, size) for place, size in zip(places, row, strict=True)])
            for places, row in zip(held, sizes, strict=True)
        ]
    )


def _short(label: int, there: int, needed: int) -> DataError:
    return DataError(
        f"class {label} has {there} samples, but its clients are to have {needed}: "
        "ask for fewer clients, or for fewer samples each"
    )
