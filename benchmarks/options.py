"""A benchmark as the command line sees it: a name, its options, a measurement and a view."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from sims.cli.options import add_choice


class Report(Protocol):
    """The result of a benchmark."""

    def as_json(self) -> dict[str, Any]: ...


class Option(Protocol):
    """An option after the name of a benchmark."""

    @property
    def name(self) -> str: ...

    def add(self, parser: argparse.ArgumentParser) -> None: ...


@dataclass(frozen=True)
class Number:
    """A number that `parse` reads; `text` states its range."""

    name: str
    parse: Callable[[str], object]
    default: Fraction | str | None
    metavar: str
    text: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        help_text = f"{self.text} (default {self.default})"
        parser.add_argument(
            self.name, type=self.parse, default=self.default, metavar=self.metavar, help=help_text
        )


@dataclass(frozen=True)
class Choice:
    """One of a few words, the first one by default."""

    name: str
    choices: tuple[str, ...]
    text: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        add_choice(parser, self.name, self.choices, default=self.choices[0], text=self.text)


@dataclass(frozen=True)
class Flag:
    """An option without a value."""

    name: str
    text: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(self.name, action="store_true", help=f"{self.text} (default no)")


@dataclass(frozen=True)
class Benchmark:
    """A name with options, a function that measures, and one that draws the result.

    `check` raises a `LocalError` if something is missing that the benchmark needs.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    measure: Callable[[argparse.Namespace], Report]
    show: Callable[[Report], None]
    check: Callable[[], None] = lambda: None
