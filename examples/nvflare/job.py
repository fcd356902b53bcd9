"""The job. `python job.py` simulates it; `python job.py --export --export-dir jobs` writes the folder jobs/secagg
for `nvflare job submit -j jobs/secagg`. In a simulation, the files are those that prepare.py has made in the
directory federation; in a deployment, those in `local` of each startup kit."""

import os
from pathlib import Path

from nvflare.recipe import SimEnv

from sims.engines.nvflare.job import SecaggRecipe

if __name__ == "__main__":
    federation = Path("federation").resolve()
    os.environ.setdefault("SECAGG_SERVER_CONFIG", f"{federation}/server/secagg.toml")
    os.environ.setdefault("SECAGG_SITE_CONFIG", f"{federation}/{{site}}/secagg.toml")
    recipe = SecaggRecipe(min_clients=3)
    recipe.execute(SimEnv(num_clients=5, num_threads=5, workspace_root="simulation"))
