"""Checks that data, partition and model of a scenario fit together, and that the files they need exist."""

from __future__ import annotations

import inspect
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from torch import nn

from fl.data import look
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.federation import Federation
from sims.config_problems import Problems
from sims.imported_object import is_reference
from sims.scenario.initial_model import start_of
from sims.scenario.kind_parameters import DATA, MODELS, partitions
from sims.scenario.settings import PartitionSection, Settings
from sims.scenario.training_task import module_with

_GIVEN = "given"


def check(settings: Settings, problems: Problems) -> None:
    """Add a problem for each contradiction between the scenario's tables `[data]` and `[partition]`."""
    kind, partition = settings.data.kind, settings.partition
    if not DATA.has(kind) or is_reference(kind):
        return  # `kind_parameters.check` reports an unknown kind, and only a call tells what own code gives.
    gives = get_type_hints(_plain(DATA.find(kind))).get("return")
    if gives is Federation and partition is not None:
        problems.add("partition", f"{kind} makes its own clients: leave out [partition]")
    elif partition is None and gives not in (Federation, OwnedSamples):
        problems.add("partition", f'is missing: {kind} has no clients; set kind, such as "iid", and clients')
    elif partition is not None and partitions(partition.kind).has(partition.kind):
        _check_partition(kind, partition, problems, owned=gives is OwnedSamples)


def _plain(maker: Any) -> Any:
    return getattr(maker, "func", maker)


def _check_partition(kind: str, partition: PartitionSection, problems: Problems, *, owned: bool) -> None:
    accepted = inspect.signature(_plain(partitions(partition.kind).find(partition.kind))).parameters
    if "owner" in accepted and not owned:
        problems.add("partition.kind", f'{kind} does not say who owns what: take another, such as "iid"')
    elif "owner" not in accepted and partition.clients is None:
        problems.add("partition.clients", f"is missing: {partition.kind} needs it")
    if partition.test == _GIVEN:
        if owned:
            problems.add("partition.test", f"{kind} is by owner: set a part, such as 0.2")
        elif "part" not in inspect.signature(DATA.find(kind)).parameters:
            problems.add("partition.test", f"{kind} has no test set of its own: set a part, such as 0.2")


def check_files(settings: Settings, root: Path, problems: Problems) -> None:
    """Add a problem if files of the data set (in a directory in `root`) or the initial model are missing."""
    start = start_of(settings)
    if start is not None and not start.is_file():
        problems.add(
            "model.start",
            f"there is no {start}: run the scenario that leaves it first, and keep its runs "
            '(--set output.keep=run), or name another run; "" begins with new weights',
        )
    kind = settings.data.kind
    if (
        not DATA.has(kind)
        or is_reference(kind)
        or "directory" not in inspect.signature(DATA.find(kind)).parameters
    ):
        return
    directory = root / str(settings.data.parameters.get("directory", kind))
    if why := _missing(kind.replace("_", "-"), directory, tuple(sorted(_looked_for(settings).items()))):
        problems.add("data", f"{why}. Say with --data where directories of data are")


def _looked_for(settings: Settings) -> dict[str, str]:
    partition, parameters = settings.partition, settings.data.parameters
    named = {name: parameters.get(name) for name in ("file", "split", "part")}
    if partition is not None and partition.test == _GIVEN:
        del named["part"]  # Both parts are read: one for training and one for tests.
    return {name: value for name, value in named.items() if isinstance(value, str)}


@lru_cache(maxsize=64)
def _missing(kind: str, directory: Path, wanted: tuple[tuple[str, str], ...]) -> str:
    """Return why a data set in `directory` cannot be used, or "" if no file is missing. `wanted` has the
    parameters that select files, as (name, value). The result is cached: all cells of a sweep ask for it."""
    try:
        look(kind, directory, dict(wanted))
    except DataError as error:
        return str(error)
    except KeyError:
        return ""  # A parameter is missing, which another check reports.
    return ""


@lru_cache(maxsize=1)
def _digits() -> tuple[int, ...]:
    from fl.data.digits import digits

    return digits().x.shape[1:]


def model(settings: Settings) -> nn.Module | None:
    """Return the model if it is of the user's own code, or if the data is "digits". Return None for other
    data, whose shape is only in files, or if `[model]` has problems, which other checks report. Raise
    `FLError` or `ConfigError` if model and data do not fit."""
    kind, amiss = settings.model.kind, Problems(Path())
    if not MODELS.has(kind):
        return None
    MODELS.arguments(settings.model, kind, amiss)
    if amiss.found:
        return None
    if settings.data.kind != "digits":
        return None if _needs_sizes(settings) else module_with(settings, {})
    channels, side, _ = _digits()
    return module_with(
        settings, {"features": channels * side * side, "classes": 10, "channels": channels, "size": side}
    )


def _needs_sizes(settings: Settings) -> bool:
    """Return whether the model has parameters that follow from the data, which are not known here."""
    kind = settings.model.kind
    if not is_reference(kind):
        return True
    follow = MODELS.likely & MODELS.parameters(MODELS.find(kind)).keys()
    return bool(follow - settings.model.parameters.keys())
