"""Ray in scenarios, where it need not be installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from protocols.rfa import RFA
from secagg.errors import ParameterError
from sims.cli import main
from sims.config_problems import ConfigError
from sims.runtime import Setting, insecure_plain_sum
from sims.runtime.hosted_clients import WorkersFailed
from sims.runtime.ray import RayPlace, cluster
from sims.runtime.ray.cluster import Cluster
from sims.scenario.settings import ChannelSection, RaySection, Settings
from sims.simulation import setup
from sims.simulation.simulate import SimulationError, simulate
from tests.sims.audit_run import DIM, make_run

SCENARIO = "quickstart"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is not installed."""

    def found(name: str, *more: Any) -> Any:
        return None if name == "ray" else find_spec(name, *more)

    monkeypatch.setattr(cluster, "find_spec", found)


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("options", [("--set", "channel.kind=ray"), ("--jobs", "ray")])
def test_a_missing_ray_is_told_before_anything_runs(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", SCENARIO, "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert said == "secagg simulate: Ray is not installed: pip install 'secagg[ray]'\n"
    assert not (tmp_path / "out" / SCENARIO).exists()


@pytest.mark.usefixtures("missing")
def test_a_channel_without_ray_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'secagg\[ray\]'"):
        cluster.connect("local")


def test_a_directory_called_ray_is_not_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="Ray is not installed"):
        cluster.require_ray()


@pytest.mark.parametrize(
    ("node", "place", "room"),
    [
        ({"CPU": 1.0}, RayPlace(num_cpus=0.2), 5),
        ({"CPU": 4.0}, RayPlace(num_cpus=0.1), 40),
        ({"CPU": 1.0}, RayPlace(num_cpus=0.3), 3),
        ({"CPU": 8.0, "GPU": 1.0}, RayPlace(num_gpus=0.2), 5),
        ({"CPU": 8.0, "GPU": 2.0}, RayPlace(num_gpus=1 / 3), 6),
        ({"CPU": 8.0, "GPU": 2.0}, RayPlace(num_gpus=0.4), 4),  # two on each GPU
        ({"CPU": 8.0, "GPU": 3.0}, RayPlace(num_gpus=2), 1),
        ({"GPU": 1.0}, RayPlace(), 0),
    ],
)
def test_parts_of_a_cpu_or_gpu_are_counted_exactly(
    node: dict[str, float], place: RayPlace, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"Alive": True, "Resources": node}, {"Alive": False, "Resources": node}]
    monkeypatch.setattr(cluster, "import_ray", lambda: SimpleNamespace(nodes=lambda: nodes))
    assert Cluster("local", own=False).capacity(place) == room


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_cpus": 0.00001}, "num_cpus"),
        ({"num_gpus": 0.00009}, "num_gpus"),
        ({"num_gpus": 1.5}, "num_gpus"),
        ({"num_cpus": -1}, "num_cpus"),
    ],
)
def test_amounts_that_ray_cannot_reserve_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RaySection.model_validate(given)


def test_amounts_that_ray_can_reserve_are_taken() -> None:
    for given in (
        {"num_cpus": 0},
        {"num_cpus": 0.0001},
        {"num_cpus": 1.5},
        {"num_gpus": 2},
        {"num_gpus": 0.25},
    ):
        RaySection.model_validate(given)


@pytest.mark.parametrize(
    ("given", "name", "plain"),
    [
        ({"kind": "plain"}, "plain", True),
        ({"kind": "secure"}, "secure", False),
        ({"kind": "ray"}, "ray-secure", False),
        ({"kind": "ray", "ray": {"kind": "plain"}}, "ray-plain", True),
    ],
)
def test_records_name_the_sums_of_a_channel(given: dict[str, Any], name: str, plain: bool) -> None:
    channel = ChannelSection.model_validate(given)
    assert (channel.name, channel.is_plain) == (name, plain)


@pytest.mark.parametrize("jobs", ["0", "257", "rays", "-1"])
def test_a_wrong_number_of_jobs_is_refused(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", SCENARIO, f"--jobs={jobs}"]) == 2
    assert "--jobs" in capsys.readouterr().err


# --- what a run says about its cluster ---

CLUSTER = {"address": "local", "ray": "2.60.0", "nodes": 1, "actors": 2}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cluster") / "run", RFA(dim=DIM, clients=6, nu=0.1, steps=3))


def with_cluster(run: Path, cluster: Any) -> Path:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "cluster": cluster}))
    return run


@pytest.mark.parametrize(
    "cluster", [{"actors": 2}, "x", {**CLUSTER, "nodes": "1"}, [], {**CLUSTER, "ray": 2}]
)
def test_a_damaged_cluster_in_a_run_is_told(
    small_run: Path, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_cluster(small_run, cluster)
    assert main(["audit", str(run)]) == 2
    said = capsys.readouterr().err
    assert f"{run}/run.json is damaged: cluster" in said
    assert "Traceback" not in said


def test_the_cluster_of_a_run_is_shown(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", str(with_cluster(small_run, CLUSTER))])
    assert "Ray 2.60.0 at local, 2 actors on 1 node" in capsys.readouterr().out


# --- channels are closed, whatever fails ---

SMALL = """
rounds = 1
[data]
kind = "digits"
[partition]
clients = 4
[model]
kind = "softmax"
[training]
rate = 0.1
steps = 1
batch = 5
[algorithm]
name = "fedavg"
clip = 1.0
[tail]
epsilon = 2.0
delta = 1e-5
bins = 4
every = 1
"""


class Connections:
    """Counts the channels of setups: how many were made and closed. Closing fails if `stubborn`."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.counts = [0, 0]
        self.stubborn = stubborn

    def made(self, given: Any, algorithm: Any, setting: Setting) -> Any:
        self.counts[0] += 1
        channel = insecure_plain_sum(algorithm, given.learners, setting)
        channel.close = self.closed  # type: ignore[method-assign]
        return channel

    def closed(self) -> None:
        self.counts[1] += 1
        if self.stubborn:
            raise WorkersFailed("it does not close")


def settings() -> Settings:
    return Settings.model_validate(tomllib.loads(SMALL))


@pytest.mark.parametrize(
    ("fails", "channels"), [("_ChannelFactory.tail", 1), ("PeriodicErrorHistogram.of", 2), ("Run", 2)]
)
def test_channels_are_closed_if_a_setup_fails(
    fails: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections()
    monkeypatch.setitem(setup._CHANNELS, "plain", connections.made)
    monkeypatch.setattr(f"sims.simulation.setup.{fails}", failing)
    with pytest.raises(ParameterError, match="it fails"):
        setup.SimulationSetup.of(settings(), Path())
    assert connections.counts == [channels, channels]


def test_channels_are_closed_if_a_simulation_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections()
    monkeypatch.setitem(setup._CHANNELS, "plain", connections.made)
    monkeypatch.setattr(sys.modules[simulate.__module__], "MetricsRecorder", failing)
    with pytest.raises(SimulationError, match="it fails"):
        simulate(settings())
    assert connections.counts == [2, 2]


def test_a_channel_that_does_not_close_leaves_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(stubborn=True)
    monkeypatch.setitem(setup._CHANNELS, "plain", connections.made)
    made = setup.SimulationSetup.of(settings(), Path())
    with pytest.raises(WorkersFailed):
        made.close()
    assert connections.counts == [2, 2]


def failing(*_: Any, **__: Any) -> Any:
    raise ParameterError("it fails")


def test_nothing_imports_ray_unless_it_is_used() -> None:
    code = (
        "import sys, sims.simulation.setup, sims.sweep.run, sims.deploy.training_server\n"
        "assert 'ray' not in sys.modules, 'imported'\n"
        "import sims.runtime.ray\n"
        "assert 'ray' not in sys.modules, 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
