"""What is wrong with settings that are right one by one."""

from __future__ import annotations

from typing import Final

from protocols.catalogue import Entry, find
from secagg.errors import ParameterError, SecaggError
from sims.deploy.problems import Problems, nearest
from sims.scenario.settings import Settings

_SOME_DIM: Final = 10
_SOME_CLIENTS: Final = 2


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong to `problems`."""
    training = settings.training
    if training.epochs is not None and training.steps is not None:
        problems.add("training", "set either steps or epochs, not both")
    _check_cohort(settings, problems)
    _check_observers(settings, problems)
    try:
        entry = find(settings.algorithm.name)
    except ParameterError as error:
        problems.add("algorithm.name", str(error))
    else:
        _check_algorithm(entry, settings, problems)


def _check_cohort(settings: Settings, problems: Problems) -> None:
    partition, cohort = settings.partition, settings.cohort
    clients = _training_clients(settings)
    if clients is not None and clients < 1:
        problems.add("partition.held_out", "must be fewer than partition.clients: somebody has to train")
    elif clients is not None and cohort.per_round is not None and cohort.per_round > clients:
        problems.add("cohort.per_round", f"must be at most {clients}, the clients that train")
    invited = cohort.per_round if cohort.per_round is not None else clients
    least = settings.channel.corrupt + 2
    if invited is not None and 1 <= invited < least:
        problems.add(
            "channel.corrupt",
            f"with {settings.channel.corrupt} colluders a round needs {least} clients or more, not {invited}",
        )
    if settings.evaluation.held_out and partition is not None and not partition.held_out:
        problems.add("evaluation.held_out", "nobody is held out: set partition.held_out, or leave this out")


def _training_clients(settings: Settings) -> int | None:
    """How many train, if that is said; the data may know."""
    partition = settings.partition
    if partition is None or partition.clients is None:
        return None
    return partition.clients - partition.held_out


def _check_observers(settings: Settings, problems: Problems) -> None:
    from sims.simulation.observers import OBSERVERS

    for name in settings.evaluation.observe:
        if name not in OBSERVERS:
            problems.add("evaluation.observe", f"{name!r} is not known; {nearest(name, sorted(OBSERVERS))}")


def _check_algorithm(entry: Entry, settings: Settings, problems: Problems) -> None:
    """Build one for a model of some size, which its parameters do not depend on."""
    from sims.simulation.algorithm import build

    clients = max(settings.cohort.per_round or _training_clients(settings) or _SOME_CLIENTS, 1)
    known = {"rate": settings.training.rate, "steps": 1, "population": clients}
    try:
        build(settings, dim=_SOME_DIM, clients=clients, known=known)
    except SecaggError as error:
        problems.add("algorithm", f"{entry.name}: {error}")
