"""Loads scenario files: TOML that describes simulations. All problems of a file are reported at once.

scenario = load(Path("robust.toml"))
scenario.variants  # one simulation per combination of swept settings; without a sweep, a single one
"""

from sims.scenario.loading_and_variants import Scenario, Variant, check_files, load
from sims.scenario.settings import Settings

__all__ = ["Scenario", "Settings", "Variant", "check_files", "load"]
