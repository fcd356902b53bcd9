"""A spec in words that a reader of the ledger understands without the program that wrote it."""

from __future__ import annotations

from typing import Any

from secagg.spec import Count, Part, SumSpec


def describe(spec: SumSpec) -> dict[str, Any]:
    """Parts with their bounds and noise, and for whom that noise was promised."""
    promise = spec.promise
    return {
        "parts": [_part(part) for part in spec.parts],
        "promise": None
        if promise is None
        else {
            "clients": promise.clients,
            "dropouts": promise.dropouts,
            "colluders": promise.colluders,
            "removable": promise.removable,
        },
    }


def _part(part: Part) -> dict[str, Any]:
    bound: dict[str, Any] = {"type": type(part.bound).__name__, "limit": getattr(part.bound, "limit", None)}
    if isinstance(part.bound, Count):
        bound["total"] = part.bound.total
    noise = part.noise
    return {
        "name": part.name,
        "size": part.size,
        "bits": part.bits,
        "bound": bound,
        "noise": None if noise is None else {"scale": noise.scale, "variance": str(noise.variance)},
    }
