"""Tables: with a caption, heads of rows and columns, and a value to sort by in every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sims.report import numbers
from sims.report.markup import Child, Markup, element

Tone: TypeAlias = Literal["", "good", "bad", "quiet"]
FEW: Final = 12  # rows that are shown before somebody asks for all


@dataclass(frozen=True)
class Cell:
    """`value` is what it is sorted by, if it is not its text."""

    text: str
    value: float | None = None
    tone: Tone = ""

    @property
    def is_number(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class Table:
    """The first cell of a row is its head. `folded` shows a few rows until somebody asks for all."""

    key: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    folded: bool = False
    noun: str = "rows"
    sortable: bool = True


def number(value: float | None) -> Cell:
    return Cell(numbers.plain(value), value)


def size(value: float | None) -> Cell:
    return Cell(numbers.size(value), value)


def percent(value: float | None) -> Cell:
    return Cell(numbers.percent(value), value)


def words(text: str | None) -> Cell:
    return Cell(numbers.MISSING, tone="quiet") if text is None else Cell(text)


def tabulated(table: Table) -> Markup:
    """The table, in a box that scrolls on its own where the page is narrow."""
    right = _numeric(table)
    content = element(
        "table",
        element("caption", table.caption, element("span", table.note, class_="note") if table.note else None),
        element("thead", element("tr", (_head(name, right[at]) for at, name in enumerate(table.columns)))),
        element("tbody", (_row(row, right) for row in table.rows)),
        id=table.key,
        class_="sortable" if table.sortable else None,
        data_fold=FEW if table.folded and len(table.rows) > FEW else None,
        data_noun=table.noun,
    )
    return boxed(content, table.caption)


def boxed(content: Child, label: str) -> Markup:
    """What may be wider than a phone, reachable by the keyboard to be scrolled."""
    return element("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def _numeric(table: Table) -> Sequence[bool]:
    """Columns of numbers alone, which stand to the right; heads of rows never do."""
    return [
        at > 0
        and any(row[at].is_number for row in table.rows)
        and all(row[at].is_number or row[at].text == numbers.MISSING for row in table.rows)
        for at in range(len(table.columns))
    ]


def _head(name: str, right: bool) -> Markup:
    return element("th", name, scope="col", class_="n" if right else None)


def _row(cells: Iterable[Cell], right: Sequence[bool]) -> Markup:
    return element("tr", (_cell(cell, at, right[at]) for at, cell in enumerate(cells)))


def _cell(cell: Cell, at: int, right: bool) -> Markup:
    value = None if cell.value is None else repr(round(cell.value, 9))
    style = " ".join(filter(None, ("n" if right else "", cell.tone))) or None
    if at == 0:
        return element("th", cell.text, scope="row", class_=style, data_v=value)
    return element("td", cell.text, class_=style, data_v=value)
