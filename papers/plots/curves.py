"""Lines, with bands over the seeds that they are a mean of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from papers.plots.canvas import Panel
from papers.plots.labels import GREY, Labels, Look, literal, looks
from papers.plots.numbers import Numbers, line_of, runs_of

Band: TypeAlias = Literal["std", "range"]
Curve: TypeAlias = tuple[ArrayLike, ArrayLike]

_MARKS = 8  # on a line with more points, about so many of them are marked


def lines(
    series: Mapping[str, Curve],
    labels: Labels,
    *,
    band: Band = "std",
    levels: Mapping[str, float] | None = None,
    names: Sequence[str] = (),
) -> Panel:
    """Curves by name: positions, and a value for each, or one row of values for each seed.

    Several rows are drawn as their mean, in a band of one standard deviation (that of a sample) either
    way, or from the least to the greatest. Where a value is not finite, as after training has diverged,
    the line has a gap. `levels` are horizontal lines, such as published values.
    """
    look = looks(series, names)
    curves = {name: _checked(name, *curve) for name, curve in series.items()}
    marks = {name: line_of(name, [level])[0] for name, level in (levels or {}).items()}

    def draw(axes: Axes) -> None:
        labels.put_on(axes)
        for name, (positions, runs) in curves.items():
            _line(axes, name, positions, runs, look[name], band)
        for name, level in marks.items():
            axes.axhline(level, label=literal(name), color=GREY, linestyle="--", linewidth=1.1)

    return draw


def _checked(name: str, positions: ArrayLike, values: ArrayLike) -> tuple[Numbers, Numbers]:
    where = line_of(name, positions)
    return where, runs_of(name, values, len(where))


def _line(axes: Axes, name: str, positions: Numbers, runs: Numbers, look: Look, band: Band) -> None:
    if len(runs) > 1:
        low, high = _band(runs, band)
        axes.fill_between(positions, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(
        positions,
        runs.mean(axis=0),
        label=literal(name),
        color=look.colour,
        marker=look.marker,
        linestyle=look.dash,
        markevery=max(1, len(positions) // _MARKS),
    )


def _band(runs: Numbers, band: Band) -> tuple[Numbers, Numbers]:
    if band == "range":
        return np.min(runs, axis=0), np.max(runs, axis=0)
    mean, std = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    return mean - std, mean + std
