"""Plots of results, as files that are the same whenever the results are.

    draw(Path("accuracy.svg"), lines({"FedAvg": (rounds, runs)}, Labels(x="round", y="accuracy, %")))

`lines`, `histogram`, `bars`, `scatter` and `heat` make panels; `draw` puts panels side by side.
"""

from sims.figures.canvas import Panel, draw
from sims.figures.clouds import histogram, scatter
from sims.figures.curves import lines
from sims.figures.grids import bars, heat
from sims.figures.labels import FigureError, Labels

__all__ = ["FigureError", "Labels", "Panel", "bars", "draw", "heat", "histogram", "lines", "scatter"]
