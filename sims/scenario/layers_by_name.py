"""Replaces the names of layers in the parameters of an algorithm by index ranges in the flat model.

For a part of the model, such as `personal_part`, a scenario may give the name of a layer ("output"), a
pattern of parameter names ("*.norm1.*"), a range of indices ("0:320"), or several of these with commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from fl.errors import TrainingError
from fl.flat_model import dim_of
from fl.models import MODELS
from fl.parameter_groups import Groups, layer_groups
from protocols.catalogue_entry import CatalogueEntry
from protocols.model_index_ranges import IndexRanges
from secagg.errors import ParameterError

_CHOSEN: Final = "chosen"
_SOME: Final = "0:1"  # placeholder for the ranges of a model that is not known yet


def with_ranges(
    entry: CatalogueEntry, parameters: Mapping[str, Any], kind: str, module: nn.Module | None
) -> dict[str, Any]:
    """Return an algorithm's parameters, with names and patterns of layers replaced by index ranges in the
    vector of all weights of `module`. If `module` is None, names are only checked and replaced by a
    placeholder. `kind` is the kind of the model, such as "mlp". Raise `ParameterError`, which names the
    parameter, if the model has no such layer or index."""
    found = dict(parameters)
    for name in entry.index_range_parameters:
        if isinstance(found.get(name), str):
            found[name] = _ranges(name, found[name], kind.replace("_", "-"), module)
    return found


def _ranges(name: str, text: str, kind: str, module: nn.Module | None) -> str:
    layers = layer_groups(kind) if kind in MODELS else {}
    pieces = [piece.strip() for piece in text.split(",")] if text.strip() else []
    if module is None:
        for piece in pieces:
            _check_name(name, piece, kind, layers)
        return _SOME if pieces else ""
    dim = dim_of(module)
    ranges: list[tuple[int, int]] = []
    for piece in pieces:
        if ":" in piece:
            ranges += _parsed(name, piece, dim).ranges
            continue
        _check_name(name, piece, kind, layers)
        try:
            groups = Groups.of(module, {_CHOSEN: layers.get(piece, piece)}, rest=_rest(module, layers, piece))
        except TrainingError as error:
            raise ParameterError(f"{name}: {_why(piece, kind, layers, error)}", parameter=name) from None
        ranges += [(each.start, each.stop) for each in groups.slices[_CHOSEN]]
    return IndexRanges.of(dim, ranges).text


def _rest(module: nn.Module, layers: Mapping[str, tuple[str, ...]], piece: str) -> str | None:
    """Return "rest" if the layer or pattern `piece` does not cover all parameters of `module`, else None."""
    try:
        Groups.of(module, {_CHOSEN: layers.get(piece, piece)}, rest=None)
    except TrainingError:
        return "rest"
    return None


def _check_name(name: str, piece: str, kind: str, layers: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `ParameterError` if `piece`, in the setting `name`, is a word (no pattern) but names no layer."""
    if layers and piece.isidentifier() and piece not in layers:
        raise ParameterError(
            f"{name}: {kind} has no layer {piece!r}: there are {', '.join(layers)}; or take a pattern of "
            'names of its parameters, such as "output.*"',
            parameter=name,
        )


def _parsed(name: str, piece: str, dim: int) -> IndexRanges:
    try:
        return IndexRanges.parse(piece, dim)
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}", parameter=name) from None


def _why(piece: str, kind: str, layers: Mapping[str, tuple[str, ...]], error: TrainingError) -> str:
    if piece not in layers:
        return str(error).replace(f" of {_CHOSEN!r}", "")
    hint = " (adapters = true in [model] adds them)" if piece == "adapter" else ""
    return f"this {kind} has nothing that belongs to {piece!r}{hint}: take one of {', '.join(layers)}"
