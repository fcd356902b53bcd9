"""Scenario files: what is simulated, in TOML. All problems are reported at once.

scenario = load(Path("robust.toml"))
scenario.variants  # one for each cell of its sweep, or one alone
"""

from sims.scenario.scenario import Scenario, Variant, check_files, load
from sims.scenario.settings import Settings

__all__ = ["Scenario", "Settings", "Variant", "check_files", "load"]
