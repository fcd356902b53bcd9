"""Loads a scenario file, makes the settings of every cell of its sweep, and reports all problems."""

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
from sims.imported_object import is_reference, search_modules_in
from sims.scenario.overrides_and_axes import (
    Assignments,
    Axis,
    Choice,
    Document,
    assigned,
    axes,
    combinations,
    flat,
)
from sims.scenario.settings import NO_DATA, Settings

_AXIS: Final = "sweep."
_QUICK_ROUNDS: Final = 2
_MOST_VARIANTS: Final = 100_000
# Increment this if the same settings give new results (as after a new default): old cells then run again.
FORMAT: Final = 1
_DIGITS: Final = 20
_OF_DATA: Final = ("data", "partition")  # tables that describe the data of a simulation
_ASIDE: Final = {"output", "audit", "insecure_seed"}  # settings that are not part of a digest

# A function that adds the problems of settings, after pydantic has checked tables, keys and basic types.
Check = Callable[[Settings, Problems], None]


@dataclass(frozen=True)
class Variant:
    """One simulation of a scenario: a cell of its sweep. `key` maps swept settings to this cell's values."""

    key: Mapping[str, Any]
    settings: Settings

    @cached_property
    def digest(self) -> str:
        """Return a hash of the settings that the results depend on. Settings with default values are left
        out, so that results stay valid when keys are added later. Settings that only say which files are kept
        and what is audited are left out, too."""
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
    """Return the settings that results depend on, by table, without default values. `insecure_seed` is among
    them, as False, if the seed does not determine keys and noise."""
    found = settings.model_dump(mode="json", exclude_defaults=True, exclude=_ASIDE)
    return found if settings.seeded else {**found, "insecure_seed": False}


@dataclass(frozen=True)
class Scenario:
    """A loaded scenario. `variants` are the simulations of its sweep. Results are stored under `name`."""

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
    with_data: bool = True,
) -> Scenario:
    """Return the scenario in the TOML file `path`. Raise a `ConfigError` that lists all problems, if any.

    `changes`  settings by dotted key, which override the file. A key such as `sweep.seed` replaces the values
               of an axis of the sweep, or selects values by their labels. Other keys must not override what
               a labelled value sets, because its label would become wrong.
    `quick`    use only the first value of every axis, at most two rounds, and the settings in `[quick]`.
    `check`    checks the settings of every variant; by default, their kinds and then their consistency.
    `data`     contains the directories of data sets; if None, files are not checked.
    `with_data`  if False, the tables of the data set are not read and may be missing.

    Modules of the user's own code are looked for in the directory of `path`, too.
    """
    changes = {} if changes is None else changes
    swept = {key.removeprefix(_AXIS): value for key, value in changes.items() if key.startswith(_AXIS)}
    fixed = {key: value for key, value in changes.items() if not key.startswith(_AXIS)}
    document, problems = toml_tables(path), Problems(path)
    document.pop("deploy", None)  # for `secagg serve`, which checks it (`sims.deploy.config`)
    if not with_data:
        for table in _OF_DATA:
            document.pop(table, None)
    name = _name(fixed.pop("name", document.pop("name", path.stem)), problems)
    few = _quick(document, problems, quick=quick)
    found = axes(document.pop("sweep", {}), problems, swept)
    _check_labels(found, fixed, problems)
    problems.check()
    fixed = {**few, **fixed}
    found = _varied(found, fixed, quick=quick)
    variants = _variants(
        path, assigned(document, fixed), found, fixed, _checks(path, check, data, with_data=with_data)
    )
    return Scenario(name if not quick else f"{name}-quick", path, variants)


def _checks(path: Path, check: Check | None, data: Path | None, *, with_data: bool) -> Check:
    """Return a function that runs `check` (or the default) and, with `data`, also checks that files exist."""

    def all_checks(settings: Settings, problems: Problems) -> None:
        if is_reference(settings.model.kind) or is_reference(settings.data.kind):
            search_modules_in(path.parent)
        if with_data and settings.data == NO_DATA:
            problems.add("data", "is missing")
        if check is None:
            from sims.scenario import consistency_checks, kind_parameters

            kind_parameters.check(settings, problems)
            consistency_checks.check(settings, problems)
        else:
            check(settings, problems)
        if data is not None:
            from sims.scenario import data_and_model_checks

            data_and_model_checks.check_files(settings, data, problems)

    return all_checks


def check_files(scenario: Scenario, variants: Iterable[Settings], data: Path) -> None:
    """Raise `ConfigError` if files of data sets (in `data`) or initial models of `variants` are missing."""
    from sims.scenario import data_and_model_checks

    faults = _Faults(scenario.path)
    for settings in variants:
        faults.problems({}, partial(data_and_model_checks.check_files, settings, data))
    faults.check(1)


def _name(name: object, problems: Problems) -> str:
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        problems.add("name", f"must be a text that can be the name of a file, not {shown(name)}")
        return ""
    return name


def _quick(document: Document, problems: Problems, *, quick: bool) -> Assignments:
    """Remove the table `[quick]` from the document. If not `quick`, return {}; else the settings of the table
    by dotted key and, if `rounds` is not among them, the document's `rounds`, limited to two."""
    table = document.pop("quick", {})
    if not isinstance(table, Mapping):
        problems.add("quick", f"must be a table, not {shown(table)}")
        return {}
    if not quick:
        return {}
    rounds = document.get("rounds", _QUICK_ROUNDS)  # The key is missing if the sweep sets it.
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
    """Return the axes of a sweep, with values overridden by the settings `fixed`, so that the keys of cells
    show the values in use. Values that become equal are joined. If `quick`, keep each axis's first value."""
    return tuple(Axis(axis.name, _left(axis.choices[:1] if quick else axis.choices, fixed)) for axis in found)


def _left(choices: Sequence[Choice], fixed: Assignments) -> tuple[Choice, ...]:
    changed = (choice.changed(fixed) for choice in choices)
    return tuple({repr(choice): choice for choice in changed}.values())


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
    """Collects the problems of all cells of a sweep. A problem that several cells have is reported once."""

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
        """Collect the problems that `find` adds for one cell of a sweep. `key` has its swept values."""
        problems = Problems(self._path)
        find(problems)
        for each in problems.found:
            self._found.setdefault(each, []).append(described(key))

    def same(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        """Add the problem that two cells have equal settings. Only the first such pair is reported."""
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
    """Return `problem`. If fewer than `variants` cells have it, add the first of `cells` to its text."""
    return problem if len(cells) >= variants else replace(problem, why=f"{problem.why} (in {cells[0]})")


def described(key: Mapping[str, Any]) -> str:
    """Return the swept values of a cell as text, such as "seed=1, training.rate=0.1"; "" without a sweep."""
    return ", ".join(f"{name}={value}" for name, value in key.items())


_TEST: Final = ("partition", "test")
_BESIDE: Final = ("name", "sweep", "quick")  # keys of the file that are not settings of a simulation


def add_problems(error: ValidationError, problems: Problems) -> None:
    """Add every problem in a pydantic error, with a better text than pydantic's where this module has one."""
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
    if detail["loc"][:2] == _TEST:  # Pydantic reports one error for each type that it may have.
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
