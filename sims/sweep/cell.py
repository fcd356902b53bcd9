"""Cells: simulations of a sweep, known by what they are made of and not by where they stand in a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sims.scenario.scenario import Scenario, described
from sims.scenario.settings import Settings

# To be raised when the same settings give other numbers than before, such as by another default: old results
# are then run again.
FORMAT: Final = 1
_DIGITS: Final = 20
_ASIDE: Final = {"output", "audit", "insecure_seed"}


@dataclass(frozen=True)
class Cell:
    """`key` says by what it differs from the other cells of its table."""

    key: Mapping[str, Any]
    settings: Settings

    @cached_property
    def digest(self) -> str:
        """Of everything that its numbers depend on; of no name and no other cell.

        Defaults are left out, so that results outlive keys that are added later; and so is what decides on
        nothing but what is kept and looked at.
        """
        text = json.dumps(
            {"format": FORMAT, **_numbers(self.settings)},
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    def __str__(self) -> str:
        return described(self.key) or "the only cell"


def _numbers(settings: Settings) -> dict[str, Any]:
    """The settings that numbers depend on. A seed is meant to decide them; that it does not is told."""
    found = settings.model_dump(mode="json", exclude_defaults=True, exclude=_ASIDE)
    return found if settings.seeded else {**found, "insecure_seed": False}


def cells(scenario: Scenario) -> tuple[Cell, ...]:
    """All of them, in the order of the sweep: its last axis varies fastest."""
    return tuple(Cell(variant.key, variant.settings) for variant in scenario.variants)
