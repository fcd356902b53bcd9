"""Parses assignments to dotted keys such as `training.rate`, from the option `--set` and from sweeps.

The cells of a sweep are the cross product of its axes:

[sweep]
"algorithm.name" = ["fedavg", "rfa"]      # an axis: one key, several values
seed = [1, 2, 3]

[[sweep.task]]                            # an axis that sets several keys at once
label = "flipped labels"                  # its name in tables, instead of the keys
"attack.kind" = "label-flip"
"training.rate" = 0.1
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

from sims.config_problems import ConfigError, Problems, nearest, shown

_LABEL: Final = "label"


@dataclass(frozen=True)
class Choice:
    """One value of an axis of a sweep, or a combination with one value per axis. `assignments` maps dotted
    keys to values. `key` identifies the choice in tables: by the assignments, or by axis and label."""

    assignments: Mapping[str, Any]  # dotted keys and their values
    key: Mapping[str, Any]  # identifies it in tables: the assignments, or the name of the axis and a label

    @property
    def labelled(self) -> bool:
        """Whether tables of results show a label for this choice, which would be wrong for other values."""
        return self.key != self.assignments

    def touched(self, changes: Assignments) -> list[str]:
        """Return the keys in `changes` that equal, contain or are inside a key that this choice sets."""
        return [each for each in changes if any(_overlap(each, own) for own in self.assignments)]

    def changed(self, changes: Assignments) -> Choice:
        """Return a copy. Its keys in `changes` get the new values. Keys inside or above these are removed."""
        left = [key for key in self.assignments if key in changes or not self._gone(key, changes)]
        found = {key: changes.get(key, self.assignments[key]) for key in left}
        return Choice(found, self.key if self.labelled else found)

    def _gone(self, key: str, changes: Assignments) -> bool:
        return any(_overlap(each, key) for each in changes)


@dataclass(frozen=True)
class Axis:
    name: str
    choices: tuple[Choice, ...]


def _overlap(key: str, other: str) -> bool:
    """Return whether the keys are equal, or one is inside the other, as `training.rate` in `training`."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def axes(sweep: object, problems: Problems, changes: Assignments | None = None) -> tuple[Axis, ...]:
    """Return the axes of a `[sweep]` table in the order of the file, and add their problems. `changes` maps
    the name of an axis to new values, or to the labels of the values to keep."""
    if not isinstance(sweep, Mapping):
        problems.add("sweep", f"must be a table, not {shown(sweep)}")
        return ()
    given = dict(flat(sweep))
    for name, values in (changes or {}).items():
        given[name] = _chosen(name, given.get(name), values, problems)
    found = []
    for name, values in given.items():
        if not isinstance(values, list) or not values:
            problems.add(f"sweep.{name}", f"must be a list of values, not {shown(values)}")
        elif all(isinstance(each, Mapping) for each in values):
            found.append(Axis(name, tuple(_case(name, each) for each in values)))
            _check_labels(name, values, problems)
        else:
            found.append(Axis(name, tuple(Choice({name: each}, {name: each}) for each in values)))
    _check_distinct(found, problems)
    return tuple(found)


def _chosen(name: str, cases: Any, wanted: Any, problems: Problems) -> Any:
    """If `wanted` has labels of an axis's values `cases`, return those values, and add a problem for each
    unknown label. If `cases` have no labels, or `wanted` has tables, `wanted` has new values: return it."""
    listed = wanted if isinstance(wanted, list) else [wanted]
    labels = _labels(cases)
    if not labels or not listed or any(isinstance(each, Mapping) for each in listed):
        return wanted
    for each in listed:
        if str(each) not in labels:
            problems.add(f"sweep.{name}", f"has no case {shown(each)}; {nearest(str(each), labels)}")
    texts = set(map(str, listed))
    return [each for each in cases if str(each.get(_LABEL)) in texts] or cases


def _labels(cases: Any) -> list[str]:
    if not isinstance(cases, list) or not all(isinstance(each, Mapping) for each in cases):
        return []
    return [str(each[_LABEL]) for each in cases if _LABEL in each]


def _check_labels(name: str, cases: Any, problems: Problems) -> None:
    """Add a problem for each label that several values of an axis have: rows of tables would look alike."""
    for label, times in Counter(_labels(cases)).items():
        if times > 1:
            problems.add(f"sweep.{name}", f"{times} cases have the label {shown(label)}")


def _case(name: str, table: Mapping[str, Any]) -> Choice:
    assignments = dict(flat(table))
    label = assignments.pop(_LABEL, None)
    return Choice(assignments, assignments if label is None else {name: label})


def _check_distinct(found: Sequence[Axis], problems: Problems) -> None:
    """Add a problem for each key that two axes set, because only the last axis would have an effect."""
    owners: dict[str, str] = {}
    for axis in found:
        for key in dict.fromkeys(key for choice in axis.choices for key in choice.assignments):
            if owners.setdefault(key, axis.name) != axis.name:
                problems.add(f"sweep.{axis.name}", f"{key} is varied by sweep.{owners[key]}, too")


def combinations(found: Sequence[Axis]) -> Iterator[Choice]:
    """Yield every combination of one value per axis, as a single choice; the last axis varies fastest."""
    for choices in product(*(axis.choices for axis in found)):
        assignments = {key: value for choice in choices for key, value in choice.assignments.items()}
        yield Choice(assignments, {key: value for choice in choices for key, value in choice.key.items()})


Document: TypeAlias = dict[str, Any]
Assignments: TypeAlias = Mapping[str, Any]  # dotted keys and their values


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for each value in nested tables, such as ("a.b", 1) for {"a": {"b": 1}}."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def assigned(document: Document, assignments: Assignments) -> Document:
    """Return a copy of `document` with values set. Raise `ConfigError` if a in a key a.b is not a table."""
    changed = deepcopy(document)
    for key, value in assignments.items():
        *tables, last = key.split(".")
        table = changed
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key}: {name} is a value, and has nothing in it")
        table[last] = value
    return changed


def parsed(texts: Iterable[str]) -> dict[str, Any]:
    """Parse assignments such as `training.rate=0.1` or `sweep.seed=[1, 2]`. Return the TOML values by key.
    Texts need quotes only in lists and tables. Raise `ConfigError` for an invalid or repeated one."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--set needs KEY=VALUE, such as training.rate=0.1, not {shown(text)}")
        if key in found:
            raise ConfigError(f"--set {key} is given twice")
        found[key] = _value(key, value.strip())
    return found


def _value(key: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text.startswith(("[", "{")):
            raise ConfigError(
                f"--set {key}: {shown(text)} is no list or table as TOML writes them; texts in one need "
                """quotes, such as '["one", "two"]'"""
            ) from None
        return text
