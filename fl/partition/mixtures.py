"""Partitions in which every client has its own mixture of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator

from fl.errors import DataError
from fl.partition.pools import Pools, counted, enough, filled, positive
from fl.samples import Array

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
