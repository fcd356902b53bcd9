"""How vectors are written down: JSON with one short list per line, and plain descriptions of tables.

The same text comes out on every machine, because the committed files are compared byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.identity_registry import Registry
from secagg.policy import Policy
from secagg.session_params import SECURITY_BITS
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust

_WIDTH: Final = 110
_BOUNDS: Final = {"L2": L2, "LInf": LInf, "Count": Count, "Residue": Residue}


def to_json(value: Any) -> str:
    """`value` as JSON text; whatever fits on a line is on one."""
    return _lines(value, 0) + "\n"


def _lines(value: Any, depth: int) -> str:
    flat = json.dumps(value, allow_nan=False)
    if not isinstance(value, (dict, list)) or len(flat) + depth <= _WIDTH:
        return flat
    inside = " " * (depth + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()]
    else:
        rows = [_lines(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(inside + row for row in rows)
    return f"{opening}\n{body}\n{' ' * depth}{closing}"


def chained(starts: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Lists of steps, each as what it adds to the longest list among the others that it goes on from."""
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted(starts, key=lambda name: len(starts[name])):
        steps = starts[name]
        bases = [other for other in rows if starts[other] and steps[: len(starts[other])] == starts[other]]
        base = max(bases, key=lambda other: len(starts[other]), default=None)
        rows[name] = {"after": base, "steps": steps[len(starts[base]) :] if base else steps}
    return rows


def unchained(starts: Mapping[str, Any], name: str) -> list[Any]:
    """All the steps of a chained start."""
    start = starts[name]
    earlier = unchained(starts, start["after"]) if start["after"] else []
    return [*earlier, *start["steps"]]


def describe_table(table: Table) -> dict[str, Any]:
    return {kind: _describe_spec(spec) for kind, spec in table.items()}


def _describe_spec(spec: SumSpec) -> dict[str, Any]:
    parts = [describe_part(part) for part in spec.parts]
    row = {"parts": parts, "times": spec.times, "group": spec.group}
    return row if spec.promise is None else {**row, "promise": vars_of(spec.promise)}


def describe_part(part: Part) -> dict[str, Any]:
    row = {"name": part.name, "size": part.size, "bits": part.bits, "bound": type(part.bound).__name__}
    row |= {name: value for name, value in vars_of(part.bound).items() if value is not None}
    return row if part.noise is None else {**row, **_describe_noise(part, part.noise)}


def _describe_noise(part: Part, noise: Noise) -> dict[str, Any]:
    """With what follows from it: elements on the wire, and the square of the largest norm after rounding."""
    given = {"scale": noise.scale, "variance": str(noise.variance)}
    return {"noise": given, "width": part.width, "norm2": part.norm2}


def vars_of(record: NoiseAssumptions | Bound | Policy) -> dict[str, Any]:
    """The fields of a record; `vars` would also have what it remembers of itself."""
    return {column.name: getattr(record, column.name) for column in fields(record)}


def read_table(description: Mapping[str, Any]) -> Table:
    """The table that `describe_table` described."""
    return Table({kind: _read_spec(spec) for kind, spec in description.items()})


def _read_spec(spec: Mapping[str, Any]) -> SumSpec:
    parts = tuple(read_part(part) for part in spec["parts"])
    promise = NoiseAssumptions(**spec["promise"]) if "promise" in spec else None
    return SumSpec(parts=parts, times=spec["times"], group=spec["group"], promise=promise)


def read_part(part: Mapping[str, Any]) -> Part:
    bound = _BOUNDS[part["bound"]](**{key: part[key] for key in ("limit", "total") if key in part})
    noise = None
    if "noise" in part:
        noise = Noise(scale=part["noise"]["scale"], variance=Fraction(part["noise"]["variance"]))
    return Part(name=part["name"], size=part["size"], bits=part["bits"], bound=bound, noise=noise)


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Describe a policy. `security_bits` and `min_difference` are left out where they have no effect."""
    row = {**vars_of(policy), "trust": str(policy.trust)}
    defaults = {"security_bits": SECURITY_BITS, "min_difference": 0}
    return {k: v for k, v in row.items() if k not in defaults or v != defaults[k]}


def read_policy(description: Mapping[str, Any]) -> Policy:
    return Policy(**{**description, "trust": Trust(description["trust"])})


def describe_registry(registry: Registry | None) -> dict[str, Any] | None:
    if registry is None:
        return None
    members = {str(member): key.hex() for member, key in sorted(registry.members.items())}
    return {"version": registry.version, "expires": registry.expires, "members": members}


def read_registry(description: Mapping[str, Any] | None) -> Registry | None:
    if description is None:
        return None
    members = {int(member): bytes.fromhex(key) for member, key in description["members"].items()}
    return Registry(description["version"], members, description["expires"])
