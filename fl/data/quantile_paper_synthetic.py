"""The synthetic task, Gaussian classes, of the paper on differentially private federated quantiles.

"Differentially private federated quantiles with the distributed discrete Gaussian mechanism" uses
scikit-learn's `make_classification`. This module makes the same numbers with numpy alone, for one cluster per
class, `hypercube=False`, and no repeated features:

1. Every class has a corner of a hypercube of side 2 * `separation` around zero, in as many dimensions as
   there are informative features. The center of the class is this corner, scaled by one random factor per
   class and one per feature.
2. Informative features are standard normal vectors times a random matrix of the class, plus its center.
3. Redundant features are the informative ones times a random matrix. All others are standard normal.
4. A fraction `flip` of the labels is replaced by random labels. Then samples and features are shuffled.

Random factors are uniform in [0, 1), entries of random matrices in [-1, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator, RandomState

from fl.checks import checked_seed, counted, not_negative
from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.partition.by_class import dirichlet
from fl.samples import Array, Samples

SEED: Final = 2345
_CROWDED: Final = 0.01  # From this share of corners on, scikit-learn draws them by another method.
_BITS: Final = 30  # scikit-learn draws corners of more dimensions in two parts.


@dataclass(frozen=True, kw_only=True)
class ClassTask:
    """The distribution of synthetic samples. `informative` features depend on the class, `redundant` ones are
    linear combinations of these, and all others are noise. Class centers are corners of a hypercube of side 2
    * `separation`, scaled at random. A fraction `flip` of the labels is replaced by random ones. Defaults are
    those of the paper on federated quantiles, except `flip`, whose default is scikit-learn's."""

    features: int = 20
    informative: int = 15
    redundant: int = 2
    classes: int = 10
    separation: float = 5.0
    flip: float = 0.01

    def __post_init__(self) -> None:
        counted("redundant", self.redundant, 0)
        counted("classes", self.classes, 2)
        counted("features", self.features, counted("informative", self.informative, 1) + self.redundant)
        not_negative("separation", self.separation)
        if not 0 <= self.flip <= 1:
            raise DataError(f"flip must be a share from 0 to 1, not {self.flip!r}", parameter="flip")
        if self.informative > _BITS or self.classes >= _CROWDED * 2**self.informative:
            raise DataError(
                f"{self.classes} classes at corners of {self.informative} dimensions are drawn by a method "
                f"that is not supported: use at most {_BITS} informative features, and more than "
                "100 corners, 2 to the power of informative features, for each class"
            )


def classification(samples: int, *, task: ClassTask | None = None, seed: int = SEED) -> Samples:
    """Return `samples` samples, about equally many of each class, in double precision.

    They equal those of scikit-learn's `make_classification(samples, task.features, n_informative=...,
    n_redundant=..., n_classes=..., n_clusters_per_class=1, class_sep=..., hypercube=False, flip_y=...,
    random_state=seed)`: labels exactly, inputs up to rounding, which depends on the machine and numpy.
    """
    task = task or ClassTask()
    counted("samples", samples, task.classes)
    rng = RandomState(checked_seed(seed))
    centers = _centers(task, rng)
    labels = np.arange(samples) % task.classes
    labels.sort()
    inputs = _inputs(task, labels, centers, rng)
    flipped = rng.uniform(size=samples) < task.flip
    labels[flipped] = rng.randint(task.classes, size=flipped.sum())
    rows = np.arange(samples)
    rng.shuffle(rows)
    columns = np.arange(task.features)
    rng.shuffle(columns)
    return Samples(inputs[rows][:, columns], labels[rows])


def _centers(task: ClassTask, rng: RandomState) -> Array:
    corners: list[int] = []
    while len(corners) < task.classes:
        if (corner := int(rng.randint(2**task.informative))) not in corners:
            corners.append(corner)
    # Each bit of the number gives the side of the corner, the highest bit for the first feature.
    sides = np.array(corners)[:, None] >> np.arange(task.informative)[::-1] & 1
    centers = sides * (2 * task.separation) - task.separation
    centers *= rng.uniform(size=(task.classes, 1))
    centers *= rng.uniform(size=(1, task.informative))
    return np.asarray(centers)


def _inputs(task: ClassTask, labels: Array, centers: Array, rng: RandomState) -> Array:
    """Draw the inputs of samples with the sorted `labels`, one sample per row. Columns are first the
    informative features (around the `centers` of classes), then the redundant ones, then noise."""
    inputs = np.zeros((len(labels), task.features))
    known = inputs[:, : task.informative]
    known[:] = rng.standard_normal(known.shape)
    for label, center in enumerate(centers):
        mine = slice(*np.searchsorted(labels, (label, label + 1)))
        known[mine] = known[mine] @ _mixing(task.informative, task.informative, rng) + center
    end = task.informative + task.redundant
    if task.redundant:
        inputs[:, task.informative : end] = known @ _mixing(task.informative, task.redundant, rng)
    inputs[:, end:] = rng.standard_normal((len(labels), task.features - end))
    return inputs


def _mixing(rows: int, columns: int, rng: RandomState) -> Array:
    return np.asarray(2 * rng.uniform(size=(rows, columns)) - 1)


@dataclass(frozen=True, kw_only=True)
class ClientPopulation:
    """Numbers of clients: `clients` train; `validation` and `test` are held out. All have `samples` samples.
    A client's class proportions are drawn from a symmetric Dirichlet distribution with parameter `alpha`, or
    for held-out clients `held_out_alpha`: few classes each, to test the fairness of a model."""

    clients: int = 2500
    validation: int = 500
    test: int = 500
    samples: int = 100
    alpha: float = 0.5
    held_out_alpha: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (("clients", 1), ("validation", 0), ("test", 0), ("samples", 1)):
            counted(name, getattr(self, name), least)


def quantile_task(
    rng: Generator,
    *,
    crowd: ClientPopulation | None = None,
    task: ClassTask | None = None,
    total: int = 500_000,
    seed: int = SEED,
) -> Federation:
    """Return the federation of the paper on federated quantiles, whose clients hold generated samples.

    A pool of `total` samples is made from `seed`; `rng` assigns some to each client. Clients 0, 1, ... train.
    Held-out clients follow, first those for validation, then those for testing. They never train. Their
    samples are in `validation` or `test`, and also in `train`, because `ClientData` requires some there.
    """
    crowd, task = crowd or ClientPopulation(), task or ClassTask()
    pool = classification(total, task=task, seed=seed)
    pool = Samples(pool.x.astype(np.float32), pool.y)
    held_out = crowd.validation + crowd.test
    alphas = [crowd.alpha] * crowd.clients + [crowd.held_out_alpha] * held_out
    parts = dirichlet(pool.y, len(alphas), rng, alpha=alphas, samples=crowd.samples)
    nothing = pool.take(np.arange(0))

    def holding(client: int) -> ClientData:
        mine = pool.take(parts[client])
        kind = client - crowd.clients
        validation = mine if 0 <= kind < crowd.validation else nothing
        return ClientData(mine, validation, mine if kind >= crowd.validation else nothing)

    data_of = {client: holding(client) for client in range(len(alphas))}
    return Federation(
        {client: data for client, data in data_of.items() if client < crowd.clients},
        {client: data for client, data in data_of.items() if client >= crowd.clients},
        classes=task.classes,
        name="quantile task",
    )
