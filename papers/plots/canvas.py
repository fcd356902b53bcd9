"""A figure of several panels, drawn to a file byte for byte the same every time.

The background is white and the text dark, so that it can be read on a dark page too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.plots.labels import FigureError

Panel: TypeAlias = Callable[[Axes], None]

RC: Final[dict[Any, Any]] = {
    "svg.hashsalt": "secagg",
    "svg.fonttype": "path",  # drawn letters look the same wherever fonts differ
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}
# What would tell one file from the next: when it was made, and by which release.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

_WIDTHS: Final = {1: 5.6, 2: 8.4, 3: 11.6}  # inches, by panels in a row
_HEIGHT: Final = 3.8  # inches of each row


def draw(path: Path, *panels: Panel, columns: int = 2) -> None:
    """Draw panels in rows of `columns`, as SVG or PNG by the suffix of the path.

    Panels that show the same series share one legend.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in _METADATA:
        raise FigureError(f"{path.name}: plots are drawn as .svg or .png")
    if not panels:
        raise FigureError(f"{path.name}: there is nothing to draw")
    if columns not in _WIDTHS:
        raise FigureError(f"{columns} panels in a row: take {min(_WIDTHS)} to {max(_WIDTHS)}")
    # The defaults first: what a user has configured must not change the file.
    with matplotlib.style.context(["default", RC]):
        figure = _drawn(panels, min(columns, len(panels)))
        figure.savefig(path, format=kind, dpi=144, metadata=_METADATA[kind])


def _drawn(panels: Sequence[Panel], columns: int) -> Figure:
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_WIDTHS[columns], _HEIGHT * rows), layout="constrained", facecolor="white")
    places = [figure.add_subplot(rows, columns, place) for place in range(1, len(panels) + 1)]
    for axes, panel in zip(places, panels, strict=True):
        panel(axes)
    _explain(figure, places)
    return figure


def _explain(figure: Figure, places: Sequence[Axes]) -> None:
    """Put legends below, where they cover nothing."""
    keys = [axes.get_legend_handles_labels() for axes in places]
    if len(places) > 1 and all(labels == keys[0][1] for _, labels in keys) and keys[0][1]:
        figure.legend(*keys[0], loc="outside lower center", ncols=min(4, len(keys[0][1])))
        return
    for axes, (handles, labels) in zip(places, keys, strict=True):
        if labels:
            axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
