"""Loads a scenario: its document, the variants of its sweep, and their problems."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails

from sims.config_problems import ConfigError, Problem, Problems, shown, toml_tables
from sims.scenario.assignments import Assignments, Axis, Choice, Document, assigned, axes, combinations, flat
from sims.scenario.settings import Settings

_AXIS: Final = "sweep."
_QUICK_ROUNDS: Final = 2
_MOST_VARIANTS: Final = 100_000
# Raise this if the same settings give other numbers than before, for example after a new default: cells with
# old results then run again.
FORMAT: Final = 1
_DIGITS: Final = 20
_ASIDE: Final = {"output", "audit", "insecure_seed"}

# Adds the problems of well-formed settings.
Check = Callable[[Settings, Problems], None]


@dataclass(frozen=True)
class Variant:
    """One simulation of a scenario: a cell of its sweep. `key` holds the swept values."""

    key: Mapping[str, Any]
    settings: Settings

    @cached_property
    def digest(self) -> str:
        """Identifies everything that its numbers depend on; independent of names and of other cells.

        Defaults are left out, so that results stay valid when keys are added later. So are settings that
        only decide what is kept and audited.
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
    """Return the settings that numbers depend on, and whether the seed does not decide them all."""
    found = settings.model_dump(mode="json", exclude_defaults=True, exclude=_ASIDE)
    return found if settings.seeded else {**found, "insecure_seed": False}


@dataclass(frozen=True)
class Scenario:
    """A loaded scenario. `name` is the name of its results."""

    name: str
    path: Path
    variants: tuple[Variant, ...]


def load(
    path: Path,
    changes: Assignments | None = None,
    *,
    quick: bool = False,
    check: Check | None = None,
    data: Path | None = None,
) -> Scenario:
    """Load the scenario in a file. Raises `ConfigError` with all its problems.

    `changes`  override the file and its sweep; a key such as `sweep.seed` replaces an axis, or chooses from
               its cases by their labels. Keys that a labelled case sets cannot be changed otherwise, because
               the label would become wrong.
    `quick`    two rounds with the first value of every axis and the settings of `[quick]`, as a test.
    `check`    checks the settings of every variant; by default, `sims.scenario.kinds.check`.
    `data`     where directories of data are; if None, files are not checked.
    """
    changes = {} if changes is None else changes
    swept = {key.removeprefix(_AXIS): value for key, value in changes.items() if key.startswith(_AXIS)}
    fixed = {key: value for key, value in changes.items() if not key.startswith(_AXIS)}
    document, problems = toml_tables(path), Problems(path)
    written = document.pop("name", path.stem)
    name = _name(fixed.pop("name", written), problems)
    few = _quick(document, problems, quick=quick)
    found = axes(document.pop("sweep", {}), problems, swept)
    _check_labels(found, fixed, problems)
    problems.check()
    fixed = {**few, **fixed}
    found = _varied(found, fixed, quick=quick)
    variants = _variants(path, assigned(document, fixed), found, fixed, _checks(check, data))
    return Scenario(name if not quick else f"{name}-quick", path, variants)


def _checks(check: Check | None, data: Path | None) -> Check:
    """Return the check of a variant's settings."""
    from sims.scenario.kinds import check as check_kinds

    first = check or check_kinds
    if data is None:
        return first

    def both(settings: Settings, problems: Problems) -> None:
        from sims.scenario.data_and_model import check_files

        first(settings, problems)
        check_files(settings, data, problems)

    return both


def check_files(scenario: Scenario, variants: Iterable[Settings], data: Path) -> None:
    """Raise `ConfigError` unless all files are there that these variants of a scenario read."""
    from sims.scenario import data_and_model

    faults = _Faults(scenario.path)
    for settings in variants:
        faults.problems({}, partial(data_and_model.check_files, settings, data))
    faults.check(1)


def _name(name: object, problems: Problems) -> str:
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        problems.add("name", f"must be a text that can be the name of a file, not {shown(name)}")
        return ""
    return name


def _quick(document: Document, problems: Problems, *, quick: bool) -> Assignments:
    """Remove the table of quick settings from the document, and return it if `quick` is set."""
    table = document.pop("quick", {})
    if not isinstance(table, Mapping):
        problems.add("quick", f"must be a table, not {shown(table)}")
        return {}
    if not quick:
        return {}
    rounds = document.get("rounds", _QUICK_ROUNDS)  # which may also be for the sweep to say
    fewer = {"rounds": min(rounds, _QUICK_ROUNDS)} if isinstance(rounds, int) else {}
    return {**fewer, **dict(flat(table))}


def _check_labels(found: Sequence[Axis], fixed: Assignments, problems: Problems) -> None:
    for axis in found:
        labelled = [choice for choice in axis.choices if choice.labelled]
        touched = dict.fromkeys(key for choice in labelled for key in choice.touched(fixed))
        for key in touched:
            example = next(iter(labelled[0].key.values()))
            problems.add(
                key,
                f"is set by cases of sweep.{axis.name}, whose labels would be wrong: choose from them, "
                f"such as --set 'sweep.{axis.name}={example}'",
            )


def _varied(found: Sequence[Axis], fixed: Assignments, *, quick: bool) -> tuple[Axis, ...]:
    """Return the axes with fixed values in place of those they vary, so that cells have correct names."""
    axes = []
    for axis in found:
        changed = [choice.changed(fixed) for choice in (axis.choices[:1] if quick else axis.choices)]
        axes.append(Axis(axis.name, tuple({repr(choice): choice for choice in changed}.values())))
    return tuple(axes)


def _variants(
    path: Path, document: Document, found: Sequence[Axis], fixed: Assignments, check: Check
) -> tuple[Variant, ...]:
    choices = tuple(_limited(path, found))
    faults = _Faults(path)
    variants: dict[str, Variant] = {}
    for choice in choices:
        settings = faults.settings(choice.key, assigned(document, {**choice.assignments, **fixed}), check)
        if settings is None:
            continue
        # A fixed key may make two variants equal.
        first = variants.setdefault(settings.model_dump_json(), Variant(choice.key, settings))
        if first.key != choice.key:
            faults.same(first.key, choice.key)
    faults.check(len(choices))
    return tuple(variants.values())


def _limited(path: Path, found: Sequence[Axis]) -> tuple[Choice, ...]:
    cells = 1
    for axis in found:
        cells *= len(axis.choices)
    if cells > _MOST_VARIANTS:
        raise ConfigError.listing(
            [Problem(path, "sweep", f"{cells} cells are too many; at most {_MOST_VARIANTS}")]
        )
    return tuple(combinations(found))


class _Faults:
    """Collects the problems of all variants. A problem that many variants have is reported once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[Problem, list[str]] = {}
        self._same: Problem | None = None

    def settings(self, key: Mapping[str, Any], document: Document, check: Check) -> Settings | None:
        try:
            settings = Settings.model_validate(document)
        except ValidationError as error:
            self.problems(key, partial(add_problems, error))
            return None
        self.problems(key, partial(check, settings))
        return settings

    def problems(self, key: Mapping[str, Any], find: Callable[[Problems], None]) -> None:
        """Collect what `find` adds about the variant of that key."""
        problems = Problems(self._path)
        find(problems)
        for each in problems.found:
            self._found.setdefault(each, []).append(described(key))

    def same(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        """Add that two cells are equal. Only the first pair is reported."""
        if self._same is None:
            self._same = Problem(
                self._path, "sweep", f"{described(first)} and {described(second)} are the same"
            )

    def check(self, variants: int) -> None:
        problems = [_located(each, cells, variants) for each, cells in self._found.items()]
        if self._same is not None:
            problems.append(self._same)
        if problems:
            raise ConfigError.listing(problems)


def _located(problem: Problem, cells: Sequence[str], variants: int) -> Problem:
    """Return the problem with its first cell in the text, unless all variants have it."""
    return problem if len(cells) >= variants else replace(problem, why=f"{problem.why} (in {cells[0]})")


def described(key: Mapping[str, Any]) -> str:
    """Return the swept values of a cell as text, empty without a sweep."""
    return ", ".join(f"{name}={value}" for name, value in key.items())


_TEST: Final = ("partition", "test")
_BESIDE: Final = ("name", "sweep", "quick")  # of the file, and not of one simulation


def add_problems(error: ValidationError, problems: Problems) -> None:
    """Add every problem that pydantic found."""
    others: list[InitErrorDetails] = []
    seen: set[str] = set()
    for detail in error.errors(include_url=False):
        why = _why(detail)
        if why is None:
            others.append(_again(detail))
            continue
        key = ".".join(_key(detail).split(".")[:2])
        if key not in seen:
            seen.add(key)
            problems.add(key, why)
    if others:
        problems.add_all(ValidationError.from_exception_data(error.title, others), Settings)


def _why(detail: ErrorDetails) -> str | None:
    if detail["loc"][:2] == _TEST:  # one error for each of the types that it may have
        return f'must be a part of all, from 0 to below 1, or "given", not {shown(detail["input"])}'
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(_key(detail), (*Settings.model_fields, *_BESIDE), n=1)
        if _key(detail) in _BESIDE:
            return "is of the whole file, and cannot be changed from outside or by a sweep"
        return f"is not known here; did you mean {close[0]}?" if close and close[0] in _BESIDE else None
    if detail["type"] == "list_type":
        given = detail["input"]
        example = f'"{given}"' if isinstance(given, str) else shown(given)
        return f"must be a list, such as [{example}], not {shown(given)}"
    return None


def _key(detail: ErrorDetails) -> str:
    return ".".join(map(str, detail["loc"]))


def _again(detail: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(
        type=detail["type"], loc=detail["loc"], input=detail["input"], ctx=detail.get("ctx", {})
    )
