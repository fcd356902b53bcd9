"""The plots of the page of benchmarks, as SVG that is the same whenever the figures are.

The background is white and the text dark, so that they can be read on a dark page too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.page_measurements import Survey
from benchmarks.sums import SumReport

_Style: TypeAlias = Mapping[str, Any]
_Curve: TypeAlias = tuple[Sequence[float], Sequence[float], _Style]

_GREY: Final = "#555555"
# Colours that stay apart for the colour-blind, and marks that stay apart without colours.
_ENCODE: Final[_Style] = {"color": "#56B4E9", "marker": "s"}
_OURS: Final[_Style] = {"color": "#0072B2", "marker": "o"}
_SETUP: Final[_Style] = {"color": "#009E73", "marker": "^"}
_LIMIT: Final[_Style] = {"color": _GREY, "marker": "", "linestyle": "--"}
_FLOWER: Final[_Style] = {"color": "#D55E00", "marker": "D", "linestyle": ":"}

_SIZE: Final = (8.4, 3.8)  # inches
_RC: Final[dict[Any, Any]] = {
    "svg.hashsalt": "secagg",
    "svg.fonttype": "path",
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


def draw_all(found: Survey, path_of: Callable[[str], Path]) -> None:
    """Draw every plot, to the path for its name."""
    drawings = {"dim": _against_dim, "clients": _against_clients, "packing": _packing}
    for name, draw in drawings.items():
        with mpl.rc_context(_RC):
            figure = Figure(figsize=_SIZE, layout="constrained", facecolor="white")
            draw(found, figure)
            # A date would make every plot differ from the last one.
            figure.savefig(path_of(name), format="svg", metadata={"Date": None, "Creator": None})


def _against_dim(found: Survey, figure: Figure) -> None:
    client, server = figure.subplots(1, 2)
    reports, rows = found.by_dim, found.rows
    dims, flower_dims = [each.dim for each in reports], [row.ours.dim for row in rows]
    _draw(
        client,
        {
            "encode": (dims, [each.client_encode_cpu_s for each in reports], _ENCODE),
            "mask": (dims, [each.client_mask_cpu_s for each in reports], _OURS),
            "limit of mask": (dims, [each.client_limit_cpu_s for each in reports], _LIMIT),
            "Flower: encode and mask": (
                flower_dims,
                [row.flower.client_mask_cpu_s for row in rows],
                _FLOWER,
            ),
        },
    )
    _draw(
        server,
        {
            "unmask": (dims, [each.server_unmask_cpu_s for each in reports], _OURS),
            "limit of unmask": (dims, [each.server_limit_cpu_s for each in reports], _LIMIT),
            "Flower: unmask": (flower_dims, [row.flower.server_unmask_cpu_s for row in rows], _FLOWER),
        },
    )
    first = reports[0]
    cohort = f"{first.clients:,} clients, {first.neighbours} neighbours each"
    _label(client, f"A client of {cohort}", "elements of the vector", dims)
    _label(server, f"The server of {cohort}", "elements of the vector", dims)


def _against_clients(found: Survey, figure: Figure) -> None:
    client, server = figure.subplots(1, 2)
    reports = found.by_clients
    sizes = [each.clients for each in reports]
    _draw(
        client,
        {
            "set-up": (sizes, [each.client_setup_cpu_s for each in reports], _SETUP),
            "mask": (sizes, [each.client_mask_cpu_s for each in reports], _OURS),
        },
    )
    _draw(server, {"unmask": (sizes, [each.server_unmask_cpu_s for each in reports], _OURS)})
    client.set_yscale("linear")
    client.margins(y=0.12)
    client.set_ylim(bottom=0)
    _mark_graphs(client, reports)
    vector = f"{reports[0].dim:,} elements"
    _label(client, f"A client, {vector}; above: neighbours", "clients", sizes)
    _label(server, f"The server, {vector}", "clients", sizes)


def _mark_graphs(axes: Axes, reports: Sequence[SumReport]) -> None:
    """Write the neighbours of a client above the larger of its two costs."""
    for report in reports:
        top = 1e3 * max(report.client_setup_cpu_s, report.client_mask_cpu_s)
        axes.annotate(
            f"{report.neighbours}",
            (report.clients, top),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


def _packing(found: Survey, figure: Figure) -> None:
    axes = figure.subplots()
    bits = [each.bits for each in found.packing]
    curves = {
        "client: reduce and pack": ([each.pack_ns for each in found.packing], _OURS),
        "server: unpack and add": ([each.add_ns for each in found.packing], _SETUP),
    }
    for label, (nanoseconds, style) in curves.items():
        axes.plot(bits, nanoseconds, label=label, linewidth=0.8, **style)
    axes.set_xticks(range(0, max(bits) + 1, 8))
    axes.set_xlim(0, max(bits) + 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bits of an element")
    axes.set_ylabel("CPU nanoseconds per element")
    _explain(axes, "Packing, at every number of bits")


def _draw(axes: Axes, curves: Mapping[str, _Curve]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for label, (sizes, seconds, style) in curves.items():
        if sizes:
            axes.plot(sizes, [1e3 * each for each in seconds], label=label, **style)


def _label(axes: Axes, title: str, what: str, sizes: Sequence[int]) -> None:
    """Name the axes; the ticks are the measured sizes."""
    axes.set_xlabel(what)
    axes.set_ylabel("CPU milliseconds")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _explain(axes, title)


def _explain(axes: Axes, title: str) -> None:
    """Put the title above and the legend below, where it covers nothing."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
