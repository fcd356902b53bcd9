"""The partition of samples in the FedBC paper: clients of very different sizes, with few classes each."""

from __future__ import annotations

from math import ceil, floor, inf

import numpy as np
from numpy.random import Generator

from fl.checks import counted, finite
from fl.errors import DataError
from fl.partition.class_pools import Pools, few_enough
from fl.partition.part_sizes import enough, filled
from fl.samples import Array


def fedbc(
    labels: Array, clients: int, rng: Generator, *, exponent: float = 1.4, classes: int = 3
) -> tuple[Array, ...]:
    """Return each client's sample indices. Sizes grow by the factor `exponent` from client to client.

    This is the recipe released with "FedBC: calibrating global and local models via federated learning beyond
    consensus", which pools training and test sets first. It uses exponents from 1.1 to 1.5 and 20 clients (30
    for MNIST with 3 classes and exponents of at least 1.2). A client has about `classes` classes.

    1. Clients, the smallest first, go through the classes in random order, and take 1 / `classes` of their
       size from each until they are full. If a class is used up they continue with further ones, so large
       clients have more classes.
    2. What is left of a class goes to the clients from the largest down: each takes the fraction
       1 / `exponent` of what the clients before it have left.

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
    """Return clients' sizes, proportional to powers of `exponent`. The last get most of the rest."""
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
