"""Defines the data of a plot before it is drawn: positions on the horizontal axis, and series of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

from sims import text_format

T = TypeVar("T")
# How the values of a series are drawn.
Way: TypeAlias = Literal["line", "step", "area", "marks", "columns"]
Form: TypeAlias = Callable[[float | None], str]  # formats a value for a table or a label

COLOURS: Final = 8  # number of colours in the style sheet
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Series:
    """A named series of a plot, with one value for every position on the horizontal axis. A value of None was
    not measured: a line connects its neighbours. A value that is not finite, as after training has diverged,
    is a gap in the line. `look` is a number that selects colour and dash pattern."""

    name: str
    values: tuple[float | None, ...]
    look: int = 0
    way: Way = "line"

    @property
    def style(self) -> str:
        """The CSS class that gives the series its colour."""
        return f"c{self.look % COLOURS}"

    @property
    def dash(self) -> str | None:
        """The SVG dash pattern; None for a solid line. Series of the same colour differ in the pattern."""
        return DASHES[(self.look + self.look // COLOURS) % len(DASHES)] or None


@dataclass(frozen=True)
class Plot:
    """A plot of one or more series over positions on the horizontal axis, such as rounds."""

    key: str  # the id of the plot in the page
    title: str
    note: str  # a sentence below the title
    x: str  # the label of the horizontal axis
    y: str  # the label of the vertical axis
    places: tuple[float, ...]  # the positions on the horizontal axis, in order
    series: tuple[Series, ...]
    place: str = "{}"  # the format of a position's label, such as "Round {}"
    names: tuple[str, ...] = ()  # the labels of all positions; if given, `place` is not used
    form: Form = text_format.plain  # formats a value; the text begins with a number in the unit of the axis
    least: float | None = None  # the vertical axis includes this value
    most: float | None = None  # the vertical axis includes this value
    whole: bool = False  # whether values are counts
    ticks: tuple[float, ...] = ()  # the ticks of the horizontal axis; by default, chosen from the positions
    empty: str = ""  # the reason to show if there is nothing to draw

    @property
    def drawn(self) -> bool:
        """Whether the plot has a finite value, so that it can be drawn."""
        return bool(self.finite)

    @property
    def finite(self) -> list[float]:
        """All finite values of all series."""
        each = (value for series in self.series for value in series.values)
        return [value for value in each if value is not None and math.isfinite(value)]

    def named(self, index: int) -> str:
        """Return the label of `places[index]` on the horizontal axis, such as "Round 3"."""
        return self.names[index] if self.names else self.place.format(text_format.plain(self.places[index]))

    def thinned(self, most: int) -> Plot:
        """Return the plot with at most `most` evenly spaced positions; its note says if any are left out."""
        if len(self.places) <= most:
            return self
        kept = spread(len(self.places), most)
        return replace(
            self,
            note=f"{self.note} {len(kept):,} of {len(self.places):,} places are drawn.",
            places=_at(self.places, kept),
            names=_at(self.names, kept) if self.names else (),
            series=tuple(replace(each, values=_at(each.values, kept)) for each in self.series),
        )


@dataclass(frozen=True)
class StackedBars:
    """A chart of horizontal bars, named by `rows`. Each series has the length of one segment of every bar."""

    key: str
    title: str
    note: str
    rows: tuple[str, ...]
    series: tuple[Series, ...]
    form: Form = text_format.size
    empty: str = ""

    @property
    def drawn(self) -> bool:
        return any(value for each in self.series for value in each.values)

    def total(self, row: int) -> float:
        """Return the length of the bar at index `row`: the sum of its segments."""
        return sum(each.values[row] or 0.0 for each in self.series)


def spread(count: int, most: int) -> tuple[int, ...]:
    """Return at most `most` (but 2 or more) evenly spaced indices below `count`, with the first and last."""
    if count <= most:
        return tuple(range(count))
    most = max(2, most)
    return tuple(dict.fromkeys(round(place * (count - 1) / (most - 1)) for place in range(most)))


def _at(values: Sequence[T], kept: Sequence[int]) -> tuple[T, ...]:
    return tuple(values[index] for index in kept)


Curve: TypeAlias = Mapping[float, float]  # a value by round

_ROUND: Final = "Round {}"
_NO_MEASUREMENTS: Final = "Nothing was measured in this run."


def over_rounds(
    key: str,
    title: str,
    note: str,
    y: str,
    curves: Mapping[str, Curve],
    *,
    scale: float = 1.0,
    form: Callable[[float | None], str] = text_format.plain,
    least: float | None = None,
    empty: str = _NO_MEASUREMENTS,
    order: Sequence[str] = (),
) -> Plot:
    """Return a plot, over all rounds of `curves` (name -> value by round), with one line per curve. Values
    are multiplied by `scale`. A curve's colour follows from the index of its name in `order` (default: in
    `curves`), so plots with the same `order` give a run the same colour."""
    names = list(order) or list(curves)
    places = tuple(sorted({place for curve in curves.values() for place in curve}))
    series = []
    for name, curve in curves.items():
        values = (curve.get(place) for place in places)
        scaled = tuple(None if value is None else value * scale for value in values)
        series.append(Series(name, scaled, names.index(name)))
    return Plot(
        key=key,
        title=title,
        note=note,
        x="Round",
        y=y,
        places=places,
        series=tuple(series),
        place=_ROUND,
        form=form,
        least=least,
        empty=empty,
    )
