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
    """The description of a scenario that comes with the package."""

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
    """Return `given` if the file exists or a directory is part of it, otherwise the path of the shipped
    scenario with that name. Raise `ConfigError` if there is no such scenario."""
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
    """Return the descriptions of all shipped scenarios, sorted by name, but examples first."""
    return sorted(map(described, names()), key=lambda each: (each.table, each.name))


def purpose(text: str) -> str:
    """Return the first sentence of the comment at the top of a scenario file with this text."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".") + "."


def _values(document: dict[str, Any], table: str, key: str) -> tuple[str, ...]:
    """Return all values that the document and its sweep give to the key `table.key`."""
    found = [document.get(table, {}).get(key)]
    for name, values in flat(document.get("sweep", {})):
        if name == f"{table}.{key}":
            found = values
        elif all(isinstance(each, dict) for each in values):
            found += [dict(flat(each)).get(f"{table}.{key}") for each in values]
    return tuple(dict.fromkeys(str(each) for each in found if each is not None))
