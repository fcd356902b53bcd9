"""Clients with made-up data, for tests of how they train."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl.federation import ClientData
from fl.samples import Samples


def samples(count: int, seed: int, *, shape: tuple[int, ...] = (4,), classes: int = 3) -> Samples:
    """Inputs of `shape`, whose classes have something to do with them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, size=count)
    x = rng.normal(size=(count, *shape)) + y.reshape(-1, *(1,) * len(shape)) / 2
    return Samples(x.astype(np.float32), y)


def amounts(count: int, seed: int, *, features: int = 4) -> Samples:
    """For a regression."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features))
    return Samples(x, x @ np.arange(features) + rng.normal(size=count))


def client(
    count: int, seed: int = 0, *, shape: tuple[int, ...] = (4,), classes: int = 3, test: int = 7
) -> ClientData:
    def some(size: int, part: int) -> Samples:
        return samples(size, 10 * seed + part, shape=shape, classes=classes)

    return ClientData(some(count, 0), some(2, 1), some(test, 2))


def clients(
    sizes: Sequence[int], *, shape: tuple[int, ...] = (4,), classes: int = 3
) -> dict[int, ClientData]:
    """With ids that are no positions."""
    return {
        3 * k + 1: client(size, k, shape=shape, classes=classes, test=k % 4) for k, size in enumerate(sizes)
    }
