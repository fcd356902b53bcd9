"""Markup that is escaped unless it says that it is markup.

A page shows names, labels and error texts that somebody else chose. Here they cannot become elements:
whatever is put into an element is escaped, unless it is `Markup`, and only this module makes that of text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

# Elements that have no content and no end: of a page, and of a drawing, where a slash has to say so.
_VOID: Final = frozenset({"meta", "br", "hr"})
_SHAPES: Final = frozenset({"circle", "path", "rect"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"
Value: TypeAlias = str | int | float | bool | None

NOTHING: Final = Markup("")


def element(tag: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element. Underscores at the end of an attribute's name go, others become hyphens.

    An attribute that is None or False is left out, and one that is True has no value.
    """
    start = f"<{tag}{''.join(_attribute(name, value) for name, value in attributes.items())}"
    if tag in _VOID or tag in _SHAPES:
        return Markup(f"{start}/>" if tag in _SHAPES else f"{start}>")
    return Markup(f"{start}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """One after another, escaped unless they are markup. None is nothing."""
    return Markup("".join(map(_escaped, children)))


def verbatim(text: str) -> Markup:
    """What this package has written itself, such as its style sheet. Never for what comes from a run."""
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
    """Numbers of a drawing need one decimal at most."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
