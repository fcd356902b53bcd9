"""Dataclass fields for parameters of algorithms, with texts for users, and functions that read these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

_MEANING: Final = "meaning"
_INDEX_RANGES: Final = "index_ranges"
# Descriptions of parameters that many algorithms have.
BITS_MEANING: Final = "of every number of a vector on the wire"
CAP_MEANING: Final = "samples beyond which a client counts no more"

T = TypeVar("T")


def parameter(default: T, meaning: str, *, index_ranges: bool = False) -> T:
    """Return a dataclass field for a parameter of an algorithm, which `meaning` describes to users. With
    `index_ranges`, its value selects index ranges of the model; scenario files may name layers instead."""
    return field(default=default, metadata={_MEANING: meaning, _INDEX_RANGES: index_ranges})


def meanings_of(kind: object) -> Mapping[str, str]:
    """Return the texts that describe a dataclass's parameters, by name. Base classes supply missing texts."""
    found: dict[str, str] = {}
    for name, each in _declared(kind):
        if each.metadata.get(_MEANING):
            found.setdefault(name, each.metadata[_MEANING])
    return MappingProxyType(found)


def index_range_parameters(kind: object) -> tuple[str, ...]:
    """Return which parameters of a dataclass select ranges of the model's vector; () for other objects."""
    if not is_dataclass(kind):
        return ()
    return tuple(each.name for each in fields(kind) if each.metadata.get(_INDEX_RANGES))


def _declared(kind: object) -> list[tuple[str, Field[Any]]]:
    """Return the (name, field) pairs of a dataclass, then of each base class; [] if `kind` is no class."""
    bases = kind.__mro__ if isinstance(kind, type) else ()
    return [pair for each in bases for pair in vars(each).get("__dataclass_fields__", {}).items()]
