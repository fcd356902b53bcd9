"""A job in NVFlare's own simulator: a process for each site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from sims.engines.nvflare.local_files import SERVER_VARIABLE, SITE_VARIABLE
from tests.engines.nvflare_cells import NvflareSite
from tests.engines.test_nvflare_contract import lines_of
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


@pytest.mark.parametrize("name", ["rfa", "fedalt"])
def test_a_simulated_job_has_the_result_of_a_simulation(tmp_path: Path, name: str) -> None:
    site = NvflareSite(tmp_path, clients=3, algorithm=lines_of(name), rounds=2)
    for member in site.clients:
        (tmp_path / f"join-{member}.toml").rename(tmp_path / f"site-{member}.toml")
    done = simulate(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    simulated = SimulatedRun(tmp_path / "train.toml")
    assert np.abs(site.model() - simulated.model).max() < CLOSE
    for member in site.clients:
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())
    results = list((tmp_path / "simulation").rglob("model.safetensors"))
    assert results
