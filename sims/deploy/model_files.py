"""Writes a model as files that other programs read: a flat vector as `.npz`, and by name as safetensors."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fl.flat_model import parameter_slices
from protocols.serialisation import Vector
from secagg.net.atomic_files import FileKind
from sims.config_problems import ConfigError
from sims.deploy.config import safetensors_path
from sims.deploy.run_terms import RunTerms

_MODEL: Final = FileKind("a model", "correct the path", ConfigError)
_MODE: Final = 0o644


def write_model(path: Path, model: Vector, terms: RunTerms, *, mode: int = _MODE) -> None:
    """Write `model` to `path` (.npz, array "model") and beside it as safetensors: all that the module of
    `terms` needs for `load_state_dict`. Raise `ConfigError` if a file cannot be written."""
    archive, tensors = model_contents(model, terms)
    _MODEL.replace(path, archive, mode=mode)
    _MODEL.replace(safetensors_path(path), tensors, mode=mode)


def model_contents(model: Vector, terms: RunTerms) -> tuple[bytes, bytes]:
    """Return the contents of the files of `model`: as .npz, and as safetensors."""
    archive = io.BytesIO()
    np.savez(archive, model=np.asarray(model))
    return archive.getvalue(), save(_state_of(trained_module(model, terms)))


def trained_module(model: Vector, terms: RunTerms) -> nn.Module:
    """Return a copy of the module of `terms` with the parameters `model`. Its tensors keep their types. If it
    was trained in double precision, they are float64, as in training, so that nothing is rounded."""
    module = copy.deepcopy(terms.module)
    if terms.task.training.dtype is torch.float64:
        module = module.double()
    with torch.no_grad():
        for slot in parameter_slices(module):
            values = torch.tensor(model[slot.start : slot.stop])  # a copy, because vectors are read-only
            module.get_parameter(slot.name).copy_(values.view(slot.shape))
    return module


def _state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of `module` by name, as copies: safetensors refuses tensors that share memory, such as
    tied weights. What that format cannot hold is left out: sparse tensors, and objects of other types."""
    return {
        name: each.detach().clone(memory_format=torch.contiguous_format)
        for name, each in module.state_dict().items()
        if isinstance(each, Tensor) and each.layout is torch.strided
    }
