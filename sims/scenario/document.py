"""A scenario as nested tables, addressed by dotted keys such as `training.rate`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from sims.deploy.problems import ConfigError, shown

Document: TypeAlias = dict[str, Any]
Assignments: TypeAlias = Mapping[str, Any]  # dotted keys, and what they are to be


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its dotted key. Keys may be dotted themselves."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def assigned(document: Document, assignments: Assignments) -> Document:
    """A copy with those values. Raises `ConfigError` where a key leads through something that is no table."""
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
    """Assignments such as `training.rate=0.1` or `sweep.seed=[1, 2]`, with values as TOML writes them.

    What is no value in TOML is a text, so that quotes need not be protected from a shell; but in a list or a
    table, texts need them.
    """
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
