"""Tables as plots: bars in groups, and a grid of colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from numpy.typing import ArrayLike

from papers.plots.canvas import Panel
from papers.plots.labels import FigureError, Labels, literal, looks
from papers.plots.numbers import Numbers, line_of, same_length, table_of

_GROUP = 0.82  # of the room of a group is filled by its bars
_MAP = colormaps["cividis"]  # evenly from dark to light, also for the colour-blind and in print


def bars(
    groups: Sequence[str],
    values: Mapping[str, ArrayLike],
    labels: Labels,
    *,
    errors: Mapping[str, ArrayLike] | None = None,
    published: Mapping[str, ArrayLike] | None = None,
    bottom: float = 0.0,
    names: Sequence[str] = (),
) -> Panel:
    """Plot a bar in each group for each name, with whiskers of `errors`, and a line at the `published`.

    NaN leaves a gap, and bars below 0 point down. Another `bottom` makes small differences visible: say so
    where the plot is shown.
    """
    look = looks(values, names)
    heights = _of_groups(groups, values)
    whiskers, lines = _of_groups(groups, errors or {}), _of_groups(groups, published or {})
    if strangers := [name for name in (*whiskers, *lines) if name not in heights]:
        raise FigureError(f"{strangers} have no bars")
    width = _GROUP / len(heights)
    starts = np.arange(len(groups)) - _GROUP / 2
    places = {name: starts + (index + 0.5) * width for index, name in enumerate(heights)}
    least = min(float(np.nanmin(each)) for each in (*heights.values(), *lines.values()))
    if bottom > least and bottom != 0:
        raise FigureError(f"{least:g} would not be seen above {bottom:g}: lower the bottom")

    def draw(axes: Axes) -> None:
        labels.put_on(axes)
        for name, height in heights.items():
            _bars(axes, places[name], height, 0.92 * width, bottom, literal(name), look[name].colour)
        for name, half in whiskers.items():
            axes.errorbar(
                places[name], heights[name], half, fmt="none", ecolor="#222222", elinewidth=1, capsize=2
            )
        for name, line in lines.items():
            _published(axes, places[name], line, width, first=name == next(iter(lines)))
        axes.set_xticks(range(len(groups)), [literal(group) for group in groups])
        axes.grid(visible=False, axis="x")
        if bottom <= least:
            axes.set_ylim(bottom=bottom)

    return draw


def _of_groups(groups: Sequence[str], values: Mapping[str, ArrayLike]) -> dict[str, Numbers]:
    numbers = {name: line_of(name, each, gaps=True) for name, each in values.items()}
    for name, each in numbers.items():
        same_length(f"groups and {name}", np.arange(len(groups)), each)
    return numbers


def _bars(
    axes: Axes, places: Numbers, heights: Numbers, width: float, bottom: float, label: str, colour: str
) -> None:
    there = np.isfinite(heights)
    axes.bar(
        places[there],
        heights[there] - bottom,
        width,
        bottom,
        label=label,
        color=colour,
        edgecolor="#222222",
        linewidth=0.5,
    )


def _published(axes: Axes, places: Numbers, values: Numbers, width: float, *, first: bool) -> None:
    # White below black is seen on a bar of any colour, and beside it.
    for colour, thick, order, label in (
        ("white", 3.4, 4, ""),
        ("black", 1.6, 5, "published" if first else ""),
    ):
        axes.errorbar(
            places,
            values,
            xerr=width / 2,
            fmt="none",
            ecolor=colour,
            elinewidth=thick,
            zorder=order,
            label=label,
        )


def heat(
    values: ArrayLike,
    labels: Labels,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    what: str,
    digits: int = 1,
) -> Panel:
    """Plot a colour and the number for every row and column; the first row is on top. NaN leaves a gap.

    `what` labels the scale of colours.
    """
    if not rows or not columns:
        raise FigureError("give at least one row and one column")
    table = table_of(what, values, len(rows), len(columns))
    scale = Normalize(float(np.nanmin(table)), float(np.nanmax(table)))

    def draw(axes: Axes) -> None:
        labels.put_on(axes)
        axes.grid(visible=False)
        # Drawn as shapes, not as an embedded picture, so that it is sharp at every size.
        mesh = axes.pcolormesh(
            np.ma.masked_invalid(table), cmap=_MAP, norm=scale, edgecolors="white", linewidth=1
        )
        for row, column in np.argwhere(np.isfinite(table)):
            _number(axes, row, column, table[row, column], scale, digits)
        axes.set_xticks(np.arange(len(columns)) + 0.5, [literal(each) for each in columns])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [literal(each) for each in rows])
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.figure.colorbar(mesh, ax=axes, label=literal(what))

    return draw


def _number(axes: Axes, row: int, column: int, value: float, scale: Normalize, digits: int) -> None:
    """Write dark on light colours, and light on dark ones."""
    red, green, blue, _ = _MAP(scale(value))
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    axes.text(
        column + 0.5,
        row + 0.5,
        f"{value:.{digits}f}",
        ha="center",
        va="center",
        color="black" if light else "white",
    )
