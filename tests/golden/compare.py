"""Where two records differ."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, Final

RELATIVE, ABSOLUTE = 1e-6, 1e-9

# Hashes of trained models, which may differ between kinds of processors.
TRAINED: Final = frozenset({"sha256", "query"})
EXACT: Final = "SECAGG_GOLDEN_EXACT"


def differences(golden: Any, now: Any) -> list[str]:
    """One line for every place where they differ; to the last bit if the environment asks for it."""
    return list(_differences(golden, now, "", exact=os.environ.get(EXACT) == "1"))


def _differences(golden: Any, now: Any, where: str, *, exact: bool) -> Iterator[str]:
    if isinstance(golden, dict) and isinstance(now, dict):
        yield from _in_dict(golden, now, where, exact=exact)
    elif isinstance(golden, list) and isinstance(now, list):
        yield from _in_list(golden, now, where, exact=exact)
    elif not _same(golden, now, exact=exact):
        yield f"{where}: {golden!r} was recorded, {now!r} is there"


def _in_dict(golden: dict[str, Any], now: dict[str, Any], where: str, *, exact: bool) -> Iterator[str]:
    if golden.keys() != now.keys():
        yield f"{where}: keys {sorted(golden.keys() ^ now.keys())} are in one of both only"
    for key in golden:
        if key in now and (exact or key not in TRAINED):
            yield from _differences(golden[key], now[key], f"{where}/{key}", exact=exact)


def _in_list(golden: list[Any], now: list[Any], where: str, *, exact: bool) -> Iterator[str]:
    if len(golden) != len(now):
        yield f"{where}: {len(golden)} elements were recorded, {len(now)} are there"
    for number, (one, other) in enumerate(zip(golden, now, strict=False)):
        yield from _differences(one, other, f"{where}/{number}", exact=exact)


def _same(golden: Any, now: Any, *, exact: bool) -> bool:
    if type(golden) is not type(now):
        return False
    if isinstance(golden, float) and not exact:
        return math.isclose(golden, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(golden == now) or golden != golden
