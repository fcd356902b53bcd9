"""The model that a run begins with: a new one, or one that an earlier run has left."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import numpy as np
from torch import nn

from fl.errors import DataError
from fl.flat import flatten
from protocols.serialisation import Vector, as_vector
from sims.scenario.settings import Settings
from sims.scenario.sources import start_of

_NAME: Final = "model"


def first_model(settings: Settings, module: nn.Module) -> Vector:
    """What `module` is, or what `model.start` names in its place, as a flat vector.

    Raises `DataError` for a file that is not there, and for one that holds no such model.
    """
    own, path = flatten(module), start_of(settings)
    if path is None:
        return as_vector(own)
    found = _read(path)
    if found.shape != own.shape or not np.isfinite(found).all():
        raise DataError(
            f"model.start: {path} has numbers of shape {found.shape}, but this model has {len(own)}, all "
            "finite: name the run of the same model"
        )
    return as_vector(found)


def _read(path: Path) -> Vector:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[_NAME], np.float64)
    except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"model.start: {path} is no model that a run has left: {error}") from None
