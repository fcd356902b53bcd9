"""Makes a `Federation` from a partition: splits each client's samples and chooses held-out clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias

import numpy as np
from numpy.random import Generator

from fl.checks import counted
from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.partition.class_pools import Pools
from fl.partition.part_sizes import apportion, filled, named
from fl.samples import Array, Samples

SampleTransform: TypeAlias = Callable[[int, Samples, Generator], Samples]
ClientChoice: TypeAlias = int | float | Collection[int]
_ROUNDING: Final = 1e-9  # A share of 0.1 of 30 samples is 3, in spite of rounding.


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
    """Return a federation in which client k has the samples with the indices `parts[k]`.

    `validation`, `test`  fractions of a client's samples; counts are rounded up. The rest is for training.
    `held_out`   clients that never train: their number, fraction, or ids. Their samples are split as well.
    `classes`    the number of classes; by default the largest label + 1. Float targets have no classes.
    `transform`  function that changes a client's samples before the split, given its id, samples and `rng`.
    `shuffle`    if False, the first samples of a part are for training and the last for testing.

    A client always has at least one training sample, even if its test or validation set is then too small. So
    a client with a single sample has no test sample. Empty or overlapping parts raise `DataError`.
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
    """Return a federation of a data set with its own test set: client k has the samples of `train` with
    indices `parts[k]`, and those of `test` with indices `test_parts[k]` (from `matching`). `transform` gets
    both in one, training samples first, and must keep their order. Other arguments are as for `federate`."""
    if len(parts) != len(test_parts):
        raise DataError(
            f"{len(parts)} training parts and {len(test_parts)} test parts: give one of each per client"
        )
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
    """Return disjoint random groups of `clients`, each by client id. `fractions` are the groups' shares of
    all clients; below a sum of 1, some are in no group. Raise `DataError` if a group would be empty."""
    if not fractions or not (min(fractions) > 0 and sum(fractions) <= 1 + _ROUNDING):
        raise DataError(f"fractions must be above 0 and sum to at most 1, not {list(fractions)!r}")
    shares = np.array([*fractions, max(0.0, 1 - sum(fractions))])
    sizes = apportion(shares, len(clients))[:-1]
    if not sizes.all():
        raise DataError(
            f"{len(clients)} clients are too few for fractions {list(fractions)!r}, each needs at least one: "
            "hold out more clients, or make fewer groups"
        )
    order = rng.permutation(sorted(clients))
    groups = np.split(order, np.cumsum(sizes))[:-1]
    return tuple({client: clients[client] for client in sorted(group.tolist())} for group in groups)


def _check_parts(parts: Sequence[Array], samples: int) -> None:
    filled(parts)
    for part in parts:
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise DataError(f"a part must be a list of whole numbers, not {part.dtype} of shape {part.shape}")
    used = np.concatenate(parts) if parts else np.empty(0, np.intp)
    if len(used) and (used.min() < 0 or used.max() >= samples):
        raise DataError(
            f"a part has an index outside of {samples} samples: partition the labels of these samples"
        )
    if len(np.unique(used)) < len(used):
        raise DataError("two clients share a sample: make the parts disjoint")


def _check_shares(validation: float, test: float) -> None:
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise DataError(
            f"shares of {validation} for validation and {test} for testing leave no training samples, "
            "or are below 0: they must be 0 or more and sum to less than 1"
        )


def _split(samples: Samples, validation: float, test: float) -> ClientData:
    """Return the samples split in order: first those for training, then for validation, then for testing.
    `validation` and `test` are fractions; numbers are rounded up, but one sample is left for training."""
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
    """Return the client ids in `choice`. If `choice` is a number (int) or fraction (float) of `clients`,
    return that many random ids. Raise `DataError` for unknown ids, or if there are fewer clients."""
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
        raise DataError(f"cannot draw {choice} of {len(clients)} clients: ask for fewer")
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
    """Return the indices of each client's test samples: those of a class are divided in proportion to the
    clients' numbers of training samples of this class. `parts` has each client's training samples (indices).

    Test samples of classes that no client has are left out. If a class has fewer test samples than clients,
    the clients with most training samples of it get them. Raise `DataError` if a client gets no test samples.
    """
    pools = Pools(test_labels, rng)
    pieces: list[list[Array]] = [[np.empty(0, np.intp)] for _ in parts]
    for index, label in enumerate(pools.classes):
        held = np.array([np.count_nonzero(labels[part] == label) for part in parts])
        if held.any():
            for client, count in enumerate(apportion(held, int(pools.left[index]))):
                pieces[client].append(pools.take(index, count))
    matched = tuple(np.concatenate(piece) for piece in pieces)
    if without := [client for client, part in enumerate(matched) if not len(part)]:
        raise DataError(
            f"{named(without)} of {len(parts)} would have no test samples: ask for fewer clients, "
            "leave out the small ones (at_least), or let them split their own samples (federate)"
        )
    return matched
