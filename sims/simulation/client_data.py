"""Loads and partitions the data of the clients of a scenario, and applies attacks on data."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fl.attacks import by_count, by_samples, corrupt_data
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.federation import Federation
from fl.partition import federate, federate_pair, matching
from fl.samples import Samples
from sims.scenario.kind_parameters import DATA, attacks, partitions
from sims.scenario.settings import AttackSection, PartitionSection, Settings

Source: TypeAlias = Samples | OwnedSamples | Federation


def federation(settings: Settings, root: Path) -> Federation:
    """Return the data of all clients before any attack. `root` contains the directories of data sets."""
    partition = settings.partition
    if partition is not None and partition.test == "given":
        return _given(settings, partition, root)
    source = _source(settings, root)
    if isinstance(source, Federation):
        if partition is not None:
            raise DataError(f"{settings.data.kind} makes its own clients: leave out [partition]")
        return source
    if partition is None and isinstance(source, OwnedSamples):
        partition = PartitionSection(kind="by_owner")
    if partition is None:
        raise DataError(f"{settings.data.kind} has no owners: set [partition] to split it over clients")
    return _spread(settings, partition, source)


def corrupt(settings: Settings, clean: Federation) -> tuple[Federation, frozenset[int]]:
    """Choose the attackers. Return the data of all clients after attacks on data, and the attackers' ids.
    With a fraction of 0 there are none. Raise `DataError` if a larger one gives none, or all clients."""
    attack = settings.attack
    if attack is None or attack.fraction == 0:
        return clean, frozenset()
    if attack.selection == "samples":
        who = by_samples(clean.samples, attack.fraction, settings.seed)
    else:
        who = by_count(clean.clients, attack.fraction, settings.seed)
    _check_corrupt(attack, who, clean)
    if attack.level == "message":
        return clean, who
    registry = attacks(attack.level)
    made = registry.find(attack.kind)(**registry.arguments_or_raise(attack, attack.kind))
    return corrupt_data(clean, made, who, stream("attack", settings.seed)), who


def _check_corrupt(attack: AttackSection, who: frozenset[int], clean: Federation) -> None:
    """Raise `DataError` if none of the clients is an attacker (in `who`), or if all are."""
    if not who or len(who) == len(clean.clients):
        which = "all of them" if who else "none of them"
        raise DataError(
            f"attack.fraction: {attack.fraction} of {len(clean.clients)} clients is {which}: set it to "
            f"{'less' if who else 'more, or leave out [attack]'}"
        )


# --- sources ---


def _source(settings: Settings, root: Path, **more: Any) -> Source:
    maker = DATA.find(settings.data.kind)
    parameters = DATA.arguments_or_raise(settings.data, settings.data.kind) | more
    accepted = inspect.signature(maker).parameters
    if "directory" in accepted:
        parameters["directory"] = root / parameters.get("directory", settings.data.kind)
    if "rng" in accepted:
        return _made(maker, {**parameters, "rng": stream("data", settings.seed)})
    if "seed" in accepted:
        return _made(maker, {"seed": settings.seed, **parameters})
    return _read(settings.data.kind, tuple(sorted(parameters.items())))


def _made(maker: Any, parameters: Mapping[str, Any]) -> Source:
    source: Source = maker(**parameters)
    return source


@lru_cache(maxsize=2)
def _read(kind: str, parameters: tuple[tuple[str, Any], ...]) -> Source:
    """Return a data set that does not depend on a seed. The last two are cached for later simulations."""
    return _made(DATA.find(kind), dict(parameters))


# --- partitions ---


def _spread(settings: Settings, partition: PartitionSection, source: Samples | OwnedSamples) -> Federation:
    samples = source.samples if isinstance(source, OwnedSamples) else source
    rng = stream("partition", settings.seed)
    assert isinstance(partition.test, float | int)  # `_given` handles the other case.
    shares: dict[str, Any] = {
        "validation": partition.validation,
        "test": float(partition.test),
        "held_out": partition.held_out,
    }
    registry = partitions(partition.kind)
    maker = registry.find(partition.kind)
    parameters = registry.arguments_or_raise(partition, partition.kind)
    if "labels" not in inspect.signature(maker).parameters:
        made: Federation = maker(samples, partition.clients, rng, **shares, **parameters)
        return made
    parts = _parts(partition, source, samples, rng)
    return federate(samples, parts, rng, name=settings.data.kind, **shares)


def _parts(partition: PartitionSection, source: Source, samples: Samples, rng: Any) -> Any:
    registry = partitions(partition.kind)
    maker = registry.find(partition.kind)
    accepted = inspect.signature(maker).parameters
    parameters = registry.arguments_or_raise(partition, partition.kind)
    if "owner" in accepted:
        if not isinstance(source, OwnedSamples):
            raise DataError(f"nothing says who owns the samples, and {partition.kind} goes by that")
        parameters["owner"] = source.owner
    elif partition.clients is None:
        raise DataError(f"the partition {partition.kind} needs a number of clients: set partition.clients")
    return maker(samples.y, partition.clients, rng, **parameters)


def _given(settings: Settings, partition: PartitionSection, root: Path) -> Federation:
    """Return the data of all clients, with test samples from the data set's own test set. A client gets them
    in proportion to its training samples of each class. Raise `DataError` if there is no such test set."""
    if "part" not in inspect.signature(DATA.find(settings.data.kind)).parameters:
        raise DataError(f"{settings.data.kind} has no test set of its own: set partition.test to a number")
    train, test = (_source(settings, root, part=part) for part in ("train", "test"))
    if not isinstance(train, Samples) or not isinstance(test, Samples):
        raise DataError(f"{settings.data.kind} is by owner: set partition.test to a number")
    rng = stream("partition", settings.seed)
    parts = _parts(partition, train, train, rng)
    return federate_pair(
        train,
        parts,
        test,
        matching(train.y, parts, test.y, rng),
        rng,
        validation=partition.validation,
        held_out=partition.held_out,
        name=settings.data.kind,
    )


def stream(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """Return a random generator determined by the purpose, the seed and `more`, such as a round number."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])
