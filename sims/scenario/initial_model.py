"""Loads the initial model of a run: its weights are new, or those that another run has left in a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import numpy as np
from torch import nn

from fl.errors import DataError
from fl.flat_model import flatten
from protocols.serialisation import Vector, as_vector
from sims.records.run_file_names import MODEL
from sims.scenario.settings import Settings

_KEPT = Path(MODEL)  # the file of the model in the directory of a run
_NAME: Final = "model"


def start_of(settings: Settings) -> Path | None:
    """Return the path of the saved model that a run starts from; None if it starts from new weights."""
    if not settings.model.start:
        return None
    path = Path(settings.model.start.replace("{seed}", str(settings.seed)))
    return path if path.suffix == _KEPT.suffix else path / _KEPT


def first_model(settings: Settings, module: nn.Module) -> Vector:
    """Return the weights with which a run starts, as a flat vector: those in the file that `model.start`
    names, else those of `module`. Raise `DataError` if this file does not exist or does not fit."""
    try:
        return initial_model(settings, module)
    except DataError as error:
        raise DataError(f"model.start: {error}", parameter="model.start") from None


def initial_model(settings: Settings, module: nn.Module) -> Vector:
    """Return initial weights as `first_model` does. The text of a `DataError` does not name `model.start`."""
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
