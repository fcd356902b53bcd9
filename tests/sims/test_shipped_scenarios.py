"""Every shipped scenario runs in its quick form, and needs no file that is not in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from secagg.session_params import SessionParams
from sims.cli import main
from sims.scenario import load
from sims.scenario.shipped import all_described, find, names

LONG = {"demo", "large-cohort", "processes"}  # these start processes, or train long even for two rounds
EXAMPLES = [each for each in all_described() if not each.table]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in LONG else []) for each in names()]
)
def test_it_runs_quickly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["simulate", name, "--quick", "--json", "--out", "out"])
    out, err = capsys.readouterr()
    assert status == 0, err
    (cell,) = json.loads(out)["cells"]
    assert cell["result"]["completed"] >= 1
    assert cell["result"]["series"]
    assert Path(f"out/{name}-quick").is_dir() == (name in {each.name for each in EXAMPLES})


@pytest.mark.parametrize("name", names())
def test_it_is_right_as_a_whole(name: str) -> None:
    """All cells of its sweep are valid."""
    assert load(find(name)).name == name


def test_shipped_scenarios_need_no_files() -> None:
    assert {each.name for each in EXAMPLES} == {
        "demo",
        "large-cohort",
        "malicious-server",
        "personal",
        "private",
        "processes",
        "quickstart",
        "robust",
        "tail",
    }
    assert not any(each.data for each in all_described())


def settings_of(name: str) -> dict[str, Any]:
    return load(find(name)).variants[0].settings.model_dump()


def test_the_demo_is_what_it_says() -> None:
    settings, cells = settings_of("demo"), load(find("demo")).variants
    assert (settings["partition"]["clients"], settings["attack"]["fraction"]) == (40, 0.25)
    assert (settings["dropout"]["training"], settings["channel"]["kind"]) == (0.1, "processes")
    assert settings["tail"]["epsilon"] == 4.0
    assert [each.settings.algorithm.name for each in cells] == ["fedavg", "rfa", "fedgeomed+"]


@pytest.mark.slow
def test_averages_fall_and_medians_stand(capsys: pytest.CaptureFixture[str]) -> None:
    """The story that the demo tells: here over plain sums, which give the same numbers."""
    options = ["--set", "channel.kind=plain", "--set", "output.keep=table", "--set", "evaluation.every=8"]
    assert main(["simulate", "demo", *options, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    accuracy = {
        each["cell"]["method"]: each["result"]["series"]["common_benign"]["mean_accuracy"][-1]
        for each in cells
    }
    assert accuracy["FedAvg"] < 0.3
    assert accuracy["RFA"] > 0.75
    assert accuracy["FedGeoMed+"] > 0.8


def test_a_large_cohort_is_on_a_ring() -> None:
    from secagg.graph_parameters import GraphChoice
    from secagg.topology import plan
    from secagg.trust_levels import Trust

    channel, partition = settings_of("large-cohort")["channel"], settings_of("large-cohort")["partition"]
    planned = plan(
        partition["clients"],
        SessionParams(
            trust=Trust.CURIOUS,
            corrupt=channel["corrupt"],
            dropout=channel["dropout"],
            graph=GraphChoice.AUTO,
        ),
    )
    assert planned.is_ring
    assert planned.neighbours < partition["clients"] / 3
