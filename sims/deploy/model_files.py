"""Writes a model as files that other programs read: a flat vector as `.npz`, and by parameter name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import nn

from fl.flat_model import parameter_slices
from protocols.serialisation import Vector
from secagg.net.atomic_files import FileKind
from sims.config_problems import ConfigError
from sims.deploy.config import safetensors_path

_MODEL: Final = FileKind("a model", "correct the path", ConfigError)
_MODE: Final = 0o644


def write_model(path: Path, model: Vector, module: nn.Module, *, mode: int = _MODE) -> None:
    """Write `model` to `path` (.npz, array "model") and beside it as safetensors, with the names and shapes
    of the parameters of `module`. Raise `ConfigError` if a file cannot be written."""
    archive = io.BytesIO()
    np.savez(archive, model=np.asarray(model))
    _MODEL.replace(path, archive.getvalue(), mode=mode)
    _MODEL.replace(safetensors_path(path), save(named(model, module)), mode=mode)


def named(model: Vector, module: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return the trainable parameters of a flat model by name, each with its shape, as float32."""
    return {
        slot.name: np.asarray(model[slot.start : slot.stop], np.float32).reshape(slot.shape)
        for slot in parameter_slices(module)
    }
