"""Draws plots as small SVG elements, with colours from the page's style sheet.

Matplotlib is not used: its SVGs have thousands of elements, so that a dozen plots would exceed a megabyte, a
style sheet cannot change their colours for a dark page, and screen readers cannot read their letters, which
are paths. Here, colour-blind people can tell the colours apart, and dashes work without colours. Below every
plot, the page has a table of the same numbers. The attribute `data-stops` of a plot has the coordinate of
each row of this table, at which the page's script shows a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias, assert_never

from sims.report.html_elements import Markup, boxed, element, joined
from sims.report.plot_types import Plot, Series, StackedBars

WIDTH: Final = 440.0
HEIGHT: Final = 275.0
_LEFT: Final = 50.0
_RIGHT: Final = 16.0
_TOP: Final = 31.0
_BOTTOM: Final = 44.0
_ROW: Final = 44.0  # height of a bar of `StackedBars` with its name above
_BAR: Final = 16.0
_LONGEST: Final = 46  # characters of a name above a bar
_DOTS: Final = 40  # a line with at most this many values has a dot at each value


def plotted(plot: Plot) -> Markup:
    """Return the SVG of a plot: its axes, and its series as lines, steps, areas, marks or columns."""
    x, y = _scales(plot)
    return _svg(
        plot.key,
        HEIGHT,
        _grid(y, whole=plot.whole),
        _places(plot, x),
        element("text", plot.y, class_="axis", x=2.0, y=12.0),
        element("text", plot.x, class_="axis", x=WIDTH - _RIGHT, y=HEIGHT - 6, text_anchor="end"),
        (
            element("g", _shape(plot, each, x, y), class_=f"series {each.style}", data_series=each.name)
            for each in plot.series
        ),
        data_stops=_numbers(x(place) for place in plot.places),
        data_scale=f"{y.low:g} {y.high:g} {y.start:g} {y.end:g}",
        data_along="x",
    )


def stacked(stack: StackedBars) -> Markup:
    """Return the SVG of horizontal bars, one below the other, each of coloured segments."""
    height = _ROW * len(stack.rows)
    longest = max(stack.total(row) for row in range(len(stack.rows)))
    x = Scale(0.0, longest, 2.0, WIDTH - 74)
    return _svg(
        stack.key,
        height,
        (_bar(stack, row, x) for row in range(len(stack.rows))),
        data_stops=_numbers(_ROW * row + _ROW / 2 + 6 for row in range(len(stack.rows))),
        data_along="y",
    )


def key_of(series: Series) -> Markup:
    """Return the symbol of a series in the legend, as SVG."""
    solid = series.way in ("area", "columns")
    shape = (
        element("rect", x=1.0, y=3.0, width=20.0, height=9.0, rx=2.0, class_="fill")
        if solid
        else element("circle", cx=11.0, cy=7.5, r=4.0, class_="ring")
        if series.way == "marks"
        else element("path", d="M1 7.5H21", class_="line", stroke_dasharray=series.dash)
    )
    return element("svg", shape, class_=f"key {series.style}", viewbox="0 0 22 15", aria_hidden="true")


def _svg(key: str, height: float, *children: object, **attributes: str) -> Markup:
    return element(
        "svg",
        *children,  # type: ignore[arg-type]  # children are markup, or lists of it
        element("path", class_="cursor", d="M0 0"),
        element("g", class_="dots"),
        class_="plot",
        viewbox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=f"{key}-title",
        aria_describedby=f"{key}-note",
        **attributes,
    )


# --- axes ---


def _scales(plot: Plot) -> tuple[Scale, Scale]:
    values = plot.finite
    low = min([*values, *([] if plot.least is None else [plot.least])])
    high = max([*values, *([] if plot.most is None else [plot.most])])
    y = around(low, high, start=HEIGHT - _BOTTOM, end=_TOP, whole=plot.whole)
    start, end = _LEFT, WIDTH - _RIGHT
    if _columns(plot):
        half = (end - start) / (2 * len(plot.places))
        start, end = start + half, end - half
    elif plot.ticks:
        return Scale(plot.ticks[0], plot.ticks[-1], start, end), y
    first, last = plot.places[0], plot.places[-1]
    return Scale(first, last if last > first else first + 1, start, end), y


def _columns(plot: Plot) -> list[Series]:
    return [each for each in plot.series if each.way == "columns"]


def _grid(y: Scale, *, whole: bool) -> Iterator[Markup]:
    for tick in y.ticks(whole=whole):
        at = y(tick)
        yield element("path", class_="grid", d=f"M{_LEFT:g} {at:.1f}H{WIDTH - _RIGHT:g}")
        yield element("text", _short(tick), class_="tick", x=_LEFT - 7, y=at + 4, text_anchor="end")


def _places(plot: Plot, x: Scale) -> Iterator[Markup]:
    for tick in _ticks(plot, x):
        text = _short(tick)
        yield element("text", text, class_="tick", x=x(tick), y=HEIGHT - _BOTTOM + 17, text_anchor="middle")


def _ticks(plot: Plot, x: Scale) -> Sequence[float]:
    """Return the positions of ticks on the horizontal axis, at most six unless the plot sets them."""
    if plot.ticks:
        return plot.ticks
    if _columns(plot):
        return plot.places[:: -(-len(plot.places) // 6)]
    return x.ticks(6, whole=all(place.is_integer() for place in map(float, plot.places)))


def _short(value: float) -> str:
    """Return the label of a tick at `value`. From a million on, it is in millions, such as 2.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


# --- values ---


def _shape(plot: Plot, series: Series, x: Scale, y: Scale) -> Iterable[Markup]:
    points = _runs(plot.places, series.values, x, y)
    floor = y(max(y.low, 0.0)) if y.low <= 0 else y.start
    match series.way:
        case "columns":
            return _uprights(plot, series, x, y, floor)
        case "marks":
            return [element("circle", class_="ring", cx=a, cy=b, r=4.0) for run in points for a, b in run]
        case "step":
            return [_line(series, _steps(run)) for run in points]
        case "area":
            return [_area(_steps(run), floor) for run in points]
        case "line":
            return [*(_line(series, run) for run in points), *_ends(points)]
        case _:
            assert_never(series.way)


def _line(series: Series, points: Sequence[tuple[float, float]]) -> Markup:
    return element("path", class_="line", d=_path(points), stroke_dasharray=series.dash)


def _ends(runs: Sequence[Sequence[tuple[float, float]]]) -> Iterator[Markup]:
    """Yield a dot at each point of a line if these are few; otherwise only at points between two gaps."""
    few = sum(map(len, runs)) <= _DOTS
    for run in runs:
        if few or len(run) == 1:
            yield from (element("circle", class_="dot", cx=a, cy=b, r=2.6) for a, b in run)


def _area(points: Sequence[tuple[float, float]], floor: float) -> Markup:
    first, last = points[0][0], points[-1][0]
    return element(
        "path", class_="area", d=f"M{first:.1f} {floor:.1f}L{_path(points)[1:]}L{last:.1f} {floor:.1f}Z"
    )


def _uprights(plot: Plot, series: Series, x: Scale, y: Scale, floor: float) -> Iterator[Markup]:
    """Yield a rectangle for each nonzero value of a series. Columns of several series stand side by side."""
    others = _columns(plot)
    gap = (WIDTH - _RIGHT - _LEFT) / len(plot.places)
    width = gap * 0.84 / len(others)
    for place, value in zip(plot.places, series.values, strict=True):
        if value:
            left = x(place) - gap * 0.42 + width * others.index(series)
            top, bottom = sorted((y(value), floor))
            yield element(
                "rect", class_="fill", x=left, y=top, width=width, height=max(0.5, bottom - top), rx=1.5
            )


def _runs(
    places: Sequence[float], values: Sequence[float | None], x: Scale, y: Scale
) -> list[list[tuple[float, float]]]:
    """Return a series' points in pixels: a list per stretch between gaps. NaN is a gap, None is skipped."""
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in zip(places, values, strict=True):
        if value is not None and math.isfinite(value):
            runs[-1].append((x(place), y(value)))
        elif value is not None and runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a step function through the points, with steps half-way between them."""
    edges = [(a + b) / 2 for (a, _), (b, _) in pairwise(points)]
    starts, ends = [points[0][0], *edges], [*edges, points[-1][0]]
    if len(points) == 1:
        starts, ends = [points[0][0] - 3], [points[0][0] + 3]
    return [(at, y) for start, end, (_, y) in zip(starts, ends, points, strict=True) for at in (start, end)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_place(a)} {_place(b)}" for a, b in points)


def _numbers(values: Iterable[float]) -> str:
    return " ".join(map(_place, values))


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# --- bars ---


def _bar(stack: StackedBars, row: int, x: Scale) -> Markup:
    top, right = _ROW * row + 20, x(0.0)
    parts = []
    for series in stack.series:
        if value := series.values[row]:
            width = x(value) - x(0.0)
            shape = element(
                "rect", class_="fill", x=right, y=top, width=max(0.4, width - 0.8), height=_BAR, rx=1.5
            )
            parts.append(element("g", shape, class_=f"series {series.style}", data_series=series.name))
            right += width
    total = element("text", stack.form(stack.total(row)), class_="total", x=right + 6, y=top + 12.5)
    name = stack.rows[row]
    if len(name) > _LONGEST:  # to fit on a phone; the table below the plot has the whole name
        name = f"{name[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    return joined(element("text", name, class_="row", x=2.0, y=top - 5), parts, total)


_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)  # round numbers, to be multiplied by a power of ten


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to pixels: `low` is drawn at `start`, and `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6, *, whole: bool = False) -> tuple[float, ...]:
        """Return at most `most` evenly spaced round numbers within the scale; integers if `whole`."""
        step = _step((self.high - self.low) / max(1, most - 1), whole=whole)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(step * place, 12) for place in range(first, last + 1))


def around(low: float, high: float, *, start: float, end: float, whole: bool = False, most: int = 5) -> Scale:
    """Return a scale that covers `low` to `high`, ends at round numbers (integers if `whole`), and has about
    `most` ticks."""
    if high <= low:
        high = low + (1.0 if whole or low == 0 else abs(low) * 0.5)
    step = _step((high - low) / max(1, most - 1), whole=whole)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(round(low, 12), round(high, 12), start, end)


def _step(least: float, *, whole: bool) -> float:
    """Return the least of 1, 2, 2.5 or 5 times any power of ten that is >= `least`; rounded up if `whole`."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * each for each in _STEPS if power * each >= least * (1 - 1e-9))
    return max(1.0, math.ceil(step)) if whole else step


Drawable: TypeAlias = Plot | StackedBars


def figure(shown: Drawable, *, places: int) -> Markup:
    """Return the HTML of a plot at up to `places` positions, with title, note, legend and a table of its
    numbers. If there is nothing to draw, return only its title and the reason."""
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
        _number_table(shown),
        class_="figure",
        id=shown.key,
    )


def _legend(series: Sequence[Series]) -> Markup:
    """Return the legend of a plot. The page's script makes each entry a switch that hides its series."""
    entries = (
        element("li", key_of(each), element("span", each.name), data_series=each.name) for each in series
    )
    return element("ul", entries, class_="legend")


def _number_table(shown: Drawable) -> Markup:
    head = [shown.x if isinstance(shown, Plot) else "what", *(each.name for each in shown.series)]
    caption = f"The numbers of: {shown.title}"
    table = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", (element("th", name, scope="col") for name in head))),
        element("tbody", _number_rows(shown)),
        class_="numbers",
    )
    return element("details", element("summary", "The numbers"), boxed(table, caption), class_="data")


def _number_rows(shown: Drawable) -> Iterator[Markup]:
    count = len(shown.places) if isinstance(shown, Plot) else len(shown.rows)
    for at in range(count):
        name = shown.named(at) if isinstance(shown, Plot) else shown.rows[at]
        cells = (element("td", shown.form(each.values[at])) for each in shown.series)
        yield element("tr", element("th", name, scope="row"), cells)
