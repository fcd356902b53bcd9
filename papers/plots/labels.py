"""The labels of a panel, and the styles that distinguish its series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, NullFormatter

Dash: TypeAlias = str | tuple[float, tuple[float, ...]]

GREY: Final = "#555555"
# Colours that stay apart for the colour-blind (Okabe and Ito, without the yellow that is lost on white).
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Marks and dashes stay apart without colours. Their numbers have no common divisor with that of the
# colours, so that looks repeat only after all pairs are used up.
_MARKERS: Final = ("o", "D", "^", "s", "v", "P", "X", "<", ">")
_DASHES: Final[tuple[Dash, ...]] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


class FigureError(ValueError):
    """The figure cannot be drawn."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a panel: its axes, its title, and which axes are logarithmic."""

    x: str
    y: str
    title: str = ""
    log: Literal["", "x", "y", "xy"] = ""

    def put_on(self, axes: Axes) -> None:
        """Label the axes. Call it before drawing, so that the scales fit."""
        axes.set_xlabel(literal(self.x))
        axes.set_ylabel(literal(self.y))
        axes.set_title(literal(self.title), fontsize=10, loc="left")
        if "x" in self.log:
            axes.set_xscale("log")
            _plain(axes.xaxis)
        if "y" in self.log:
            axes.set_yscale("log")
            _plain(axes.yaxis)


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str
    dash: Dash


def looks(shown: Iterable[str], everything: Sequence[str] = ()) -> dict[str, Look]:
    """Return the style of each name that is shown.

    `everything` are the names of a whole set of figures: with it, a name has the same style in all of them,
    even if others are missing.
    """
    names = tuple(shown)
    if not names:
        raise FigureError("there is nothing to draw: give at least one series")
    order = tuple(everything) or names
    if strangers := [name for name in names if name not in order]:
        raise FigureError(f"{strangers} are not among the names of the figures, {list(order)}")
    return {name: _look(order.index(name)) for name in names}


def literal(text: str) -> str:
    """Escape text: dollars would start a formula, and a first underscore would hide a label."""
    if text.startswith("_"):
        raise FigureError(f"{text!r} would not be shown: begin with something else than an underscore")
    return text.replace("$", r"\$")


def _look(index: int) -> Look:
    return Look(
        _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)], _DASHES[index % len(_DASHES)]
    )


def _plain(axis: Axis) -> None:
    """Show numbers such as 1,000 and 0.01 instead of powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
