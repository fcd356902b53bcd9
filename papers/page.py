"""The page of results: handwritten text, tables between marks, and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from sims.config_problems import ConfigError

TOPICS: Final = ("digits", "rfa", "simplicial", "fedbc", "fedplus", "splitting", "lpproj", "partial")
_MARKED: Final = re.compile(
    r"<!-- begin (?P<name>[\w-]+) -->\n(?P<table>.*?)<!-- end (?P=name) -->\n", re.DOTALL
)


class Topic(Protocol):
    """A module of this package, which turns the results of its scenarios into tables and figures."""

    def tables(self, results: Path) -> dict[str, str]:
        """Return tables in Markdown, by the names of their marks."""
        ...

    def figures(self, results: Path, out: Path) -> None:
        """Draw the figures."""
        ...


def topics() -> dict[str, Topic]:
    return {name: cast(Topic, import_module(f"papers.{name}")) for name in TOPICS}


def all_tables(results: Path) -> dict[str, str]:
    """Return the tables of all topics."""
    return {name: table for topic in topics().values() for name, table in topic.tables(results).items()}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with its current tables. Raises `ConfigError` if marks and tables do not match."""
    marks = {found["name"] for found in _MARKED.finditer(page)}
    if strangers := marks ^ set(tables):
        raise ConfigError(f"either a mark or a table is missing: {', '.join(sorted(strangers))}")

    def mended(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- begin {name} -->\n{tables[name].strip()}\n<!-- end {name} -->\n"

    return _MARKED.sub(mended, page)
