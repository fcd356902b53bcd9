"""A figure of the page: a title, a sentence, a plot, its legend, and the numbers that it shows as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sims.report.drawing import key_of, plotted, stacked
from sims.report.markup import Markup, element
from sims.report.series import Plot, Series, Stack
from sims.report.tables import boxed

Drawable: TypeAlias = Plot | Stack


def figure(shown: Drawable, *, places: int) -> Markup:
    """With at most so many `places`: of a long run, evenly spread ones are drawn."""
    if isinstance(shown, Plot):
        shown = shown.thinned(places)
    title = element("h3", shown.title, id=f"{shown.key}-title")
    note = element("p", shown.note if shown.drawn else shown.empty, id=f"{shown.key}-note", class_="note")
    if not shown.drawn:
        return element("div", title, note, class_="figure empty")
    drawing = plotted(shown) if isinstance(shown, Plot) else stacked(shown)
    return element(
        "figure",
        element("figcaption", title, note),
        element("div", drawing, class_="canvas"),
        _legend(shown.series) if len(shown.series) > 1 else None,
        _numbers(shown),
        class_="figure",
        id=shown.key,
    )


def _legend(series: Sequence[Series]) -> Markup:
    """Names with keys; the script makes switches of them."""
    entries = (
        element("li", key_of(each), element("span", each.name), data_series=each.name) for each in series
    )
    return element("ul", entries, class_="legend")


def _numbers(shown: Drawable) -> Markup:
    head = _head(shown)
    caption = f"The numbers of: {shown.title}"
    table = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", (element("th", name, scope="col") for name in head))),
        element("tbody", _rows(shown)),
        class_="numbers",
    )
    return element("details", element("summary", "The numbers"), boxed(table, caption), class_="data")


def _head(shown: Drawable) -> list[str]:
    first = shown.x if isinstance(shown, Plot) else "what"
    return [first, *(each.name for each in shown.series)]


def _rows(shown: Drawable) -> Iterator[Markup]:
    count = len(shown.places) if isinstance(shown, Plot) else len(shown.rows)
    for at in range(count):
        name = shown.named(at) if isinstance(shown, Plot) else shown.rows[at]
        cells = (element("td", shown.form(each.values[at])) for each in shown.series)
        yield element("tr", element("th", name, scope="row"), cells)
