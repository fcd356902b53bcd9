"""Scenario files: TOML that describes simulations. All problems of a file are reported at once.

scenario = load(Path("robust.toml"))
scenario.variants  # one for each cell of its sweep; without a sweep, one
"""

from sims.scenario.scenario import Scenario, Variant, check_files, load
from sims.scenario.settings import Settings

__all__ = ["Scenario", "Settings", "Variant", "check_files", "load"]
