"""The kinds of sums of an algorithm in words and numbers, as a run directory keeps them in `run.json`.

A ledger says of every sum what was in it. What that means for clients, only the algorithm knows, and an
auditor may not have it: so whoever runs it writes it down, beside the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sims.audit.audit import Kind, Part
from sims.audit.records import Entry

_UNKNOWN = "nothing is written down about what it reveals"


def kinds_of(written: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> tuple[Kind, ...]:
    """All kinds that are written down, or were asked: of the latter, parts are as the ledger has them."""
    found = {row["kind"]: dict(row) for row in written}
    for entry in entries:
        if entry.asked is not None:
            new = {"group": entry.kind, "times": None, "reveals": _UNKNOWN, "extra": entry.extra}
            found.setdefault(entry.kind, new)["parts"] = entry.asked["parts"]
    return tuple(_kind(name, row) for name, row in found.items())


def _kind(name: str, row: Mapping[str, Any]) -> Kind:
    parts = tuple(_part(part) for part in row["parts"])
    return Kind(
        kind=name,
        group=row["group"],
        times=row["times"],
        parts=parts,
        reveals=row["reveals"],
        private=all(part.noisy for part in parts),
        extra=bool(row.get("extra", False)),
    )


def _part(row: Mapping[str, Any]) -> Part:
    noisy = row["noise"] is not None
    return Part(name=row["name"], size=row["size"], bits=row["bits"], bound=_bound(row["bound"]), noisy=noisy)


def _bound(bound: Mapping[str, Any]) -> str:
    """What one honest client can add, in words."""
    limit = bound["limit"]
    match bound["type"]:
        case "L2":
            return f"a norm of at most {limit:g}"
        case "LInf":
            return f"every number within +-{limit:g}"
        case "Count":
            most = bound.get("total")
            together = "" if most is None else f", together at most {most:,}"
            return f"whole numbers from 0 to {limit:,}{together}"
        case _:
            return "residues, which wrap around"
