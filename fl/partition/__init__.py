"""Registry of partitions, which distribute a data set over clients.

A partition is a tuple with one array of sample indices per client; the arrays are disjoint. `register` adds a
kind of partition, `partition` makes one by name, `describe` summarises it, `federate` makes a `Federation`:

    parts = partition("dirichlet", samples.y, 20, rng, alpha=0.5)
    print(describe(parts, samples.y))
    federation = federate(samples, parts, rng, test=0.2, held_out=5)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from numpy.random import Generator

from fl.checks import unknown_name
from fl.errors import DataError
from fl.partition.build_federation import divide, federate, federate_pair, matching
from fl.partition.by_class import classes_per_client, dirichlet, lp_proj, shards
from fl.partition.by_size_or_owner import at_least, by_owner, iid, power_law
from fl.partition.fedbc import fedbc
from fl.partition.fedprox import fedprox_mnist, fedprox_nist
from fl.partition.mnist_robust_and_personal import NegatedImages, NoisyClasses, mnist_personal, mnist_robust
from fl.partition.summary import PartitionSummary, describe
from fl.samples import Array

__all__ = [
    "PARTITIONS",
    "NegatedImages",
    "NoisyClasses",
    "PartitionSummary",
    "at_least",
    "by_owner",
    "classes_per_client",
    "describe",
    "dirichlet",
    "divide",
    "fedbc",
    "federate",
    "federate_pair",
    "fedprox_mnist",
    "fedprox_nist",
    "iid",
    "lp_proj",
    "matching",
    "mnist_personal",
    "mnist_robust",
    "partition",
    "power_law",
    "register",
    "shards",
]

_PARTITIONS: Final[dict[str, Callable[..., tuple[Array, ...]]]] = {
    each.__name__: each
    for each in (
        iid,
        dirichlet,
        shards,
        classes_per_client,
        power_law,
        fedprox_mnist,
        fedprox_nist,
        fedbc,
        lp_proj,
        by_owner,
    )
}
PARTITIONS: Final[Mapping[str, Callable[..., tuple[Array, ...]]]] = MappingProxyType(_PARTITIONS)


def register(name: str, split: Callable[..., tuple[Array, ...]]) -> None:
    """Add a kind of partition. `split` is called with labels, number of clients, random generator and its own
    parameters, and returns one array of sample indices per client. Raise `DataError` if the name is taken."""
    if name in _PARTITIONS:
        raise DataError(f"there is a partition {name!r} already: choose another name", parameter="name")
    _PARTITIONS[name] = split


def partition(
    name: str, labels: Array, clients: int | None, rng: Generator, **parameters: Any
) -> tuple[Array, ...]:
    """Return one array of sample indices per client, made by the partition called `name`. For `by_owner`
    only, `clients` may be None, for all owners. An unknown name, or a wrong parameter, raises `DataError`."""
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS, DataError, parameter="kind")
    _, _, _, *known = inspect.signature(PARTITIONS[name]).parameters.values()
    names = [each.name for each in known]
    for unknown in parameters.keys() - set(names):
        raise unknown_name(f"parameter of {name}", unknown, names, DataError, parameter=unknown)
    missing = [each.name for each in known if each.default is each.empty and each.name not in parameters]
    if missing:
        raise DataError(f"partition {name} needs {' and '.join(missing)}: give a value")
    return PARTITIONS[name](labels, clients, rng, **parameters)
