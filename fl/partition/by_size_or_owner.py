"""Partitions by size or owner. Each public function returns one array of sample indices per client."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from fl.checks import counted, positive
from fl.errors import DataError
from fl.partition.part_sizes import apportion, cut, enough, filled
from fl.samples import Array, array


def iid(labels: Array, clients: int, rng: Generator) -> tuple[Array, ...]:
    """Return each client's sample indices: all samples, divided at random into parts whose sizes differ by at
    most one. Raise `DataError` if there are fewer samples than clients."""
    enough(len(labels), counted("clients", clients), "one for each client")
    return tuple(np.array_split(rng.permutation(len(labels)), clients))


def power_law(
    labels: Array, clients: int, rng: Generator, *, sigma: float = 2.0, minimum: int = 1
) -> tuple[Array, ...]:
    """Return each client's sample indices: all samples, divided at random into parts of very different sizes.
    Every client gets `minimum` samples; the rest is divided in proportion to lognormal draws (the logarithm
    has mean 0 and standard deviation `sigma`), which "Federated optimization in heterogeneous networks"
    (FedProx) calls a power law. Raise `DataError` if there are too few samples."""
    needed = counted("clients", clients) * counted("minimum", minimum)
    enough(len(labels), needed, "the minimum for all clients")
    weights = rng.lognormal(0.0, positive("sigma", sigma), clients)
    sizes = minimum + apportion(weights, len(labels) - needed)
    return filled(cut(rng.permutation(len(labels)), sizes))


def by_owner(
    labels: Array, clients: int | None, rng: Generator, *, owner: Array, minimum: int = 1
) -> tuple[Array, ...]:
    """Return each client's sample indices. A client is an owner (writer, user) of at least `minimum` samples.
    `clients` such owners are drawn at random and sorted, or all taken if it is None; too few raise
    `DataError`. `owner` has the id or name of each sample's owner. "Robust aggregation for federated
    learning" takes 1000 writers of over 100 images, the superquantile papers those of 100 or more."""
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
    """Return the clients' parts with `samples` or more samples, renumbered. Raise `DataError` if none has."""
    large = tuple(part for part in parts if len(part) >= samples)
    if not large:
        raise DataError(f"no client has {samples} samples: ask for fewer")
    return large
