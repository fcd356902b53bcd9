"""Sweeps: the cells of a scenario, run one by one or side by side, and never twice.

    results = Results(directory, scenario.name)
    summary = run_sweep(cells(scenario), results, function=simulate, jobs=2)

A finished cell is a line of a file. Whoever runs the scenario again, after an interruption or with more
cells, runs what is missing.
"""

from sims.sweep.cell import Cell, cells
from sims.sweep.results import Record, Results, read_records
from sims.sweep.run import Summary, run_sweep

__all__ = ["Cell", "Record", "Results", "Summary", "cells", "read_records", "run_sweep"]
