"""Sizes of the clients' parts in a partition: proportional sizes, cutting to size, and checks of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fl.errors import DataError
from fl.samples import Array

_NAMED: Final = 10


def enough(samples: int, needed: int, what: str) -> None:
    """Raise `DataError` if `needed` is more than `samples`. `what` says in the error what needs so many."""
    if needed > samples:
        raise DataError(
            f"{what} takes {needed} samples, but there are {samples}: "
            "ask for fewer clients, or for fewer samples each"
        )


def proportions(weights: Array) -> Array:
    """Return `weights` divided by their sum. Raise `DataError` if the sum is zero or infinite."""
    with np.errstate(over="ignore"):
        total = weights.sum()
    if len(weights) and not 0 < total < np.inf:
        raise DataError("the weights of the clients are infinite, or all zero: choose a smaller sigma")
    parts: Array = weights / total
    return parts


def apportion(weights: Array, total: int) -> Array:
    """Return integers in proportion to `weights` that sum to `total`: rounded down, then one more for those
    with the largest remainders. Raises `DataError` if the sum of the weights is zero or infinite."""
    exact = proportions(weights) * total
    shares: Array = np.floor(exact).astype(np.intp)
    # The sum of floors falls short by less than one per share.
    behind = np.argsort(shares - exact, kind="stable")[: total - shares.sum()]
    shares[behind] += 1
    return shares


def cut(order: Array, sizes: Array) -> tuple[Array, ...]:
    """Return consecutive pieces of `order` with the given sizes. The rest of `order` is left out."""
    return tuple(np.split(order, np.cumsum(sizes))[:-1])


def filled(parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return `parts`, arrays of indices by client, as a tuple. Raise `DataError` if one is empty."""
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise DataError(
            f"{named(empty)} of {len(parts)} would have no samples: ask for fewer clients, "
            "for a larger minimum, or leave out the small ones (at_least)"
        )
    return tuple(parts)


def named(clients: Sequence[int]) -> str:
    """Return text such as "clients 3, 5". It names up to ten clients and counts the others."""
    shown = ", ".join(str(client) for client in clients[:_NAMED])
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"client{'s' * (len(clients) > 1)} {shown}{more}"
