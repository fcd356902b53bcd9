"""Partitions that decide which classes a client has."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.random import Generator

from fl.errors import DataError
from fl.partition.pools import Pools, counted, enough, few_enough, filled, whole
from fl.samples import Array


def shards(labels: Array, clients: int, rng: Generator, *, per_client: int = 2) -> tuple[Array, ...]:
    """Samples sorted by label and cut into equal shards, of which every client gets `per_client` at random.

    The partition of "Communication-efficient learning of deep networks from decentralized data" (FedAvg).
    All samples are used. Where the size of a class is no multiple of that of a shard, some
    shards hold two classes, and a client may have more than `per_client` classes; `lp_proj` gives
    exactly that many.
    """
    total = counted("clients", clients) * counted("per_client", per_client)
    enough(len(labels), total, "one for each shard")
    order = rng.permutation(len(labels))
    order = order[np.argsort(whole(labels)[order], kind="stable")]
    pieces = np.array_split(order, total)
    hands = rng.permutation(total).reshape(clients, per_client)
    return tuple(np.concatenate([pieces[shard] for shard in hand]) for hand in hands)


def classes_per_client(labels: Array, clients: int, rng: Generator, *, classes: int = 2) -> tuple[Array, ...]:
    """`classes` classes for every client; a class is shared evenly by the clients that have it.

    Clients take the classes that the fewest have so far, by lot where there are several. A class
    that nobody takes (more classes than clients times `classes`) is left out.
    """
    pools = Pools(labels, rng)
    holders: list[list[int]] = [[] for _ in pools.classes]
    for client in range(counted("clients", clients)):
        load = np.array([len(holding) for holding in holders])
        for place in _least(load, few_enough(classes, len(load)), rng):
            holders[place].append(client)
    parts: list[list[Array]] = [[] for _ in range(clients)]
    for place, holding in enumerate(holders):
        # A class that is too small for its holders must not leave out the same clients every time.
        holding = rng.permutation(holding).tolist()
        for client, piece in zip(holding, pools.cut(place, max(1, len(holding))), strict=False):
            parts[client].append(piece)
    return filled([np.concatenate(pieces) for pieces in parts])


def lp_proj(
    labels: Array, clients: int, rng: Generator, *, classes: int = 2, equal: bool = False
) -> tuple[Array, ...]:
    """One shard of each of `classes` classes for every client.

    The released recipe of the paper on lp-proj: every class is cut into clients * `classes` / (number of
    classes) equal shards; clients in turn take one of each of the classes that have most
    shards left, by lot where there are several. `equal` first cuts all classes to the size of the
    smallest. The paper has 100 clients of 2 classes on MNIST and Fashion-MNIST, 200 of 2 on CIFAR-10,
    248 of 10 on EMNIST; a fifth of a client's training samples are for validation (`federate`), and
    its test samples are of the same classes (`matching`).

    Where the number of shards is no whole number it is rounded up, and some are left over.
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
    stacks = [np.array_split(pools.take(place, kept[place]), each) for place in range(number)]
    parts = []
    for _ in range(clients):
        load = np.array([-len(stack) for stack in stacks])
        parts.append(np.concatenate([stacks[place].pop() for place in _least(load, classes, rng)]))
    return tuple(parts)


def _least(load: Array, count: int, rng: Generator) -> Array:
    """The places of the `count` smallest values, those of equal ones drawn by lot."""
    return np.lexsort((rng.random(len(load)), load))[:count]
