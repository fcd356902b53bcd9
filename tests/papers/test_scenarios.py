"""Every scenario of the papers runs in its quick form, on small stand-ins for the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sims.cli import main
from sims.scenario import load
from tests.papers.stand_in_data import write_all, write_models

SCENARIOS = Path(__file__).resolve().parents[2] / "papers" / "scenarios"
NAMES = sorted(path.stem for path in SCENARIOS.glob("*.toml"))
# One scenario of each paper; the others vary its settings.
ONE_OF_EACH = {
    "fedbc",
    "fedplus",
    "lpproj-synthetic",
    "partial",
    "rfa-mnist",
    "simplicial",
    "splitting-squares",
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_all(root)
    return root


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_models(tmp_path)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in ONE_OF_EACH else [pytest.mark.slow]) for each in NAMES]
)
def test_it_runs_quickly(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SCENARIOS / f"{name}.toml")
    status = main(["simulate", path, "--quick", "--json", "--data", str(data), "--out", "out"])
    out, err = capsys.readouterr()
    assert status == 0, err
    (cell,) = json.loads(out)["cells"]
    assert cell["result"]["completed"] >= 1
    assert cell["result"]["series"]
    assert not Path(f"out/{name}-quick").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_right_as_a_whole(name: str, data: Path) -> None:
    """All cells of its sweep are valid, with the files that they read."""
    found = load(SCENARIOS / f"{name}.toml", data=data)
    assert found.name == name
