"""Parses the specification of a sum (parts, bounds, noise) from its description in a ledger or `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec
from sims.audit.run_files import Row

_BOUNDS: Mapping[str, type[L2 | LInf]] = {"L2": L2, "LInf": LInf}


def spec_of(row: Row) -> SumSpec:
    """Parse `row`, the description of a sum in a ledger or in `run.json`, and return it as a `SumSpec`."""
    return SumSpec(parts=tuple(map(_part, row["parts"])), promise=promise_of(row["promise"]))


def _part(row: Row) -> Part:
    noise = row["noise"]
    return Part(
        name=row["name"],
        size=row["size"],
        bits=row["bits"],
        bound=bound_of(row["bound"]),
        noise=None if noise is None else Noise(scale=noise["scale"], variance=Fraction(noise["variance"])),
    )


def bound_of(row: Row) -> Bound:
    """Return the bound that `row`, the description of a part's bound, states."""
    kind = row["type"]
    if kind in _BOUNDS:
        return _BOUNDS[kind](row["limit"])
    return Count(row["limit"], row["total"]) if kind == "Count" else Residue()


def promise_of(described: Row | None) -> NoiseAssumptions | None:
    """Return how many clients, drop-outs and colluders a sum's noise is planned for; None without noise."""
    return None if described is None else NoiseAssumptions(**described)
