"""Ray in scenarios, where it need not be installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sims.cli import main
from sims.config_problems import ConfigError
from sims.runtime.ray import cluster
from sims.scenario.settings import ChannelSection

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


def test_nothing_imports_ray_unless_it_is_used() -> None:
    code = (
        "import sys, sims.simulation.setup, sims.sweep.run, sims.deploy.training_server\n"
        "assert 'ray' not in sys.modules, 'imported'\n"
        "import sims.runtime.ray\n"
        "assert 'ray' not in sys.modules, 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
