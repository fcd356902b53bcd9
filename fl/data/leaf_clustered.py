"""The synthetic data set of "LEAF: a benchmark for federated settings": clients' models form clusters.

It is not that of `fl.data.fedprox_synthetic`. For k clusters, with N(mean, standard deviation) per entry:

    Q ~ N(0, 1), (features + 1) x classes x k; for every cluster: c ~ N(0, 1), M ~ N(c, 1) of length k;
    for every client: a random cluster, m ~ N(M of this cluster, 0.1), a vector v ~ N(B, 1) with B ~ N(0, 1);
    for every sample: x_j ~ N(v_j, j^-0.6) for feature j, and logits (1, x) Q m + noise, noise ~ N(0, 0.1).

The label is the argmax of a softmax. In the released script the softmax is over a client's samples instead of
the classes, which favours the client's rarer classes. This is kept, because it defines the data set.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import RandomState

from fl.checks import checked_seed, counted
from fl.data.fedprox_synthetic import variances
from fl.data.synthetic_train_test_split import TENTH, SplitFractions, divided
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Array, Samples

SEED: Final = 931231
_SPREAD: Final = 0.1  # standard deviation of models in a cluster, and of the noise of logits


def leaf_synthetic(
    clients: int,
    *,
    classes: int,
    features: int,
    clusters: Sequence[float] = (1.0,),
    minimum: int = 5,
    largest: int = 1000,
    shares: SplitFractions = TENTH,
    seed: int = SEED,
) -> Federation:
    """Return the federation that LEAF's script generates, but split into training and test data by `shares`.

    `clusters`  the probability of each cluster of clients; the script has one cluster.
    `minimum`   is added to a lognormal draw (parameters 3 and 2) to get a client's number of samples.
    `largest`   limit on a client's number of samples.
    """
    for name, value, least in (("clients", clients, 1), ("classes", classes, 2), ("features", features, 1)):
        counted(name, value, least)
    counted("largest", largest, counted("minimum", minimum, 1))
    if not len(clusters) or min(clusters) < 0 or abs(sum(clusters) - 1) > 1e-8:
        raise DataError(f"probabilities of clusters must be positive and add up to 1, not {list(clusters)}")
    sizes = RandomState(checked_seed(seed)).lognormal(3, 2, clients).astype(int)
    # The script seeds the generator a second time before it draws anything else.
    clustered = _ClusterModel(RandomState(seed), classes, features, clusters)
    order = random.Random(seed)
    made = [clustered.client(min(size + minimum, largest)) for size in sizes]
    return Federation(
        {client: divided(samples, shares, order) for client, samples in enumerate(made)},
        classes=classes,
        name="LEAF synthetic",
    )


class _ClusterModel:
    """Draws what all clients share, then each client's samples, in the order of LEAF's script."""

    def __init__(self, rng: RandomState, classes: int, features: int, clusters: Sequence[float]) -> None:
        self._rng = rng
        self._clusters = clusters
        self._mixing = rng.normal(0.0, 1.0, (features + 1, classes, len(clusters)))
        self._covariance = np.diag(variances(features))
        self._means = [rng.normal(rng.normal(0.0, 1.0), 1.0, len(clusters)) for _ in clusters]

    def client(self, size: int) -> Samples:
        cluster = self._rng.choice(len(self._clusters), p=self._clusters)
        center = self._rng.normal(self._rng.normal(0.0, 1.0), 1.0, len(self._covariance))
        inputs = self._rng.multivariate_normal(center, self._covariance, size)
        weights = self._mixing @ self._rng.normal(self._means[cluster], _SPREAD)
        logits = np.column_stack([np.ones(size), inputs]) @ weights
        logits += self._rng.normal(0.0, _SPREAD, logits.shape)
        return Samples(inputs.astype(np.float32), _labels(logits))


def _labels(logits: Array) -> Array:
    """Return a label per row of one client's `logits` (samples x classes): the argmax over classes of
    exp(logits) / (sum of exp(logits) over the samples), computed in logarithms to avoid overflow."""
    peak = logits.max(axis=0)
    totals = peak + np.log(np.exp(logits - peak).sum(axis=0))
    labels: Array = (logits - totals).argmax(axis=1)
    return labels
