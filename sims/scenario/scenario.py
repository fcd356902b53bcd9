"""A scenario: a document, the variants that its sweep makes of it, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sims.deploy.problems import ConfigError, Problems, shown
from sims.scenario.axes import Axis, Choice, axes, combinations
from sims.scenario.document import Assignments, Document, assigned, flat, read
from sims.scenario.settings import Settings

_QUICK_ROUNDS: Final = 2
_MOST_VARIANTS: Final = 100_000

# Says what is wrong with settings that are well-formed.
Check = Callable[[Settings, Problems], None]


@dataclass(frozen=True)
class Variant:
    """One simulation of a scenario, and by which swept values it differs from the others."""

    key: Mapping[str, Any]
    settings: Settings


@dataclass(frozen=True)
class Scenario:
    """`name` is that of its results."""

    name: str
    path: Path
    variants: tuple[Variant, ...]


def load(
    path: Path, changes: Assignments | None = None, *, quick: bool = False, check: Check | None = None
) -> Scenario:
    """The scenario in a file. Raises `ConfigError` with everything that is wrong with it.

    `changes`  win over what the file and its sweep say; a key such as `sweep.seed` replaces an axis.
    `quick`    two rounds of the first value of every axis, and what `[quick]` sets: whether it works at all.
    `check`    looks at every variant's settings; by default, `sims.scenario.kinds.check`.
    """
    from sims.scenario.kinds import check as check_kinds

    changes = {} if changes is None else changes
    document = assigned(read(path), {key: value for key, value in changes.items() if _is_axis(key)})
    fixed = {key: value for key, value in changes.items() if not _is_axis(key)}
    problems = Problems(path)
    name = _name(document.pop("name", path.stem), problems)
    fixed = {**_quick(document, problems, quick=quick), **fixed}
    found = _varied(axes(document.pop("sweep", {}), problems), fixed, quick=quick)
    problems.check()
    variants = _variants(path, assigned(document, fixed), found, fixed, check or check_kinds)
    return Scenario(name if not quick else f"{name}-quick", path, variants)


def _is_axis(key: str) -> bool:
    return key.startswith("sweep.")


def _name(name: object, problems: Problems) -> str:
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        problems.add("name", f"must be a text that can be the name of a file, not {shown(name)}")
        return ""
    return name


def _quick(document: Document, problems: Problems, *, quick: bool) -> Assignments:
    """What is set for a quick run. The table is taken out of the document in any case."""
    table = document.pop("quick", {})
    if not isinstance(table, Mapping):
        problems.add("quick", f"must be a table, not {shown(table)}")
        return {}
    if not quick:
        return {}
    rounds = document.get("rounds")
    fewer = {"rounds": min(rounds, _QUICK_ROUNDS)} if isinstance(rounds, int) else {}
    return {**fewer, **dict(flat(table))}


def _varied(found: Sequence[Axis], fixed: Assignments, *, quick: bool) -> tuple[Axis, ...]:
    """The axes along which something is left to vary."""
    left = (axis for axis in found if axis.name not in fixed)
    return tuple(Axis(axis.name, axis.choices[:1]) if quick else axis for axis in left)


def _variants(
    path: Path, document: Document, found: Sequence[Axis], fixed: Assignments, check: Check
) -> tuple[Variant, ...]:
    choices = tuple(_limited(path, found))
    faults = _Faults(path)
    variants: dict[str, Variant] = {}
    for choice in choices:
        settings = faults.settings(choice.key, assigned(document, {**choice.assignments, **fixed}), check)
        if settings is not None:
            # Where a fixed key takes away what two of them differ by, one is enough.
            variants.setdefault(settings.model_dump_json(), Variant(choice.key, settings))
    faults.check(len(choices))
    return tuple(variants.values())


def _limited(path: Path, found: Sequence[Axis]) -> tuple[Choice, ...]:
    cells = 1
    for axis in found:
        cells *= len(axis.choices)
    if cells > _MOST_VARIANTS:
        raise ConfigError(f"{path}: sweep: {cells} cells are too many; at most {_MOST_VARIANTS}")
    return tuple(combinations(found))


class _Faults:
    """Gathers what is wrong, once, however many variants have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, list[str]] = {}

    def settings(self, key: Mapping[str, Any], document: Document, check: Check) -> Settings | None:
        problems = Problems(self._path)
        settings = None
        try:
            settings = Settings.model_validate(document)
        except ValidationError as error:
            problems.add_all(error, Settings)
        else:
            check(settings, problems)
        try:
            problems.check()
        except ConfigError as error:
            for line in str(error).splitlines():
                self._found.setdefault(line, []).append(described(key))
        return settings

    def check(self, variants: int) -> None:
        if self._found:
            raise ConfigError("\n".join(_line(each, cells, variants) for each, cells in self._found.items()))


def _line(line: str, cells: Sequence[str], variants: int) -> str:
    return line if len(cells) == variants else f"{line} (in {cells[0]})"


def described(key: Mapping[str, Any]) -> str:
    """A cell in words: its swept values, or nothing where there is no sweep."""
    return ", ".join(f"{name}={value}" for name, value in key.items())
