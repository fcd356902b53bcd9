"""Plots of results, as files that are the same whenever the results are.

    draw(Path("accuracy.svg"), lines({"FedAvg": (rounds, runs)}, Labels(x="round", y="accuracy, %")))

`lines`, `histogram`, `bars`, `scatter` and `heat` make panels; `draw` puts panels side by side.
"""

from papers.plots.canvas import Panel, draw
from papers.plots.clouds import histogram, scatter
from papers.plots.curves import lines
from papers.plots.grids import bars, heat
from papers.plots.labels import FigureError, Labels

__all__ = ["FigureError", "Labels", "Panel", "bars", "draw", "heat", "histogram", "lines", "scatter"]
