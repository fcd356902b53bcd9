"""Builds HTML elements and tables. Their content is escaped by default.

A page shows names, labels and error texts from untrusted files. To prevent injection of HTML, the content of
an element is escaped unless it has the type `Markup`, and only this module converts text to `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, TypeAlias

from sims import text_format

Tone: TypeAlias = Literal["", "good", "bad", "quiet"]
FEW: Final = 12  # rows that a folded table shows at first


@dataclass(frozen=True)
class TableCell:
    """A cell of a table. Rows can be sorted by the cell's `value`, or by its `text` if `value` is None."""

    text: str
    value: float | None = None
    tone: Tone = ""

    @property
    def is_number(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class ReportTable:
    """A table. The first cell of a row is the row's heading. If `folded`, only `FEW` rows show at first."""

    key: str  # its id in the page
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""
    folded: bool = False
    noun: str = "rows"  # what the rows are, for the button that unfolds them
    sortable: bool = True


def number_cell(value: float | None) -> TableCell:
    return TableCell(text_format.plain(value), value)


def size_cell(value: float | None) -> TableCell:
    return TableCell(text_format.size(value), value)


def percent_cell(value: float | None) -> TableCell:
    return TableCell(text_format.percent(value), value)


def text_cell(text: str | None) -> TableCell:
    return TableCell(text_format.MISSING, tone="quiet") if text is None else TableCell(text)


def tabulated(table: ReportTable) -> Markup:
    """Return the table as HTML, in a box that scrolls if the page is too narrow."""
    right = _numeric(table)
    heads = (
        element("th", name, scope="col", class_="n" if numeric else None)
        for name, numeric in zip(table.columns, right, strict=True)
    )
    rows = ((_cell(cell, at, right[at]) for at, cell in enumerate(row)) for row in table.rows)
    content = element(
        "table",
        element("caption", table.caption, element("span", table.note, class_="note") if table.note else None),
        element("thead", element("tr", heads)),
        element("tbody", (element("tr", row) for row in rows)),
        id=table.key,
        class_="sortable" if table.sortable else None,
        data_fold=FEW if table.folded and len(table.rows) > FEW else None,
        data_noun=table.noun,
    )
    return boxed(content, table.caption)


def boxed(content: Child, label: str) -> Markup:
    """Return the content in a box that scrolls, also by keyboard. Screen readers read `label` as its name."""
    return element("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def _numeric(table: ReportTable) -> Sequence[bool]:
    """Return, for each column, whether it has numbers and else only missing values; False for the first."""
    return [
        at > 0
        and any(row[at].is_number for row in table.rows)
        and all(row[at].is_number or row[at].text == text_format.MISSING for row in table.rows)
        for at in range(len(table.columns))
    ]


def _cell(cell: TableCell, at: int, right: bool) -> Markup:
    value = None if cell.value is None else repr(round(cell.value, 9))
    style = " ".join(filter(None, ("n" if right else "", cell.tone))) or None
    if at == 0:
        return element("th", cell.text, scope="row", class_=style, data_v=value)
    return element("td", cell.text, class_=style, data_v=value)


# Elements without content and end tag. Those of SVG end with a slash.
_VOID: Final = frozenset({"meta", "br", "hr"})
_SHAPES: Final = frozenset({"circle", "path", "rect"})


class Markup(str):
    """HTML that is inserted into a page without being escaped."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"
Value: TypeAlias = str | int | float | bool | None

NOTHING: Final = Markup("")


def element(tag: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an HTML or SVG element with the given children and attributes. In names of attributes, a
    trailing underscore is removed, and other underscores become hyphens. An attribute that is None or False
    is left out. An attribute that is True is written without a value."""
    start = f"<{tag}{''.join(_attribute(name, value) for name, value in attributes.items())}"
    if tag in _VOID or tag in _SHAPES:
        return Markup(f"{start}/>" if tag in _SHAPES else f"{start}>")
    return Markup(f"{start}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Return the concatenated children. Text is escaped unless it is `Markup`, and None is skipped."""
    return Markup("".join(map(_escaped, children)))


def verbatim(text: str) -> Markup:
    """Return trusted text, such as the style sheet, as unescaped `Markup`. Never pass data of a run."""
    return Markup(text)


def _escaped(child: Child) -> str:
    if child is None or isinstance(child, Markup):
        return child or ""
    if isinstance(child, str):
        return escape(child, quote=True)
    return joined(*child)


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    name = "viewBox" if name == "viewbox" else name
    return f" {name}" if value is True else f' {name}="{escape(_text(value), quote=True)}"'


def _text(value: str | float) -> str:
    """Return an attribute's value as text; floats, which are coordinates, have at most one decimal."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
