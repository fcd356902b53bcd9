"""Partitions by size or owner: iid, power law, one client per owner, and FedBC."""

from __future__ import annotations

from math import ceil, floor, inf

import numpy as np
from numpy.random import Generator

from fl.checks import counted, finite, positive
from fl.errors import DataError
from fl.partition.building_blocks import Pools, apportion, cut, enough, few_enough, filled
from fl.samples import Array, array


def iid(labels: Array, clients: int, rng: Generator) -> tuple[Array, ...]:
    """Divide all samples at random into parts whose sizes differ by at most one."""
    enough(len(labels), counted("clients", clients), "one for each client")
    return tuple(np.array_split(rng.permutation(len(labels)), clients))


def power_law(
    labels: Array, clients: int, rng: Generator, *, sigma: float = 2.0, minimum: int = 1
) -> tuple[Array, ...]:
    """Divide all samples at random into parts of very different sizes.

    Every client has `minimum`; the rest is divided in proportion to draws of a lognormal distribution with
    parameters 0 and `sigma`, which "Federated optimization in heterogeneous networks" (FedProx) calls a
    power law. A mean other than 0 would not change the proportions.
    """
    needed = counted("clients", clients) * counted("minimum", minimum)
    enough(len(labels), needed, "the minimum for all clients")
    weights = rng.lognormal(0.0, positive("sigma", sigma), clients)
    sizes = minimum + apportion(weights, len(labels) - needed)
    return filled(cut(rng.permutation(len(labels)), sizes))


def by_owner(
    labels: Array, clients: int | None, rng: Generator, *, owner: Array, minimum: int = 1
) -> tuple[Array, ...]:
    """Make one client per owner (writer, role, user) with at least `minimum` samples, in the order of owners.

    `clients` of these owners are drawn; None takes all. `owner[part[0]]` is the owner of a part. "Robust
    aggregation for federated learning" (RFA) takes 1000 writers of more than 100 images each, the
    superquantile papers take those of at least 100.
    """
    owner = array("owners", owner)
    if owner.shape != (len(labels),):
        raise DataError(f"{owner.shape} owners for {len(labels)} samples: give one owner for every sample")
    counted("minimum", minimum)
    _, index, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    large = np.flatnonzero(sizes >= minimum)
    if not len(large):
        raise DataError(
            f"no owner has {minimum} samples, the largest has {sizes.max(initial=0)}: lower the minimum"
        )
    if clients is not None:
        large = _drawn(large, counted("clients", clients), minimum, rng)
    groups = np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
    return tuple(groups[index] for index in large)


def _drawn(owners: Array, clients: int, minimum: int, rng: Generator) -> Array:
    if clients > len(owners):
        raise DataError(
            f"{clients} clients, but {len(owners)} owners have at least {minimum} samples: "
            f"ask for at most {len(owners)} clients, or lower the minimum"
        )
    return np.sort(rng.choice(owners, clients, replace=False))


def at_least(parts: tuple[Array, ...], samples: int) -> tuple[Array, ...]:
    """Return the parts with at least `samples` samples. Clients are renumbered."""
    large = tuple(part for part in parts if len(part) >= samples)
    if not large:
        raise DataError(f"no client has {samples} samples: ask for fewer")
    return large


def fedbc(
    labels: Array, clients: int, rng: Generator, *, exponent: float = 1.4, classes: int = 3
) -> tuple[Array, ...]:
    """Divide samples in sizes proportional to `exponent` ** k, k = 1, 2, ..., with few classes each.

    The recipe released with "FedBC: calibrating global and local models via federated learning beyond
    consensus", where `exponent` is called that of a power law: 1.1 to 1.5, with 20 clients (30 for MNIST
    with 3 classes from 1.2 on) and training and test sets pooled. A client has about `classes` classes.

    1. Clients, the smallest first, go through the classes in random order and take an equal share of their
       size from each until they are full. If a class is used up they continue with further ones, so large
       clients have more classes.
    2. The rest of a class goes to the clients from the largest down, each taking the fraction 1 / `exponent`
       of the remaining samples.

    All samples are used. A part is in the order in which it was filled, class by class: the released code
    tests on its last fifth without shuffling (`federate` with `shuffle=False`), thus on few classes.
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
