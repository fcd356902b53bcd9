"""No program depends on the wording of an error or of a log: with other sentences everywhere, all still work.

`reworded/sitecustomize.py` replaces the sentences in every process that has its directory on the path, worker
processes included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sims.deploy_site import CLIENTS, ROOT, Running, Site
from tests.sims.test_scenario_mistakes import BASE, MISTAKES

REWORDED = Path(__file__).resolve().parent / "reworded"
SCENARIO = """
rounds = 1
[data]
kind = "digits"
[partition]
kind = "iid"
clients = 4
[model]
kind = "softmax"
[training]
rate = 0.1
steps = 1
[algorithm]
name = "fedavg"
clip = 10.0
[channel]
kind = "processes"
workers = 2
dropout = 0.4
"""
KEYS = """
import sys
from pathlib import Path
from sims.config_problems import ConfigError
from sims.scenario import load
from sims.scenario.overrides_and_axes import parsed
from secagg.errors import LocalError
assert str(LocalError("x")) == "sentence of LocalError"
found = []
import json
for changes in json.load(sys.stdin):
    last = {each.partition("=")[0]: each for each in changes}
    try:
        load(Path("mine.toml"), parsed(last.values()), data=Path())
    except ConfigError as error:
        found.append(error.keys)
    else:
        found.append([])
print(json.dumps(found))
"""


def run(directory: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (REWORDED, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("SECAGG_DATA", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow  # starts worker processes twice
def test_a_simulation_over_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    done = run(tmp_path, "-m", "secagg", "simulate", "mine.toml", "--set", "dropout.training=0.1")
    assert done.returncode == 0, done.stderr
    assert "rounds 1 of 1" in done.stdout


def test_a_drill(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        *[
            "-m",
            "secagg",
            "drill",
            "--clients",
            "8",
            "--sums",
            "3",
            "--dim",
            "50",
            "--kill",
            "1/4",
            "--workers",
            "2",
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_serve_and_join(tmp_path: Path) -> None:
    site = Site(tmp_path)
    running = [Running(site, "serve", "serve.toml", path=(REWORDED,))]
    try:
        address = running[0].wait_for("started")["address"]
        for member in CLIENTS:
            site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
            running.append(Running(site, "join", f"join-{member}.toml", path=(REWORDED,)))
        assert running[0].wait() == 0
        assert any(entry["event"].startswith("text of ") for entry in running[0].entries)
        (name,) = os.listdir(site / "totals")
        with np.load(site / "totals" / name) as archive:
            assert set(archive) >= {"x", "n"}
    finally:
        for each in running:
            each.end()


@pytest.mark.slow  # reads all of them again
def test_mistakes_of_scenarios_name_their_keys(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(BASE)
    changes = [row[0] for row in MISTAKES]
    done = run(tmp_path, "-c", KEYS, stdin=json.dumps(changes))
    assert done.returncode == 0, done.stderr
    for row, found in zip(MISTAKES, json.loads(done.stdout), strict=True):
        assert found == [row[1]], row


def test_the_sentences_are_replaced(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", "from fl.errors import DataError; raise DataError('x')")
    assert "sentence of DataError" in done.stderr
