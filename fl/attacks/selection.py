"""Which clients are corrupt."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import numpy as np

from fl.errors import TrainingError


def by_samples(sizes: Mapping[int, int], level: float, seed: int) -> frozenset[int]:
    """So many clients, in a random order, that they just hold more than `level` of all training samples.

    As in "Robust Aggregation for Federated Learning", where `level` is what is called corruption. At level 0
    nobody is corrupt. `sizes` says how many samples each client trains on, as `Federation.samples` does.
    """
    if not 0 <= level < 1:
        raise TrainingError(f"the corrupt share of all samples must be from 0 to below 1, not {level!r}")
    order, total = list(sizes), sum(sizes.values())
    random.Random(seed - 1).shuffle(order)
    chosen: set[int] = set()
    held = 0
    for client in order if level else ():
        if held > level * total:
            break
        chosen.add(client)
        held += sizes[client]
    return frozenset(chosen)


def by_count(ids: Iterable[int], fraction: float, seed: int) -> frozenset[int]:
    """That fraction of all clients, rounded to a whole number of them, as in the lp-proj paper."""
    if not 0 <= fraction <= 1:
        raise TrainingError(f"the fraction of clients must be from 0 to 1, not {fraction!r}")
    everyone = sorted(ids)
    chosen = np.random.default_rng(seed).choice(everyone, round(fraction * len(everyone)), replace=False)
    return frozenset(map(int, chosen))
