"""Sweeps: run the cells of a scenario, one after another or in parallel, each of them once.

    results = Results(directory, scenario.name)
    summary = run_sweep(scenario.variants, results, function=simulate, jobs=2)

A finished cell is a line of a file. Running the scenario again, after an interruption or with more cells,
runs what is missing.
"""

from sims.sweep.results import Record, Results, read_records
from sims.sweep.run import SweepSummary, run_sweep

__all__ = ["Record", "Results", "SweepSummary", "read_records", "run_sweep"]
