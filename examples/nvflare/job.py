"""The job. `python job.py` simulates it, with the files that prepare.py has made in the directory federation.
`python job.py --export --export-dir jobs` writes a folder for `nvflare job submit`, jobs/secagg. There, the
parties' files are those in `local` of their startup kits."""

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
