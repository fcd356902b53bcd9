"""The example in a provisioned federation of NVFlare: one server and five sites, each with its processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from protocols.serialisation import Vector
from sims.engines.nvflare.job import SecaggRecipe
from tests.engines.nvflare_poc import SERVER, Poc, wait_until
from tests.sims.deploy_site import ROOT

pytestmark = pytest.mark.slow

SITES = [f"site-{number}" for number in range(1, 6)]
EXAMPLE = ROOT / "examples" / "federation"
ROUNDS = 10


@pytest.fixture(scope="module")
def poc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    directory = tmp_path_factory.mktemp("nvflare")
    made = Poc(directory, SITES)
    program = [sys.executable, str(EXAMPLE / "prepare.py"), "federation"]
    subprocess.run(program, cwd=directory, env=made.environment, check=True, capture_output=True)
    for name in (SERVER, *SITES):
        shutil.copytree(directory / "federation" / name, made.local(name), dirs_exist_ok=True)
    made.start_all()
    yield made
    made.end()


def job_of(poc: Poc, name: str) -> Path:
    SecaggRecipe(name, min_clients=3).export(str(poc.directory / "jobs"))
    return poc.directory / "jobs" / name


def ledger_sizes(poc: Poc) -> list[int]:
    return [(poc.local(site) / f"{site}.ledger").stat().st_size for site in SITES]


def test_a_killed_site_takes_part_again(poc: Poc) -> None:
    """RFA with noise, ten rounds. One site is killed with all its processes and started again."""
    metrics = poc.local(SERVER) / "run" / "metrics.jsonl"

    def rounds() -> int:
        """Return how many rounds are over. The first line is about the initial model."""
        return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0

    job = poc.submit(job_of(poc, "secagg"))
    wait_until(lambda: rounds() >= 2, "two rounds")
    poc.kill("site-4")
    poc.start("site-4")
    assert poc.wait_for_end(job) == "FINISHED:COMPLETED"
    sums = [json.loads(line) for line in (poc.local(SERVER) / "run" / "sums.jsonl").read_text().splitlines()]
    counts = [each["count"] for each in sums if each["entry"] == "sum"]
    assert rounds() == ROUNDS
    assert counts[-1] == len(SITES)
    check_results(poc, job)


def check_results(poc: Poc, job: str) -> None:
    """All parties have the same model, and it tells most digits apart."""
    with np.load(poc.local(SERVER) / "run" / "model.npz") as archive:
        model = archive["model"]
    for site in SITES:
        with np.load(poc.local(site) / "final.npz") as archive:
            assert np.array_equal(archive["model"], model)
    assert list(poc.download(job).rglob("model.safetensors"))
    assert accuracy(model) > 0.5


def accuracy(model: Vector) -> float:
    from fl.data.digits import digits

    samples = digits()
    inputs = np.asarray(samples.x).reshape(len(samples.y), 64)
    scores = inputs @ model[:640].reshape(10, 64).T + model[640:]
    return float((scores.argmax(axis=1) == samples.y).mean())


def test_sites_refuse_a_job_with_code_of_its_own(poc: Poc) -> None:
    job, before = job_of(poc, "code"), ledger_sizes(poc)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "mine.py").write_text("open('was_here', 'w').close()\n")
    submitted = poc.submit(job)
    assert poc.wait_for_end(submitted) == "FINISHED:FAILED_TO_RUN"
    assert poc.deployment(submitted).count("BYOC not permitted") == len(SITES)
    assert not list(poc.directory.rglob("was_here"))
    assert ledger_sizes(poc) == before


def test_a_job_cannot_give_a_site_another_configuration(poc: Poc) -> None:
    job, before = job_of(poc, "arguments"), ledger_sizes(poc)
    path = job / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["executors"][0]["executor"]["args"] = {"config": str(poc.directory / "loose.toml")}
    path.write_text(json.dumps(config))
    assert poc.wait_for_end(poc.submit(job)) != "FINISHED:COMPLETED"
    assert "unexpected keyword argument 'config'" in "".join(map(poc.output, SITES))
    assert ledger_sizes(poc) == before
