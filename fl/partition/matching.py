"""Test data that a data set brings along, spread like the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from fl.errors import DataError
from fl.partition.pools import Pools, apportion, named
from fl.samples import Array


def matching(labels: Array, parts: Sequence[Array], test_labels: Array, rng: Generator) -> tuple[Array, ...]:
    """Parts of the test set in which clients have the same share of every class as in their `parts`.

    Test samples of classes that no client has are left out. A class of fewer test samples than
    clients goes to those that have most of it. A client that gets none at all is an error.
    """
    pools = Pools(test_labels, rng)
    pieces: list[list[Array]] = [[np.empty(0, np.intp)] for _ in parts]
    for place, label in enumerate(pools.classes):
        held = np.array([np.count_nonzero(labels[part] == label) for part in parts])
        if held.any():
            for client, count in enumerate(apportion(held, int(pools.left[place]))):
                pieces[client].append(pools.take(place, count))
    matched = tuple(np.concatenate(piece) for piece in pieces)
    if without := [client for client, part in enumerate(matched) if not len(part)]:
        raise DataError(
            f"{named(without)} of {len(parts)} would have no test samples: ask for fewer clients, "
            "leave out the small ones (at_least), or let them split their own samples (federate)"
        )
    return matched
