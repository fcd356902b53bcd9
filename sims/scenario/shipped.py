"""Finds and describes the scenario files that come with the package."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError, nearest
from sims.scenario.overrides_and_axes import flat

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "scenarios"
_ENDING: Final = ".toml"


@dataclass(frozen=True)
class Shipped:
    """The description of a scenario that comes with the package: the number of its simulations (`cells`), the
    directories of `data` that it reads, whether it reproduces a `table` of a paper or is an example."""

    name: str
    purpose: str  # the first sentence of its file
    cells: int  # the number of simulations of its sweep
    data: tuple[str, ...]  # directories within --data that it reads; empty if it needs no files
    channels: tuple[str, ...]
    table: bool  # whether it reproduces a table of a paper; otherwise, it is an example
    path: Path


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in DIRECTORY.glob(f"*{_ENDING}")))


def find(given: str | Path) -> Path:
    """Return `given` if it exists or is a path with a directory, such as `a/b.toml`; otherwise the path of
    the shipped scenario of that name. Raise `ConfigError` if there is no such scenario."""
    path = Path(given)
    if path.exists() or path.parent != Path():
        return path
    name = path.name.removesuffix(_ENDING)
    if name not in names():
        nearest_name = nearest(name, names())
        hint = nearest_name if nearest_name.startswith("did") else "secagg scenarios lists those"
        raise ConfigError(f"there is no file {path}, nor a shipped scenario of that name; {hint}")
    return DIRECTORY / f"{name}{_ENDING}"


def described(name: str) -> Shipped:
    """Return the description of the shipped scenario `name`. Its settings are not checked."""
    path = find(name)
    text = path.read_text(encoding="utf-8")
    document = tomllib.loads(text)
    sweep = document.get("sweep", {})
    cells = 1
    for _, values in flat(sweep):
        cells *= len(values)
    return Shipped(
        path.stem,
        purpose(text),
        cells,
        _values(document, "data", "directory"),
        _values(document, "channel", "kind") or ("plain",),
        document.get("output", {}).get("keep") == "table",
        path,
    )


def all_described() -> list[Shipped]:
    """Return descriptions of all shipped scenarios: examples, then tables of papers, each sorted by name."""
    return sorted(map(described, names()), key=lambda each: (each.table, each.name))


def purpose(text: str) -> str:
    """Return the first sentence of the comment at the top of a scenario file, whose content is `text`."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".") + "."


def _values(document: dict[str, Any], table: str, key: str) -> tuple[str, ...]:
    """Return the values of the key `table.key` in a scenario (`document`), as texts: those of its sweep, if
    the sweep has this axis, or else its own value; and those that cases of other axes set."""
    found = [document.get(table, {}).get(key)]
    for name, values in flat(document.get("sweep", {})):
        if name == f"{table}.{key}":
            found = values
        elif all(isinstance(each, dict) for each in values):
            found += [dict(flat(each)).get(f"{table}.{key}") for each in values]
    return tuple(dict.fromkeys(str(each) for each in found if each is not None))
