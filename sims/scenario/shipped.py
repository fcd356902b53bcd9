"""The scenarios that come with the package, by name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError, nearest
from sims.scenario.assignments import flat

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "scenarios"
_ENDING: Final = ".toml"


@dataclass(frozen=True)
class Shipped:
    """One of them, in a line.

    `purpose`  the first sentence of its file.
    `cells`    how many simulations it is, over its sweep.
    `data`     directories that it reads, within --data; none where data is in the package, or made.
    `table`    whether it is one of a paper's tables, and no example.
    """

    name: str
    purpose: str
    cells: int
    data: tuple[str, ...]
    channels: tuple[str, ...]
    table: bool
    path: Path


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in DIRECTORY.glob(f"*{_ENDING}")))


def find(given: str | Path) -> Path:
    """The file of that path, or else the shipped scenario of that name. Raises `ConfigError` for neither."""
    path = Path(given)
    if path.exists() or path.parent != Path():
        return path
    name = path.name.removesuffix(_ENDING)
    if name not in names():
        raise ConfigError(f"there is no file {path}, nor a shipped scenario of that name; {_likely(name)}")
    return DIRECTORY / f"{name}{_ENDING}"


def _likely(name: str) -> str:
    hint = nearest(name, names())
    return hint if hint.startswith("did") else "secagg scenarios lists those"


def described(name: str) -> Shipped:
    """What `secagg scenarios` says of it. Settings are counted, and not checked."""
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
    """Examples first."""
    return sorted(map(described, names()), key=lambda each: (each.table, each.name))


def purpose(text: str) -> str:
    """The first sentence of the comment that a file begins with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".") + "."


def _values(document: dict[str, Any], table: str, key: str) -> tuple[str, ...]:
    """All that a key is set to, in the file itself and in the cases of its sweep."""
    found = [document.get(table, {}).get(key)]
    for name, values in flat(document.get("sweep", {})):
        if name == f"{table}.{key}":
            found = values
        elif all(isinstance(each, dict) for each in values):
            found += _cases(values, f"{table}.{key}")
    return tuple(dict.fromkeys(str(each) for each in found if each is not None))


def _cases(values: Iterable[dict[str, Any]], key: str) -> list[Any]:
    return [dict(flat(each)).get(key) for each in values]
