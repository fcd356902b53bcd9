"""The data of a plot before it is drawn: positions on an axis, series of values, and curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

from sims import text_format

T = TypeVar("T")
# How the values of a series are shown.
Way: TypeAlias = Literal["line", "step", "area", "marks", "columns"]
Form: TypeAlias = Callable[[float | None], str]

COLOURS: Final = 8  # of the style sheet
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Series:
    """One value for every place. None was not measured, and a line passes over it; what is not
    finite, as after training has diverged, is a gap. `look` is its place among all that are told apart.
    """

    name: str
    values: tuple[float | None, ...]
    look: int = 0
    way: Way = "line"

    @property
    def style(self) -> str:
        """The CSS class of its colour."""
        return f"c{self.look % COLOURS}"

    @property
    def dash(self) -> str | None:
        """The dash pattern. Pairs of colour and pattern repeat only after all are used."""
        return DASHES[(self.look + self.look // COLOURS) % len(DASHES)] or None


@dataclass(frozen=True)
class Plot:
    """A plot over an axis of numbers."""

    key: str  # its id in the page; `title` and `note` say what it shows
    title: str
    note: str
    x: str  # what the axes measure, as `y`
    y: str
    places: tuple[float, ...]
    series: tuple[Series, ...]
    place: str = "{}"  # a place in words, such as "Round 3"
    names: tuple[str, ...] = ()  # used instead of `place` where they are given
    form: Form = text_format.plain  # a value in words, which begins with a number in the unit of the axis
    least: float | None = None  # values that the axis reaches in any case, as `most`
    most: float | None = None
    whole: bool = False  # whether values are counts
    ticks: tuple[float, ...] = ()  # of the axis of places, where they are not to be chosen from the places
    empty: str = ""  # why there is nothing to draw

    @property
    def drawn(self) -> bool:
        return bool(self.finite)

    @property
    def finite(self) -> list[float]:
        """Return all values that can be drawn."""
        each = (value for series in self.series for value in series.values)
        return [value for value in each if value is not None and math.isfinite(value)]

    def named(self, index: int) -> str:
        """Return the label of a position."""
        return self.names[index] if self.names else self.place.format(text_format.plain(self.places[index]))

    def thinned(self, most: int) -> Plot:
        """Return the plot with about `most` positions, with both ends, and a remark if that omits some."""
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
    """Horizontal bars, each of several parts: one row for each name, one value for each part of it."""

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
        return sum(each.values[row] or 0.0 for each in self.series)


def spread(count: int, most: int) -> tuple[int, ...]:
    """Return `most` evenly spaced indices of `count`, with both ends."""
    if count <= most:
        return tuple(range(count))
    most = max(2, most)
    return tuple(dict.fromkeys(round(place * (count - 1) / (most - 1)) for place in range(most)))


def _at(values: Sequence[T], kept: Sequence[int]) -> tuple[T, ...]:
    return tuple(values[index] for index in kept)


Curve: TypeAlias = Mapping[float, float]

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
    """One line for each curve. Rounds that only some of them have are places of the others, too.

    `order` are the names of all curves of a page: with it, each looks the same in all plots.
    """
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
