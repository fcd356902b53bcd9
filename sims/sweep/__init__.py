"""Runs a sweep: the simulations of all cells of a scenario, one after another or in parallel. A cell is one
combination of values of the settings that the scenario varies.

    results = Results(directory, scenario.name)
    summary = run_sweep(scenario.variants, results, function=simulate, jobs=2)

The result of a finished cell is one line of a file. If the scenario is run again, after an interruption or
with more cells, only cells without a result are run.
"""

from sims.sweep.results_file import Record, Results, read_records
from sims.sweep.run import SweepSummary, run_sweep

__all__ = ["Record", "Results", "SweepSummary", "read_records", "run_sweep"]
