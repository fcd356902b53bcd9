"""Partitions made into federations: what a client trains on and is tested on, and who never trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias

import numpy as np
from numpy.random import Generator

from fl.checks import counted
from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.partition.pools import Pools, apportion, filled, named
from fl.samples import Array, Samples

SampleTransform: TypeAlias = Callable[[int, Samples, Generator], Samples]
ClientChoice: TypeAlias = int | float | Collection[int]
_ROUNDING: Final = 1e-9  # A share of 0.1 of 30 samples is 3, and not what floats make of it.


def federate(
    samples: Samples,
    parts: Sequence[Array],
    rng: Generator,
    *,
    validation: float = 0.0,
    test: float = 0.2,
    held_out: ClientChoice = 0,
    classes: int | None = None,
    name: str = "",
    transform: SampleTransform | None = None,
    shuffle: bool = True,
) -> Federation:
    """A federation whose client k holds the samples at `parts[k]`.

    `validation`, `test`  shares of a client's samples, rounded up; the rest is to train.
    `held_out`   clients that never train: how many, which fraction, or their ids. They are split like others.
    `classes`    how many there are; None counts them up to the largest label. Floats have none.
    `transform`  makes a client's samples its own, before they are split: called with its id, them and `rng`.
    `shuffle`    False takes the first samples of a part to train and the last to test.

    A client always has something to train on, at the cost of the test share, then of validation: with
    one sample it trains on that and cannot be judged, with two it has one to train and one to test.
    A client with a single class is one like others, and is tested on that class. An empty part is an error.
    """
    _check_parts(parts, len(samples))
    _check_shares(validation, test)
    clients = {}
    for client, part in enumerate(parts):
        own = samples.take(rng.permutation(part) if shuffle else part)
        own = transform(client, own, rng) if transform else own
        clients[client] = _split(own, validation, test)
    return _federation(clients, rng, held_out, _classes(samples.y, classes), name)


def federate_pair(
    train: Samples,
    parts: Sequence[Array],
    test: Samples,
    test_parts: Sequence[Array],
    rng: Generator,
    *,
    validation: float = 0.0,
    held_out: ClientChoice = 0,
    classes: int | None = None,
    name: str = "",
    transform: SampleTransform | None = None,
) -> Federation:
    """A federation of a data set that comes with a test set of its own: see `federate` and `matching`.

    `transform` is called once for each client, with its training samples before its test samples.
    """
    if len(parts) != len(test_parts):
        raise DataError(f"{len(parts)} parts to train on and {len(test_parts)} to test: one for each client")
    _check_parts(parts, len(train))
    _check_parts(test_parts, len(test))
    _check_shares(validation, 0.0)
    clients = {}
    for client, (part, test_part) in enumerate(zip(parts, test_parts, strict=True)):
        own = Samples.join((train.take(rng.permutation(part)), test.take(test_part)))
        own = transform(client, own, rng) if transform else own
        border = np.arange(len(own)) < len(part)
        rest = _split(own.take(np.flatnonzero(border)), validation, 0.0)
        clients[client] = ClientData(rest.train, rest.validation, own.take(np.flatnonzero(~border)))
    labels = np.concatenate((train.y, test.y))
    return _federation(clients, rng, held_out, _classes(labels, classes), name)


def divide(
    clients: Mapping[int, ClientData], fractions: Sequence[float], rng: Generator
) -> tuple[dict[int, ClientData], ...]:
    """Groups of clients, drawn at random: say held-out clients to choose by, and others to test.

    Fractions that sum to less than 1 leave the rest of the clients out.
    """
    if not fractions or not (min(fractions) > 0 and sum(fractions) <= 1 + _ROUNDING):
        raise DataError(f"fractions must be above 0 and sum to at most 1, not {list(fractions)!r}")
    shares = np.array([*fractions, max(0.0, 1 - sum(fractions))])
    sizes = apportion(shares, len(clients))[:-1]
    if not sizes.all():
        raise DataError(
            f"{len(clients)} clients are too few for fractions {list(fractions)!r}, of which each needs one: "
            "hold out more clients, or make fewer groups"
        )
    order = rng.permutation(sorted(clients))
    groups = np.split(order, np.cumsum(sizes))[:-1]
    return tuple({client: clients[client] for client in sorted(group.tolist())} for group in groups)


def _check_parts(parts: Sequence[Array], samples: int) -> None:
    filled(parts)
    for part in parts:
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise DataError(f"a part is a list of whole numbers, not {part.dtype} of shape {part.shape}")
    used = np.concatenate(parts) if parts else np.empty(0, np.intp)
    if len(used) and (used.min() < 0 or used.max() >= samples):
        raise DataError(
            f"a part has an index that none of {samples} samples has: partition the labels of these samples"
        )
    if len(np.unique(used)) < len(used):
        raise DataError("two clients have a sample in common: make the parts disjoint")


def _check_shares(validation: float, test: float) -> None:
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise DataError(
            f"shares of {validation} for validation and {test} to test leave nothing to train on, "
            "or are below 0: they must be 0 or more and sum to less than 1"
        )


def _split(samples: Samples, validation: float, test: float) -> ClientData:
    """The first to train on, then those to choose by, the last to test."""
    there = len(samples)
    tested = min(ceil(test * there - _ROUNDING), there - 1)
    chosen_by = min(ceil(validation * there - _ROUNDING), there - 1 - tested)
    pieces = np.split(np.arange(there), [there - tested - chosen_by, there - tested])
    return ClientData(*(samples.take(piece) for piece in pieces))


def _federation(
    clients: dict[int, ClientData], rng: Generator, held_out: ClientChoice, classes: int | None, name: str
) -> Federation:
    apart = chosen(clients, held_out, rng)
    if len(apart) == len(clients):
        raise DataError(f"all {len(clients)} clients are held out: leave at least one to train")
    train = {client: data for client, data in clients.items() if client not in apart}
    return Federation(train, {client: clients[client] for client in sorted(apart)}, classes, name)


def chosen(clients: Collection[int], choice: ClientChoice, rng: Generator) -> frozenset[int]:
    """Clients by number or fraction, drawn at random, or by id."""
    if isinstance(choice, float | np.floating):
        if not 0 <= choice <= 1:
            raise DataError(f"a fraction of clients must be from 0 to 1, not {choice!r}")
        choice = round(choice * len(clients))
    if isinstance(choice, Collection):
        ids = frozenset(choice)
        if unknown := sorted(ids - frozenset(clients)):
            raise DataError(
                f"there is no {named(unknown)}: clients are numbered from 0 to {len(clients) - 1}"
            )
        return ids
    if counted("a number of clients", choice, 0) > len(clients):
        raise DataError(f"{choice} clients are to be drawn, but there are {len(clients)}: ask for fewer")
    return frozenset(rng.choice(sorted(clients), choice, replace=False).tolist())


def _classes(labels: Array, classes: int | None) -> int | None:
    if labels.dtype.kind not in "iu":
        if classes is not None:
            raise DataError(
                f"{classes} classes, but targets are {labels.dtype}: convert them to whole numbers"
            )
        return None
    if len(labels) and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        raise DataError(
            f"labels go from {labels.min()} to {labels.max()}, and classes are counted from 0"
            f"{'' if classes is None else f' to {classes - 1}'}: renumber them, or correct their number"
        )
    return int(labels.max(initial=-1)) + 1 if classes is None else classes


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
