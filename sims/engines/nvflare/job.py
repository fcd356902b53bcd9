"""Makes jobs: for `recipe.execute(env)`, for a folder that `nvflare job submit` takes, and for `FedJob`s.

    recipe = SecaggRecipe(min_clients=3)
    recipe.execute(SimEnv(num_clients=5))     # or PocEnv, ProdEnv
    recipe.export("jobs")                     # jobs/secagg, for nvflare job submit -j

A job holds the names of two classes and of a scenario. It has no code, no keys, no data and no policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from sims.engines.nvflare.controller import TASK, SecaggController
from sims.engines.nvflare.executor import SecaggExecutor
from sims.engines.nvflare.local_files import DEFAULT_SCENARIO
from sims.engines.nvflare.startup_kit import install_in_simulation
from sims.engines.versions import check_nvflare

# Packages that server and sites have installed. NVFlare would copy them into the job, as code of its own.
_INSTALLED: Final = ["sims", "secagg", "protocols", "fl"]


def secagg_job(name: str = "secagg", *, min_clients: int = 1, scenario: str = DEFAULT_SCENARIO) -> FedJob:
    """Return a job that trains the scenario `scenario` of the server with all sites that are connected, and
    with those that come later. NVFlare aborts it when fewer than `min_clients` of its first sites are left.
    How many sites a sum needs is a matter of the scenario and of each site's policy. Raise `ConfigError` if
    the version of NVFlare is not supported."""
    check_nvflare()
    job = FedJob(name=name, min_clients=min_clients)
    job.set_app_packages(_INSTALLED)
    job.to_server(SecaggController(scenario=scenario))
    job.to_clients(SecaggExecutor(), tasks=[TASK])
    return job


class SecaggRecipe(Recipe):  # type: ignore[misc]  # NVFlare has no types
    """The job of `secagg_job`, as a recipe of NVFlare."""

    def __init__(
        self, name: str = "secagg", *, min_clients: int = 1, scenario: str = DEFAULT_SCENARIO
    ) -> None:
        super().__init__(secagg_job(name, min_clients=min_clients, scenario=scenario))

    def process_env(self, env: ExecEnv) -> None:
        """Let a simulation, which has no startup kits, use the classes of the job."""
        if isinstance(env, SimEnv):
            install_in_simulation(Path(env.workspace_root) / self.name)
