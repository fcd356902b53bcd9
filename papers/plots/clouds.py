"""Plots of single clients: histograms of their errors, and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from fl.metrics.clients import percentile
from papers.plots.canvas import Panel
from papers.plots.labels import FigureError, Labels, Look, literal, looks
from papers.plots.numbers import Numbers, line_of, same_length


def histogram(
    values: Mapping[str, ArrayLike],
    labels: Labels,
    *,
    bins: int = 20,
    mark: float | None = 90,
    names: Sequence[str] = (),
) -> Panel:
    """Plot one number for each client, by the name of the method; the y-axis is per cent of the clients.

    All methods have the same bins, from the least to the greatest value of any. `mark` is a percentile that
    is shown as a vertical line, and in the legend.
    """
    look = looks(values, names)
    numbers = {name: line_of(name, each) for name, each in values.items()}
    if bins < 1:
        raise FigureError(f"{bins} bins: give at least 1")
    edges = np.histogram_bin_edges(np.concatenate(list(numbers.values())), bins)

    def draw(axes: Axes) -> None:
        labels.put_on(axes)
        for name, each in numbers.items():
            _steps(axes, name, each, edges, look[name], mark)
        axes.set_ylim(bottom=0)

    return draw


def _steps(axes: Axes, name: str, values: Numbers, edges: Numbers, look: Look, mark: float | None) -> None:
    shares = 100 * np.histogram(values, edges)[0] / len(values)
    label = literal(name)
    if mark is not None:
        place = percentile(values, mark)
        axes.axvline(place, color=look.colour, linestyle=look.dash, linewidth=1.1)
        label = f"{label} (percentile {mark:g}: {place:.3g})"
    axes.stairs(shares, edges, fill=True, color=look.colour, alpha=0.15)
    axes.stairs(shares, edges, label=label, color=look.colour, linestyle=look.dash, linewidth=1.6)


def scatter(
    points: Mapping[str, tuple[ArrayLike, ArrayLike]], labels: Labels, *, names: Sequence[str] = ()
) -> Panel:
    """Plot points by name, each with x and y."""
    look = looks(points, names)
    pairs = {name: (line_of(name, x), line_of(name, y)) for name, (x, y) in points.items()}
    for name, (x, y) in pairs.items():
        same_length(name, x, y)

    def draw(axes: Axes) -> None:
        labels.put_on(axes)
        for name, (x, y) in pairs.items():
            axes.plot(
                x,
                y,
                label=literal(name),
                color=look[name].colour,
                marker=look[name].marker,
                linestyle="",
                # Points that lie on each other are told apart by a rim, and show through.
                alpha=0.75,
                markeredgecolor="white",
                markeredgewidth=0.4,
                markersize=6,
            )

    return draw
