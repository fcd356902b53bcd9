"""Writes the table of all systems that the five papers name in docs/algorithms.md, from scripts/systems.toml.

python -m scripts.list_systems

How many sums a system asks for and what they reveal is taken from the algorithm that it is here.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.catalogue import find
from scripts.list_algorithms import CLIENTS, DIM, PAGE, count_of, reveals_of

SOURCE: Final = Path(__file__).with_name("systems.toml")
START, STOP = "<!-- systems -->\n", "<!-- end of systems -->\n"
PAPERS: Final[Mapping[str, str]] = {
    "plus": "Fed+",
    "talk": "talk",
    "split": "chapter",
    "proj": "lp-proj",
    "bc": "FedBC",
}
HEAD: Final = (
    "| system | named in | here | sums a round | what they reveal, or why not |\n|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class System:
    """One of them; either an `entry` of the catalogue, or a reason `why` there is none."""

    name: str
    papers: tuple[str, ...]
    entry: str | None = None
    how: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    sums: str = ""
    reveals: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if (self.entry is None) == (not self.why):
            raise ValueError(f"{self.name}: give either an entry or a reason why there is none")
        if not self.papers or not set(self.papers) <= PAPERS.keys():
            raise ValueError(f"{self.name}: papers are {', '.join(PAPERS)}")

    def row(self) -> str:
        named = ", ".join(PAPERS[each] for each in self.papers)
        cells = (self.name, named, *(self._without() if self.entry is None else self._with(self.entry)))
        return f"| {' | '.join(cells)} |\n"

    def _with(self, name: str) -> tuple[str, str, str]:
        entry = find(name)
        sums = entry.build(dim=DIM, clients=CLIENTS, **{**entry.example, **self.settings}).sums()
        here = f"`{name}`" + (f": {self.how}" if self.how else "")
        return here, count_of(sums), reveals_of(sums)

    def _without(self) -> tuple[str, str, str]:
        told = f"{self.reveals}; {self.why}" if self.reveals else self.why
        return "no", self.sums or "none", told


def systems() -> tuple[System, ...]:
    """All of them, in the order of the file."""
    with SOURCE.open("rb") as file:
        listed = tomllib.load(file)["system"]
    return tuple(System(**{**each, "papers": tuple(each["papers"])}) for each in listed)


def table() -> str:
    return HEAD + "".join(system.row() for system in systems())


def redraw(page: str) -> str:
    """The page with this table as it should be."""
    before, rest = page.split(START, 1)
    return before + START + table() + STOP + rest.split(STOP, 1)[1]


def main() -> int:
    PAGE.write_text(redraw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
