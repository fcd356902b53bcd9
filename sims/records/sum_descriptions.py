"""Describes the kinds of sums of an algorithm for `run.json`: parts, bounds, noise, what totals reveal."""

from __future__ import annotations

from typing import Any

from protocols.algorithm import AnyAlgorithm
from secagg.ledger.base_ledger import describe


def described(algorithm: AnyAlgorithm, *, extra: bool = False) -> list[dict[str, Any]]:
    """Return a JSON description of each kind of sum of an algorithm; `extra` marks sums outside training."""
    return [
        {
            "kind": each.query.kind,
            "group": each.spec.group or each.query.kind,
            "times": each.spec.times,
            "needed": each.spec.times if each.needed is None else each.needed,
            "reveals": each.reveals,
            "least_weight": each.least_weight,
            "extra": extra,
            **describe(each.spec),
        }
        for each in algorithm.sums()
    ]
