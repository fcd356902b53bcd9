"""Scenarios on Ray: the numbers of one process, records that name the cluster, and sweeps."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray

from sims.cli import main
from sims.config_problems import ConfigError
from sims.runtime.ray import cluster
from sims.sweep import ray_tasks
from sims.sweep.parallel_tasks import StopRequest, TaskError, TaskStopped
from sims.sweep.ray_tasks import run_ray_tasks
from tests.engines.ray_channels import QUIET

pytestmark = [*QUIET, pytest.mark.usefixtures("ray")]
SLOW = pytest.mark.slow

SCENARIO = """
name = "small"
rounds = 2
insecure_seed = true
[data]
kind = "digits"
[partition]
clients = 10
[model]
kind = "softmax"
[training]
rate = 0.1
steps = 3
batch = 10
way = "one-by-one"
[algorithm]
name = "rfa"
[channel]
kind = "ray"
workers = 2
dropout = 0.3
[channel.ray]
num_cpus = 0.25
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def simulated(scenario: Path, out: str, *changes: str, options: tuple[str, ...] = ()) -> Path:
    sets = [word for change in changes for word in ("--set", change)]
    directory = scenario.parent / out
    assert main(["simulate", str(scenario), "--out", str(directory), *sets, *options]) == 0
    return directory / "small"


def model(run: Path) -> bytes:
    with np.load(run / "model.npz") as archive:
        return bytes(archive["model"].tobytes())


@pytest.mark.parametrize("kind", ["plain", pytest.param("secure", marks=SLOW)])
def test_a_scenario_has_the_bits_of_one_process_and_names_its_cluster(
    scenario: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(scenario, "ray", f"channel.ray.kind={kind}")
    assert model(run) == model(simulated(scenario, "here", f"channel.kind={kind}"))

    facts = json.loads((run / "run.json").read_text())
    assert facts["channel"] == f"ray-{kind}"
    assert {"address", "ray", "nodes", "actors"} <= facts["cluster"].keys()
    assert facts["cluster"]["actors"] == 2
    assert (run / "ledger").exists() is (kind == "secure")
    named = f"Ray {facts['cluster']['ray']} at {facts['cluster']['address']}, 2 actors on 1 node"
    assert named in (run / "report.html").read_text()
    capsys.readouterr()
    assert main(["audit", str(run)]) == 0
    assert named in capsys.readouterr().out
    assert "cluster" not in json.loads((scenario.parent / "here/small/run.json").read_text())


@SLOW
def test_a_scenario_with_noise_drop_outs_and_a_histogram_of_errors(scenario: Path) -> None:
    """Two channels, one of which reserves the CPUs."""
    changes = (
        "dropout.training=0.1",
        "tail={epsilon=2.0, delta=1e-5, bins=4, every=1}",
        "privacy={epsilon=50.0, delta=1e-5, dropouts=3}",
        "algorithm={name='fedavg', clip=1.0, weighted=false}",
        "channel.ray.num_cpus=1.0",
    )
    assert model(simulated(scenario, "ray", *changes)) == model(
        simulated(scenario, "here", *changes, "channel.kind=secure")
    )


@SLOW
def test_own_code_of_a_scenario_is_found_in_actors(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\n\ndef made():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    (scenario.parent / "own_model.py").write_text(code)
    monkeypatch.syspath_prepend(str(scenario.parent))
    run = simulated(scenario, "ray", "model.kind='own_model:made'")
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


# --- sweeps ---


def work(task: Any, report: Any) -> Any:
    """A task: a number of steps, or what to do instead."""
    if task == "fails":
        raise TaskError("it cannot")
    if task == "dies":
        import os

        os._exit(3)
    if task == "unsendable":
        return threading.Lock()
    if isinstance(task, Path):
        while not task.exists():
            report(0)
            time.sleep(0.01)
        return 0
    for step in range(task):
        if report(step):
            raise TaskStopped
    return task * task


def test_tasks_that_fail_or_die_do_not_affect_the_others() -> None:
    seen: list[tuple[int, int]] = []
    done = list(run_ray_tasks(work, [2, "fails", "dies", 3], "local", lambda *each: seen.append(each)))
    outcomes = {each.index: each for each in done}
    assert (outcomes[0].result, outcomes[3].result) == (4, 9)
    assert outcomes[1].failure == "it cannot"
    assert "its process ended" in str(outcomes[2].failure)
    assert {index for index, _ in seen} <= {0, 3}


def test_a_request_to_stop_reaches_running_tasks_and_starts_no_other() -> None:
    stopping = StopRequest()
    tasks = [10**9] * 40
    done = list(run_ray_tasks(work, tasks, "local", lambda *_: stopping.want(), stopping))
    assert done
    assert all(each.stopped for each in done)
    assert len(done) < len(tasks)


@SLOW
def test_progress_goes_on_when_the_actor_for_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards: list[Any] = []
    new_board = ray_tasks._RayTasks._new_board

    def made(self: Any) -> Any:
        boards.append(new_board(self))
        return boards[-1]

    def on_progress(_index: int, _steps: int) -> None:
        if boards:
            ray.kill(boards.pop(), no_restart=False)
        else:
            done.touch()

    monkeypatch.setattr(ray_tasks._RayTasks, "_new_board", made)
    done = tmp_path / "done"
    assert [each.failure for each in run_ray_tasks(work, [done], "local", on_progress)] == [None]


@pytest.mark.parametrize(
    ("target", "name", "value", "said"),
    [
        (Path, "cwd", lambda: Path("/nowhere/at/all"), "has no directory /nowhere/at/all (No such"),
        (ray_tasks, "source_digest", lambda: "another", "the nodes have another secagg than this process"),
    ],
)
def test_a_node_that_lacks_something_is_told(
    target: Any, name: str, value: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, value)
    (outcome,) = run_ray_tasks(work, [1], "local")
    assert said in str(outcome.failure)


def test_a_result_that_cannot_be_sent_is_told_in_one_line() -> None:
    (outcome,) = run_ray_tasks(work, ["unsendable"], "local")
    assert str(outcome.failure).startswith("Ray could not carry it: TypeError: ")
    assert not {"\n", "\x1b"} & set(str(outcome.failure))


def test_a_cluster_without_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.Cluster, "capacity", lambda *_: 0)
    with pytest.raises(ConfigError, match="has no CPU for a task"):
        next(run_ray_tasks(work, [1], "local"))


@SLOW
def test_a_sweep_on_ray_has_the_numbers_of_one_process(scenario: Path) -> None:
    changes = ("sweep.seed=[1, 2]", "channel.kind=plain")
    on_ray = simulated(scenario, "ray", *changes, options=("--jobs", "ray"))
    here = simulated(scenario, "here", *changes)
    for seed in (1, 2):
        assert model(on_ray / f"seed={seed}") == model(here / f"seed={seed}")


@SLOW
def test_cells_of_a_sweep_on_ray_can_have_clients_on_ray(scenario: Path) -> None:
    run = simulated(scenario, "ray", "sweep.seed=[1, 2]", options=("--jobs", "ray"))
    here = simulated(scenario, "here", "sweep.seed=[1, 2]", "channel.kind=secure")
    for seed in (1, 2):
        assert model(run / f"seed={seed}") == model(here / f"seed={seed}")
