"""Partitions that decide which classes a client has."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np
from numpy.random import Generator

from fl.checks import counted, positive
from fl.errors import DataError
from fl.partition.pools import Pools, enough, few_enough, filled, whole
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


_NOTHING: Final = 1e-12  # Below this, proportions cannot be brought to a sum of one.


def dirichlet(
    labels: Array,
    clients: int,
    rng: Generator,
    *,
    alpha: float | Sequence[float] | Array,
    samples: int | None = None,
) -> tuple[Array, ...]:
    """Every client's proportions of labels are a draw of a symmetric Dirichlet distribution.

    `alpha`    its parameter, one for all or one for each client: small means few classes each.
    `samples`  for each client; None shares all samples equally.

    The partition of "Measuring the effects of non-identical data distribution for federated visual
    classification". The paper on differentially private quantiles (superquantile objective) has
    `samples=100`, 2500 clients that train with `alpha` 0.5, and 1000 others with 0.01.

    Samples are drawn without replacement, one client after another: once a class is used up, clients
    get others in the proportions that they drew. If all samples are shared, the last clients get what
    there is.
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
        parts.append(np.concatenate([pools.take(place, count) for place, count in enumerate(counts)]))
    return filled(parts)


def _for_each(alpha: float | Sequence[float] | Array, clients: int) -> list[float]:
    if isinstance(alpha, np.ndarray):
        alpha = alpha.tolist()
    alphas = list(alpha) if isinstance(alpha, Sequence) else [alpha] * clients
    if len(alphas) != clients:
        raise DataError(f"{len(alphas)} values of alpha for {clients} clients: give one, or one for each")
    return [positive("alpha", each) for each in alphas]


def _counts(wanted: Array, left: Array, size: int, rng: Generator) -> Array:
    """How many of each class, `size` in all, at most those `left` and as near to `wanted` as that allows."""
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        # Every pass but the last uses up a class, so there are at most as many as classes.
        room = left - counts
        odds = np.where(room > 0, wanted, 0.0)
        if odds.sum() < _NOTHING:
            odds = room.astype(float)
        counts += np.minimum(rng.multinomial(missing, odds / odds.sum()), room)
    return counts
