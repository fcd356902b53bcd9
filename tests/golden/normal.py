"""The data of a record without what differs from run to run, or is but words."""

from __future__ import annotations

from typing import Any, Final

TEXT: Final = "<text>"

# Times, versions, places, and hashes that cover the time at which a ledger was created.
DROPPED: Final = frozenset(
    {"seconds", "cpu", "wall", "memory", "started", "created", "secagg", "python", "pid"}
    | {"path", "results", "command", "hash", "head", "signature"}
)


def normal(value: Any) -> Any:
    """Sentences become a mark, and what cannot be repeated is left out."""
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items() if key not in DROPPED}
    if isinstance(value, list):
        return [normal(each) for each in value]
    if isinstance(value, str) and len(value.split()) > 1:
        return TEXT
    return value
