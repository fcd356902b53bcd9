"""Partitions by class. Each public function returns one array of sample indices per client."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np
from numpy.random import Generator

from fl.checks import counted, positive
from fl.errors import DataError
from fl.partition.class_pools import Pools, class_labels, few_enough
from fl.partition.part_sizes import enough, filled
from fl.samples import Array


def shards(labels: Array, clients: int, rng: Generator, *, per_client: int = 2) -> tuple[Array, ...]:
    """Return each client's sample indices: `per_client` random shards.

    Shards are made by sorting all samples by label and cutting them into clients * `per_client` equal pieces,
    as in "Communication-efficient learning of deep networks from decentralized data" (FedAvg). All samples
    are used. If the size of a class is not a multiple of the size of a shard, some shards have two classes,
    and a client may have more than `per_client` classes (`lp_proj` avoids this).
    """
    total = counted("clients", clients) * counted("per_client", per_client)
    enough(len(labels), total, "one for each shard")
    order = rng.permutation(len(labels))
    order = order[np.argsort(class_labels(labels)[order], kind="stable")]
    pieces = np.array_split(order, total)
    hands = rng.permutation(total).reshape(clients, per_client)
    return tuple(np.concatenate([pieces[shard] for shard in hand]) for hand in hands)


def classes_per_client(labels: Array, clients: int, rng: Generator, *, classes: int = 2) -> tuple[Array, ...]:
    """Return each client's sample indices: `classes` classes each, every class divided evenly among its
    clients. Each client in turn takes the classes that the fewest clients have taken so far; ties are broken
    at random. If there are more classes than clients times `classes`, those that no client takes are left
    out. Raise `DataError` if a client gets no samples."""
    pools = Pools(labels, rng)
    holders: list[list[int]] = [[] for _ in pools.classes]
    for client in range(counted("clients", clients)):
        load = np.array([len(holding) for holding in holders])
        for index in _least(load, few_enough(classes, len(load)), rng):
            holders[index].append(client)
    parts: list[list[Array]] = [[] for _ in range(clients)]
    for index, holding in enumerate(holders):
        # Shuffled, so that a class too small for its clients does not always omit the same ones.
        holding = rng.permutation(holding).tolist()
        for client, piece in zip(holding, pools.cut(index, max(1, len(holding))), strict=False):
            parts[client].append(piece)
    return filled([np.concatenate(pieces) for pieces in parts])


def lp_proj(
    labels: Array, clients: int, rng: Generator, *, classes: int = 2, equal: bool = False
) -> tuple[Array, ...]:
    """Return each client's sample indices: one shard of each of `classes` classes.

    This is the recipe released with the lp-proj paper. Every class is cut into equal shards. Their number is
    clients * `classes` / (number of classes), rounded up, so some may be left over. A class that is too small
    raises `DataError`. Each client in turn takes one shard of each of the classes with the most shards left;
    ties are broken at random. With `equal`, all classes are first reduced to the size of the smallest. In the
    paper, 100 clients have 2 classes each on MNIST and Fashion-MNIST, 200 have 2 on CIFAR-10, and 248 have 10
    on EMNIST; a fifth of a client's training samples are for validation.
    """
    pools = Pools(labels, rng)
    number = len(pools.classes)
    each = ceil(counted("clients", clients) * few_enough(classes, number) / number)
    sizes = pools.left
    if sizes.min() < each:
        raise DataError(
            f"class {pools.classes[sizes.argmin()]} has {sizes.min()} samples for {each} shards: "
            "ask for fewer clients or fewer classes each, or leave that class out"
        )
    kept = np.full_like(sizes, sizes.min()) if equal else sizes
    stacks = [np.array_split(pools.take(index, kept[index]), each) for index in range(number)]
    parts = []
    for _ in range(clients):
        load = np.array([-len(stack) for stack in stacks])
        parts.append(np.concatenate([stacks[index].pop() for index in _least(load, classes, rng)]))
    return tuple(parts)


def _least(load: Array, count: int, rng: Generator) -> Array:
    """Return the positions of the `count` smallest values of `load`. Ties are broken at random."""
    return np.lexsort((rng.random(len(load)), load))[:count]


_NOTHING: Final = 1e-12  # Proportions with a smaller sum cannot be normalised.


def dirichlet(
    labels: Array,
    clients: int,
    rng: Generator,
    *,
    alpha: float | Sequence[float] | Array,
    samples: int | None = None,
) -> tuple[Array, ...]:
    """Return each client's sample indices; label proportions follow a symmetric Dirichlet distribution.

    `alpha`    parameter of the distribution, a number or a list with one per client; if small: few classes.
    `samples`  number of samples per client; None divides all samples equally.

    This is the partition of "Measuring the effects of non-identical data distribution for federated visual
    classification". Samples are drawn without replacement, one client after another. Once a class is used up,
    clients get other classes in the proportions that they drew. So the last clients get what the others left.
    """
    enough(len(labels), counted("clients", clients), "one for each client")
    alphas = _for_each(alpha, clients)
    pools = Pools(labels, rng)
    if samples is None:
        sizes = np.array([len(piece) for piece in np.array_split(labels, clients)])
    else:
        sizes = np.full(clients, counted("samples", samples))
        enough(len(labels), clients * samples, f"{samples} for each client")
    parts = []
    for each, size in zip(alphas, sizes, strict=True):
        wanted = rng.dirichlet(np.full(len(pools.classes), each))
        counts = _counts(wanted, pools.left, int(size), rng)
        parts.append(np.concatenate([pools.take(index, count) for index, count in enumerate(counts)]))
    return filled(parts)


def _for_each(alpha: float | Sequence[float] | Array, clients: int) -> list[float]:
    if isinstance(alpha, np.ndarray):
        alpha = alpha.tolist()
    alphas = list(alpha) if isinstance(alpha, Sequence) else [alpha] * clients
    if len(alphas) != clients:
        raise DataError(f"{len(alphas)} values of alpha for {clients} clients: give one, or one for each")
    return [positive("alpha", each) for each in alphas]


def _counts(wanted: Array, left: Array, size: int, rng: Generator) -> Array:
    """Draw `size` samples with class odds `wanted`, at most left[k] of class k; return counts by class."""
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        # Every pass but the last uses up a class, so there are at most as many passes as classes.
        capacity = left - counts
        odds = np.where(capacity > 0, wanted, 0.0)
        if odds.sum() < _NOTHING:
            odds = capacity.astype(float)
        counts += np.minimum(rng.multinomial(missing, odds / odds.sum()), capacity)
    return counts
