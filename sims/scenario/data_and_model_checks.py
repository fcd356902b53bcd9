"""Checks that data, partition and model of a scenario fit together, and loads the initial model of a run."""

from __future__ import annotations

import inspect
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import numpy as np
from torch import nn

from fl.data import look
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.federation import Federation
from fl.flat_model import flatten
from protocols.serialisation import Vector, as_vector
from sims.config_problems import Problems
from sims.records.run_paths import MODEL
from sims.scenario.kind_parameters import DATA, MODELS, partitions
from sims.scenario.settings import PartitionSection, Settings

_GIVEN = "given"
_KEPT = Path(MODEL)  # the file of the model in the directory of a run


def check(settings: Settings, problems: Problems) -> None:
    """Add a problem for each contradiction between `[data]` and `[partition]`."""
    kind, partition = settings.data.kind, settings.partition
    if not DATA.has(kind):
        return  # `kind_parameters.check` reports the unknown kind.
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
    """Add a problem for missing files of the data set, a directory in `root`, and of the initial model."""
    start = start_of(settings)
    if start is not None and not start.is_file():
        problems.add(
            "model.start",
            f"there is no {start}: run the scenario that leaves it first, and keep its runs "
            '(--set output.keep=run), or name another run; "" begins with new weights',
        )
    kind = settings.data.kind
    if not DATA.has(kind) or "directory" not in inspect.signature(DATA.find(kind)).parameters:
        return
    directory = root / str(settings.data.parameters.get("directory", kind))
    if why := _missing(kind.replace("_", "-"), directory, tuple(sorted(_looked_for(settings).items()))):
        problems.add("data", f"{why}. Say with --data where directories of data are")


def start_of(settings: Settings) -> Path | None:
    """Return the path of the saved model that a run starts from; None if it starts from new weights."""
    if not settings.model.start:
        return None
    path = Path(settings.model.start.replace("{seed}", str(settings.seed)))
    return path if path.suffix == _KEPT.suffix else path / _KEPT


def _looked_for(settings: Settings) -> dict[str, str]:
    partition, parameters = settings.partition, settings.data.parameters
    named = {name: parameters.get(name) for name in ("file", "split", "part")}
    if partition is not None and partition.test == _GIVEN:
        del named["part"]  # Both parts are read: one for training and one for tests.
    return {name: value for name, value in named.items() if isinstance(value, str)}


@lru_cache(maxsize=64)
def _missing(kind: str, directory: Path, wanted: tuple[tuple[str, str], ...]) -> str:
    """Return why a data set cannot be read; else an empty text. Cached, as all cells of a sweep call it."""
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
    """Return the model if the data is "digits". Return None for other data, whose shape is only in files, or
    if `[model]` has problems, which other checks report. Raise `FLError` if model and data do not fit."""
    from fl.models import build

    kind, amiss = settings.model.kind, Problems(Path())
    if settings.data.kind != "digits" or not MODELS.has(kind):
        return None
    own = MODELS.arguments(settings.model, kind, amiss)
    if amiss.found:
        return None
    channels, side, _ = _digits()
    follows = {"features": channels * side * side, "classes": 10, "channels": channels, "size": side}
    accepted = MODELS.parameters(MODELS.find(kind))
    fitting = {name: value for name, value in follows.items() if name in accepted}
    return build(kind.replace("_", "-"), **{**fitting, **own})


_NAME: Final = "model"


def first_model(settings: Settings, module: nn.Module) -> Vector:
    """Return the model that a run starts from, as a flat vector: `module`, or the file of `model.start`.
    Raise `DataError` if this file does not exist or holds another model."""
    try:
        return initial_model(settings, module)
    except DataError as error:
        raise DataError(f"model.start: {error}", parameter="model.start") from None


def initial_model(settings: Settings, module: nn.Module) -> Vector:
    """Return the same vector as `first_model`, but raise errors that do not name the key `model.start`."""
    own, path = flatten(module), start_of(settings)
    if path is None:
        return as_vector(own)
    found = _read(path)
    if found.shape != own.shape or not np.isfinite(found).all():
        raise DataError(
            f"{path} has numbers of shape {found.shape}, but this model has {len(own)}, all "
            "finite: name the run of the same model"
        )
    return as_vector(found)


def _read(path: Path) -> Vector:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[_NAME], np.float64)
    except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} does not hold the model of a run: {error}") from None
