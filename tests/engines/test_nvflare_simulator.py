"""A job in NVFlare's own simulator: a process for each site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from secagg.ledger import read_ledger
from sims.engines.nvflare.local_files import SERVER_VARIABLE, SITE_VARIABLE
from tests.engines.nvflare_cells import NvflareSite
from tests.engines.test_nvflare_contract import ALGORITHMS, COMPARING, OneByOne
from tests.sims.deploy_site import ROOT
from tests.sims.test_training_catalogue import CLOSE
from tests.sims.training_processes import SimulatedRun

pytestmark = pytest.mark.slow

PROGRAM = """
from nvflare.recipe import SimEnv
from sims.engines.nvflare.job import SecaggRecipe

if __name__ == "__main__":
    sites = [f"site-{each}" for each in range(3)]
    SecaggRecipe().execute(SimEnv(clients=sites, num_threads=3, workspace_root="simulation"))
"""

# The budget is so large that the noise moves no count of the histogram, and so changes no model.
SIMPLICIAL = """
name = "simplicial"
clip = 10.0
loss_bound = 5.0

[privacy]
epsilon = 1e4
delta = 1e-5
dropouts = 1
ratio = 1.0
"""


def site_of(directory: Path, algorithm: str, kind: type[NvflareSite] = NvflareSite) -> NvflareSite:
    """Three sites that train with an algorithm, each with the file that the simulator's variable names."""
    site = kind(directory, clients=3, algorithm=algorithm, rounds=2)
    for member in site.clients:
        (directory / f"join-{member}.toml").rename(directory / f"site-{member}.toml")
    return site


def simulate(directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "job.py").write_text(PROGRAM)
    variables = {
        "HOME": str(directory),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        SERVER_VARIABLE: str(directory / "train.toml"),
        SITE_VARIABLE: str(directory / "{site}.toml"),
    }
    return subprocess.run(
        [sys.executable, "job.py"],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def check_run(site: NvflareSite) -> None:
    """Run the job. Every party has the model that the same scenario has over our own channel."""
    done = simulate(site.directory)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    simulated = SimulatedRun(site / "train.toml")
    assert site.model().any()  # the first model is 0
    assert np.abs(site.model() - simulated.model).max() < CLOSE
    assert simulated.personal.keys() == set(site.clients)
    for member, own in simulated.personal.items():
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())
        assert np.abs(site.model(f"personal-{member}.npz") - own).max() < CLOSE
    assert counts(site) == {len(site.clients)}  # in every sum
    assert list((site / "simulation").rglob("model.safetensors"))


def counts(site: NvflareSite) -> set[int]:
    """Return over how many sites the totals of the run were."""
    entries = map(json.loads, (site / "run" / "sums.jsonl").read_text().splitlines())
    return {each["count"] for each in entries if each["entry"] == "sum"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_simulated_job_has_the_result_of_a_simulation(tmp_path: Path, name: str) -> None:
    check_run(site_of(tmp_path, ALGORITHMS[name], OneByOne if name in COMPARING else NvflareSite))


def test_a_private_algorithm_has_the_result_of_a_simulation_and_all_sites_pay(tmp_path: Path) -> None:
    site = site_of(tmp_path, SIMPLICIAL)
    check_run(site)
    for member in site.clients:
        rows = [row.body for row in read_ledger(site / f"client-{member}.ledger").rows]
        charges = [row["charge"] for row in rows if row["entry"] == "answer"]
        # In each round, the histogram of losses has noise, and with this ratio, the updates have none.
        assert [each is not None for each in charges] == [True, False] * 2
