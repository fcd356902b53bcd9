"""Layers by name in the place of ranges: which parameters an algorithm is to treat otherwise than the rest.

A scenario says `personal_part = "output"`, or "adapter", a pattern of parameters' names such as "*.norm1.*",
ranges such as "0:320", or several of these with commas between. An algorithm knows ranges alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from fl.errors import TrainingError
from fl.flat import dim_of
from fl.groups import Groups, layer_groups
from fl.models import MODELS
from protocols.catalogue import CatalogueEntry
from protocols.index_ranges import IndexRanges
from secagg.errors import ParameterError

_CHOSEN: Final = "chosen"
_SOME: Final = "0:1"  # of a model that is not known yet


def with_ranges(
    entry: CatalogueEntry, parameters: Mapping[str, Any], kind: str, module: nn.Module | None
) -> dict[str, Any]:
    """The parameters of an algorithm with ranges of `module` wherever one says places.

    `kind`    of the model, whose layers have names.
    `module`  None where it is not known yet. Names are checked all the same, and some ranges stand for all.

    Raises `ParameterError`, with the parameter's name, for a layer that such a model does not have.
    """
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
            raise ParameterError(f"{name}: {_why(piece, kind, layers, error)}") from None
        ranges += [(each.start, each.stop) for each in groups.slices[_CHOSEN]]
    return IndexRanges.of(dim, ranges).text


def _rest(module: nn.Module, layers: Mapping[str, tuple[str, ...]], piece: str) -> str | None:
    """No name for the rest where there is none: that all is chosen is for the algorithm to refuse."""
    try:
        Groups.of(module, {_CHOSEN: layers.get(piece, piece)}, rest=None)
    except TrainingError:
        return "rest"
    return None


def _check_name(name: str, piece: str, kind: str, layers: Mapping[str, tuple[str, ...]]) -> None:
    """A plain word is the name of a layer, or none."""
    if layers and piece.isidentifier() and piece not in layers:
        raise ParameterError(
            f"{name}: {kind} has no layer {piece!r}: there are {', '.join(layers)}; or take a pattern of "
            'names of its parameters, such as "output.*"'
        )


def _parsed(name: str, piece: str, dim: int) -> IndexRanges:
    try:
        return IndexRanges.parse(piece, dim)
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}") from None


def _why(piece: str, kind: str, layers: Mapping[str, tuple[str, ...]], error: TrainingError) -> str:
    if piece not in layers:
        return str(error).replace(f" of {_CHOSEN!r}", "")
    hint = " (adapters = true in [model] adds them)" if piece == "adapter" else ""
    return f"this {kind} has nothing that belongs to {piece!r}{hint}: take one of {', '.join(layers)}"
