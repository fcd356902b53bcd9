"""The examples for engines run from the installed package, as a user would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from sims.records.run_directory import FINISHED
from sims.records.run_file_names import METRICS, RUN
from tests.engines.flower_rig import SuperLink, superlink
from tests.sims.deploy_site import ROOT

pytestmark = pytest.mark.slow
SITES: Final = range(1, 6)
PATIENCE: Final = 600.0


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples, outside of the repository."""
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def environment() -> dict[str, str]:
    """That of a user: modules come from the installed package alone."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run(*arguments: str, where: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def check_trained(server: Path, sites: list[Path]) -> None:
    """The run has ended, all sites have the same model, and it has learnt something."""
    assert json.loads((server / "run" / "run.json").read_text())["status"] == FINISHED
    with np.load(server / "run" / "model.npz") as archive:
        model = archive["model"]
    assert np.abs(model).max() > 0
    for site in sites:
        with np.load(site / "final.npz") as archive:
            assert np.array_equal(archive["model"], model)


def check_evaluated(where: Path) -> None:
    """The example's own evaluation finds that most test samples of every site are right."""
    text = run("../federation/evaluate.py", "federation", where=where)
    shares = [float(each) for each in re.findall(r"([0-9.]+)%", text)]
    assert len(shares) == len(SITES)
    assert min(shares) > 50


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_ray(examples: Path) -> None:
    here = examples / "ray"
    run("-m", "secagg", "simulate", "ray-rfa.toml", where=here)
    done = here / "results" / "ray-rfa"
    assert json.loads((done / RUN).read_text())["status"] == FINISHED
    rounds = [json.loads(line) for line in (done / METRICS).read_text().splitlines()]
    assert [(each["round"], each["completed"]) for each in rounds] == [(n, True) for n in range(21)]
    assert rounds[-1]["measured"]["common"]["mean_accuracy"] > 0.5
    assert "Ray" in run("-m", "secagg", "audit", "results/ray-rfa", where=here)


@pytest.mark.skipif(find_spec("nvflare") is None, reason="nvflare is not installed")
def test_nvflare(examples: Path) -> None:
    here = examples / "nvflare"
    run("../federation/prepare.py", "federation", where=here)
    run("job.py", where=here)
    federation = here / "federation"
    check_trained(federation / "server", [federation / f"site-{site}" for site in SITES])
    check_evaluated(here)


@pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed")
@pytest.mark.parametrize("insecure", [False, True], ids=["between hosts", "on one machine"])
def test_flower(examples: Path, insecure: bool) -> None:
    here = examples / "flower"
    run("../federation/prepare.py", "federation", where=here)
    federation = here / "federation"
    with superlink(here, insecure=insecure, installed=True) as link:
        sites = [start_site(link, site) for site in SITES]
        link.run_app({"scenario": str(federation / "server" / "secagg.toml")})
        for process in sites:
            assert process.wait(PATIENCE) == 0
        link.wait_for_status(federation / "server" / "run", FINISHED)
    check_trained(federation / "server", [federation / f"site-{site}" for site in SITES])
    check_evaluated(here)


def start_site(link: SuperLink, site: int) -> subprocess.Popen[bytes]:
    """Start a site as the documentation says, and register its node if the SuperLink wants that."""
    security = ["--insecure"]
    if not link.insecure:
        key = link.new_key(f"site-{site}")
        link.register(f"site-{site}", as_name=f"member-{site}")
        security = ["--root-certificates", "flower-ca.pem", "--auth-supernode-private-key", str(key)]
    config = f"federation/site-{site}/secagg.toml"
    secagg = (sys.executable, "-m", "secagg")
    return link.start(f"site-{site}", *secagg, "join", config, "--flower", link.address, *security)
