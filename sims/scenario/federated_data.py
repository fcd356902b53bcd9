"""Loads and partitions the data of the clients of a scenario."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError, FLError
from fl.federation import Federation
from fl.partition import federate, federate_pair, matching
from fl.samples import Samples
from fl.torch_datasets import federation_of, is_data_set, samples_of
from secagg.errors import ParameterError
from sims.config_problems import ConfigError
from sims.imported_object import called, is_reference
from sims.scenario.kind_parameters import DATA, partitions, signature_of
from sims.scenario.participation import ParticipationLimit, Participations
from sims.scenario.settings import PartitionSection, Settings

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


def check_own_data(path: Path, variants: Sequence[Settings], root: Path) -> None:
    """Raise `ConfigError` if the first of `variants` of the scenario at `path` has data of the user's own
    code that cannot be used, so that this is reported before anything is trained."""
    if variants and is_reference(variants[0].data.kind):
        try:
            _source(variants[0], root)
        except (FLError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}") from None


# --- sources ---


def _source(settings: Settings, root: Path, **more: Any) -> Source:
    kind, maker = settings.data.kind, DATA.find(settings.data.kind)
    parameters = DATA.arguments_or_raise(settings.data, kind) | more
    accepted, own = signature_of(maker).parameters, is_reference(kind)
    if "directory" in accepted:
        parameters["directory"] = root / parameters.get("directory", "" if own else kind)
    if "rng" in accepted:
        parameters["rng"] = stream("data", settings.seed)
    elif "seed" in accepted:
        parameters = {"seed": settings.seed, **parameters}
    elif not own:
        return _read(kind, tuple(sorted(parameters.items())))
    return _own(kind, maker, parameters) if own else _made(maker, parameters)


def _own(kind: str, maker: Any, parameters: Mapping[str, Any]) -> Source:
    """Return the data that a function of the user's own returns. Raise `ConfigError` if they are invalid."""

    def made() -> Source:
        found = maker(**parameters)
        if isinstance(found, Samples | OwnedSamples | Federation):
            return found
        if isinstance(found, Mapping):
            return federation_of(found, name=kind)
        if is_data_set(found):
            return samples_of(found)
        raise ConfigError(
            "must return a torch Dataset or DataLoader, a mapping of client ids to them, or Samples, "
            f"OwnedSamples or a Federation of fl, not {type(found).__name__}"
        )

    try:
        return called(kind, made, private=True)
    except ConfigError as error:
        raise ConfigError(f"data.kind: {error}") from None


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
    if "part" not in signature_of(DATA.find(settings.data.kind)).parameters:
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


def draw_cohort(settings: Settings, clients: Sequence[int], number: int) -> tuple[int, ...]:
    """Return the `cohort.per_round` of these clients that round `number` invites, drawn uniformly; all
    clients if there are no more than that."""
    per_round = settings.cohort.per_round
    if per_round is None or per_round >= len(clients):
        return tuple(clients)
    rng = stream("draw", settings.seed, number)
    return tuple(int(each) for each in rng.choice(clients, per_round, replace=False))


def participation_limit(settings: Settings) -> ParticipationLimit | None:
    """Return how often a client may take part, or None if it may do so in every round."""
    privacy = settings.privacy
    if privacy is None or privacy.participations is None:
        return None
    return ParticipationLimit(privacy.participations, privacy.min_separation)


def draw_limited(
    settings: Settings, participations: Participations, here: Sequence[int], number: int
) -> tuple[int, ...]:
    """Return the clients `here` that round `number` invites, of those that may still take part."""
    per_round = settings.cohort.per_round
    rng = stream("draw", settings.seed, number)
    return participations.draw(rng, here, number, len(here) if per_round is None else per_round)


def all_draws(
    settings: Settings, limit: ParticipationLimit, clients: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the clients of every round of a run, each drawn from all `clients`. They depend on the seed
    only, so that a resumed run has the same. Raise `ParameterError` if too few may take part in a round."""
    participations = Participations(limit, clients, settings.rounds)
    wanted = min(settings.cohort.per_round or len(clients), len(clients))
    draws = []
    for number in range(settings.rounds):
        drawn = draw_limited(settings, participations, clients, number)
        if len(drawn) < wanted:
            raise ParameterError(
                f"privacy: in round {number + 1}, only {len(drawn)} clients may still take part, and "
                f"{wanted} are needed: allow more participations or a smaller min_separation, or have more "
                "clients, fewer rounds or fewer clients a round"
            )
        participations.note(number, drawn)
        draws.append(drawn)
    return tuple(draws)


def stream(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """Return a random generator determined by the purpose, the seed and `more`, such as a round number."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])
