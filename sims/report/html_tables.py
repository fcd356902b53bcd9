"""HTML elements that are escaped by default, and tables built from them.

A page shows names, labels and error texts from other sources. They cannot become elements: the content of an
element is escaped unless it is `Markup`, and only this module turns text into `Markup`. A table has a
caption, row and column heads, and a sort value in every cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, TypeAlias

from sims import text_format

Tone: TypeAlias = Literal["", "good", "bad", "quiet"]
FEW: Final = 12  # rows that a folded table shows


@dataclass(frozen=True)
class TableCell:
    """A cell. `value` is its sort key, if that is not its text."""

    text: str
    value: float | None = None
    tone: Tone = ""

    @property
    def is_number(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class ReportTable:
    """A table. The first cell of a row is its head. If `folded`, only a few rows are shown at first."""

    key: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""
    folded: bool = False
    noun: str = "rows"
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
    """Return the table in a box that scrolls on a narrow page."""
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
    """Return a box for wide content that can be scrolled with the keyboard."""
    return element("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def _numeric(table: ReportTable) -> Sequence[bool]:
    """Return the columns that hold only numbers, which are aligned to the right."""
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


# Elements that have no content and no end: of a page, and of a drawing, where a slash has to say so.
_VOID: Final = frozenset({"meta", "br", "hr"})
_SHAPES: Final = frozenset({"circle", "path", "rect"})


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"
Value: TypeAlias = str | int | float | bool | None

NOTHING: Final = Markup("")


def element(tag: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an element. Underscores at the end of an attribute's name are removed, others become hyphens.

    An attribute that is None or False is left out, and one that is True has no value.
    """
    start = f"<{tag}{''.join(_attribute(name, value) for name, value in attributes.items())}"
    if tag in _VOID or tag in _SHAPES:
        return Markup(f"{start}/>" if tag in _SHAPES else f"{start}>")
    return Markup(f"{start}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Join children, escaped unless they are markup. None is skipped."""
    return Markup("".join(map(_escaped, children)))


def verbatim(text: str) -> Markup:
    """Return trusted text of this package unescaped, such as its style sheet. Never for data of a run."""
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
    if value is True:
        return f" {name}"
    # A coordinate has at most one decimal.
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{escape(text, quote=True)}"'
