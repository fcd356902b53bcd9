"""Makes an SVG file of a plot, which has its title, legend and colours without a page around it."""

from __future__ import annotations

from typing import Final

from sims.report.html_elements import Markup, element, verbatim
from sims.report.plot_types import Plot
from sims.report.svg_plots import HEIGHT, WIDTH, key_of, plotted

_TOP: Final = 52.0  # room for title and note
_ROW: Final = 19.0  # of the legend
_COLOURS: Final = ("0072b2", "c95500", "00805d", "b0508a", "6a4fb3", "8f6a00", "4a5563", "a32d3f")
_STYLE: Final = (
    "svg{font:11.5px system-ui,sans-serif;fill:#4d5a6a}.sheet{fill:#fff}"
    ".title{font-size:14px;font-weight:600;fill:#16202c}.grid{stroke:#e7ebf0}"
    ".line{fill:none;stroke:var(--c);stroke-width:2}.dot,.fill{fill:var(--c)}"
    ".cursor{visibility:hidden}.ring{fill:none;stroke:var(--c)}"
    + "".join(f".c{number}{{--c:#{colour}}}" for number, colour in enumerate(_COLOURS))
)


def standalone(plot: Plot) -> str:
    """Return the text of an SVG file with the plot; without values, with the reason why there are none."""
    rows = len(plot.series) if plot.drawn and len(plot.series) > 1 else 0
    height = _TOP + HEIGHT + _ROW * rows + 8
    return element(
        "svg",
        element("title", plot.title, id=f"{plot.key}-title"),
        element("desc", plot.note, id=f"{plot.key}-note"),
        element("style", verbatim(_STYLE)),
        element("rect", class_="sheet", width="100%", height="100%"),
        element("text", plot.title, class_="title", x=10.0, y=22.0),
        element("text", plot.note if plot.drawn else plot.empty, x=10.0, y=40.0),
        _drawn(plot) if plot.drawn else None,
        (_entry(plot, number) for number in range(rows)),
        xmlns="http://www.w3.org/2000/svg",
        viewbox=f"0 0 {WIDTH:g} {height:g}",
        width=WIDTH * 2,
    )


def _drawn(plot: Plot) -> Markup:
    return element("g", element("svg", plotted(plot), width=WIDTH, height=HEIGHT, y=_TOP))


def _entry(plot: Plot, number: int) -> Markup:
    series, y = plot.series[number], _TOP + HEIGHT + _ROW * number
    return element(
        "g",
        element("svg", key_of(series), x=10.0, y=y, width=22.0, height=15.0),
        element("text", series.name, x=40.0, y=y + 11.5),
    )
