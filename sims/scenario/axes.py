"""What a sweep varies: axes, whose cross product gives the cells of a table.

[sweep]
"algorithm.name" = ["fedavg", "rfa"]      # an axis: one key, several values
seed = [1, 2, 3]

[[sweep.task]]                            # an axis that sets several keys at once
label = "flipped labels"                  # what to call it, in place of the keys
"attack.kind" = "label-flip"
"training.rate" = 0.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from sims.deploy.problems import Problems, shown
from sims.scenario.document import flat

_LABEL: Final = "label"


@dataclass(frozen=True)
class Choice:
    """One value of an axis: what it sets, and what it is called in tables."""

    assignments: Mapping[str, Any]
    key: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    name: str
    choices: tuple[Choice, ...]


def axes(sweep: object, problems: Problems) -> tuple[Axis, ...]:
    """The axes of a `[sweep]` table, in the order of the file."""
    if not isinstance(sweep, Mapping):
        problems.add("sweep", f"must be a table, not {shown(sweep)}")
        return ()
    found = []
    for name, values in flat(sweep):
        if not isinstance(values, list) or not values:
            problems.add(f"sweep.{name}", f"must be a list of values, not {shown(values)}")
        elif all(isinstance(each, Mapping) for each in values):
            found.append(Axis(name, tuple(_case(name, each) for each in values)))
        else:
            found.append(Axis(name, tuple(Choice({name: each}, {name: each}) for each in values)))
    _check_distinct(found, problems)
    return tuple(found)


def _case(name: str, table: Mapping[str, Any]) -> Choice:
    assignments = dict(flat(table))
    label = assignments.pop(_LABEL, None)
    return Choice(assignments, assignments if label is None else {name: label})


def _check_distinct(found: Sequence[Axis], problems: Problems) -> None:
    """A key on two axes would have the value of the last one, whatever the table said."""
    owners: dict[str, str] = {}
    for axis in found:
        for key in dict.fromkeys(key for choice in axis.choices for key in choice.assignments):
            if owners.setdefault(key, axis.name) != axis.name:
                problems.add(f"sweep.{axis.name}", f"{key} is varied by sweep.{owners[key]}, too")


def combinations(found: Sequence[Axis]) -> Iterator[Choice]:
    """One choice of every axis; the last axis varies fastest."""
    for choices in product(*(axis.choices for axis in found)):
        assignments = {key: value for choice in choices for key, value in choice.assignments.items()}
        yield Choice(assignments, {key: value for choice in choices for key, value in choice.key.items()})
