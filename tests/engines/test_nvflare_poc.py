"""The example in a provisioned federation of NVFlare: one server and five sites, each with its processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from protocols.serialisation import Vector
from sims.engines.nvflare.job import SecaggRecipe
from sims.records.run_file_names import SUMS
from tests.engines.nvflare_poc import SERVER, Poc, wait_until
from tests.engines.test_training_through_engine import check_never_rejoined
from tests.sims.deploy_site import ROOT

pytestmark = pytest.mark.slow

RecordProperty: TypeAlias = Callable[[str, object], None]
SITES = [f"site-{number}" for number in range(1, 6)]
EXAMPLE = ROOT / "examples" / "federation"
ROUNDS = 10


@contextmanager
def federation(directory: Path) -> Iterator[Poc]:
    """The example's files in the startup kits. Nothing is started."""
    made = Poc(directory, SITES)
    program = [sys.executable, str(EXAMPLE / "prepare.py"), "federation"]
    subprocess.run(program, cwd=directory, env=made.environment, check=True, capture_output=True)
    for name in (SERVER, *SITES):
        shutil.copytree(directory / "federation" / name, made.local(name), dirs_exist_ok=True)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def poc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    with federation(tmp_path_factory.mktemp("nvflare")) as made:
        made.start_all()
        yield made


@dataclass(frozen=True)
class ServedRun:
    """The directory of a run at the server."""

    directory: Path

    def lines(self) -> list[str]:
        """Return what is known of the initial model, and after each round."""
        metrics = self.directory / "metrics.jsonl"
        return metrics.read_text().splitlines() if metrics.exists() else []

    def rounds(self) -> int:
        """Return how many rounds are over."""
        return max(len(self.lines()) - 1, 0)

    def sums(self) -> list[dict[str, Any]]:
        """Return the records of all sums, also of those that have failed."""
        entries = map(json.loads, (self.directory / SUMS).read_text().splitlines())
        return [each for each in entries if each["entry"] == "sum"]

    def counts(self) -> list[int | None]:
        """Return over how many sites each total was; None if there is no total."""
        return [each["count"] for each in self.sums()]

    def seconds_per_stage(self) -> float:
        """Return the median over all sums of the seconds that each of their stages took."""
        whole = [each for each in self.sums() if each["count"] is not None]
        return float(median(each["seconds"] / len(each["frames_up"]) for each in whole))

    def model(self) -> Vector:
        return model_in(self.directory / "model.npz")


def model_in(path: Path) -> Vector:
    with np.load(path) as archive:
        model: Vector = archive["model"]
    return model


def another_run(poc: Poc, name: str, rounds: int) -> ServedRun:
    """Let the parties agree on a run with other `rounds`, for a job that names the scenario `name`."""
    server = (poc.local(SERVER) / "secagg.toml").read_text()
    changed = replaced(server, {f"rounds = {ROUNDS}": f"rounds = {rounds}", 'run = "run"': f'run = "{name}"'})
    (poc.local(SERVER) / f"{name}.toml").write_text(changed)
    for site in SITES:
        local = poc.local(site)
        terms = replaced((local / "train.toml").read_text(), {f"rounds = {ROUNDS}": f"rounds = {rounds}"})
        (local / f"{name}.toml").write_text(terms)
        # The budget of the example is that of one run.
        changes = {
            '"train.toml"': f'"{name}.toml"',
            f'"{site}.state"': f'"{name}.state"',
            "max_rho = ": "max_rho = 1",
        }
        changes |= {'"final.npz"': f'"{name}.npz"'}
        config = local / "secagg.toml"
        config.write_text(replaced(config.read_text(), changes))
    return ServedRun(poc.local(SERVER) / name)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def job_of(poc: Poc, name: str, **settings: str) -> Path:
    SecaggRecipe(name, min_clients=3, **settings).export(str(poc.directory / "jobs"))
    return poc.directory / "jobs" / name


def ledger_sizes(poc: Poc) -> list[int]:
    return [(poc.local(site) / f"{site}.ledger").stat().st_size for site in SITES]


def test_a_killed_site_takes_part_again(poc: Poc, record_property: RecordProperty) -> None:
    """RFA with noise, ten rounds. One site is killed with all its processes and started again."""
    run = ServedRun(poc.local(SERVER) / "run")
    job = poc.submit(job_of(poc, "secagg"))
    wait_until(lambda: run.rounds() >= 2, "two rounds")
    poc.kill("site-4")
    poc.start("site-4")
    assert poc.wait_for_end(job) == "FINISHED:COMPLETED"
    assert run.rounds() == ROUNDS
    counts = run.counts()
    assert 4 in counts  # without the killed site
    assert None not in counts
    assert not any("refused: the cell" in poc.output(site) for site in SITES)
    assert counts[-1] == len(SITES)
    check_never_rejoined(poc.local("site-4") / "site-4.ledger")
    record_property("seconds per stage", round(run.seconds_per_stage(), 3))
    assert run.seconds_per_stage() < 1.0  # tasks would wait for task_request_interval, which is 2
    check_models(poc, run, "final.npz")
    assert list(poc.download(job).rglob("model.safetensors"))
    assert accuracy(run.model()) > 0.5


def check_models(poc: Poc, run: ServedRun, name: str) -> None:
    """All parties have the same model."""
    for site in SITES:
        assert np.array_equal(model_in(poc.local(site) / name), run.model())


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
    assert poc.deployment(submitted).count("a job may bring no code to this site") == len(SITES)
    assert not list(poc.directory.rglob("was_here"))
    assert ledger_sizes(poc) == before


def test_a_site_shows_no_file_to_an_administrator(poc: Poc) -> None:
    """NVFlare's own answer is the file. With the component of a site, no part of it knows such requests."""
    assert "service" in (poc.kit("site-1") / "startup" / "fed_client.json").read_text()
    assert poc.file_of("site-1").strip() == "invalid_request"


def test_a_job_cannot_give_a_site_another_configuration(poc: Poc) -> None:
    job, before = job_of(poc, "arguments"), ledger_sizes(poc)
    path = job / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["executors"][0]["executor"]["args"] = {"config": str(poc.directory / "loose.toml")}
    path.write_text(json.dumps(config))
    assert poc.wait_for_end(poc.submit(job)) != "FINISHED:COMPLETED"
    assert "unexpected keyword argument 'config'" in "".join(map(poc.output, SITES))
    assert ledger_sizes(poc) == before


def test_nothing_is_lost_when_the_job_process_of_a_site_is_killed(poc: Poc) -> None:
    """NVFlare fails a job if a site's process of it is killed. The next job goes on after the last round."""
    run = another_run(poc, "bereft", rounds=8)
    first = poc.submit(job_of(poc, "bereft", scenario="bereft"))
    wait_until(lambda: run.rounds() >= 1, "a round")
    poc.kill_job_process("site-2")
    assert poc.wait_for_end(first) == "FINISHED:EXECUTION_EXCEPTION"
    before = run.lines()
    assert 1 <= run.rounds() < 8
    assert poc.wait_for_end(poc.submit(poc.directory / "jobs" / "bereft")) == "FINISHED:COMPLETED"
    assert run.lines()[: len(before)] == before
    assert run.rounds() == 8
    assert run.counts()[-1] == len(SITES)
    check_models(poc, run, "bereft.npz")


def test_a_late_site_joins_a_running_job(tmp_path: Path) -> None:
    """NVFlare has deployed the job to the first four sites only."""
    with federation(tmp_path) as poc:
        run = another_run(poc, "late", rounds=30)
        poc.start_all(late=["site-5"])
        job = poc.submit(job_of(poc, "late", scenario="late"))
        wait_until(lambda: run.rounds() >= 2, "two rounds")
        poc.start("site-5")
        assert poc.wait_for_end(job) == "FINISHED:COMPLETED"
        counts = run.counts()
        assert set(counts[:6]) == {4}  # three sums in each of the first two rounds
        assert counts[-1] == len(SITES)
        check_models(poc, run, "late.npz")
