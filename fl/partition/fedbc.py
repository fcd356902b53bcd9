"""The partition of the FedBC paper: clients of very different sizes, with few classes each."""

from __future__ import annotations

from math import ceil, floor, inf

import numpy as np
from numpy.random import Generator

from fl.checks import counted, finite
from fl.errors import DataError
from fl.partition.building_blocks import Pools, enough, few_enough, filled
from fl.samples import Array


def fedbc(
    labels: Array, clients: int, rng: Generator, *, exponent: float = 1.4, classes: int = 3
) -> tuple[Array, ...]:
    """Return each client's sample indices; the k-th client has about c * `exponent` ** k, in few classes.

    This is the recipe released with "FedBC: calibrating global and local models via federated learning beyond
    consensus", which uses exponents from 1.1 to 1.5 and 20 clients (30 for MNIST with 3 classes and exponents
    from 1.2 on). Training and test sets are pooled first. A client has about `classes` classes.

    1. Clients, the smallest first, go through the classes in random order, and take 1 / `classes` of their
       size from each until they are full. If a class is used up they continue with further ones, so large
       clients have more classes.
    2. The rest of a class goes to the clients from the largest down, each taking the fraction 1 / `exponent`
       of the remaining samples.

    All samples are used. A client's samples stay in the order in which they were taken, class by class. The
    released code tests on the last fifth of them (`federate` with `shuffle=False`), so on few classes.
    """
    exponent = finite("exponent", exponent)
    if exponent < 1:
        raise DataError(f"exponent must be at least 1, not {exponent!r}", parameter="exponent")
    enough(len(labels), counted("clients", clients), "one for each client")
    pools = Pools(labels, rng)
    few_enough(classes, len(pools.classes))
    parts = [_fill(pools, size, classes, rng) for size in _sizes(len(labels), clients, exponent)]
    largest = sorted(range(clients), key=lambda client: -sum(map(len, parts[client])))
    for index in rng.permutation(len(pools.classes)):
        for client in largest:
            parts[client].append(pools.take(index, ceil(pools.left[index] / exponent)))
        # With a very large exponent, samples remain even after the smallest client.
        parts[largest[0]].append(pools.take(index, pools.left[index]))
    return filled([np.concatenate(pieces) for pieces in parts])


def _sizes(samples: int, clients: int, exponent: float) -> list[int]:
    try:
        powers = [exponent**k for k in range(1, clients + 1)]
    except OverflowError:
        powers = [inf]
    unit = floor(samples / sum(powers))
    if not unit:
        raise DataError(
            f"{samples} samples are too few for {clients} clients that grow by {exponent}, of which the "
            f"smallest would have none (it takes {sum(powers):.6g}): "
            "ask for fewer clients or a smaller exponent"
        )
    sizes = [floor(power * unit) for power in powers]
    rest = samples - sum(sizes)
    for k in reversed(range(clients)):
        more = ceil(rest / exponent)
        sizes[k] += more
        rest -= more
    return sizes


def _fill(pools: Pools, size: int, classes: int, rng: Generator) -> list[Array]:
    share = ceil(size / classes)
    pieces = []
    for index in rng.permutation(len(pools.classes)):
        piece = pools.take(index, min(share, size))
        size -= len(piece)
        pieces.append(piece)
    return pieces
