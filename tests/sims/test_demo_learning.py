"""The second act of ``secagg demo``: what it tells is what its runs have kept."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sims.cli import main
from sims.console_progress import Console
from sims.demo.training_result_and_text import (
    TrainingOutcome,
    TrainingSetting,
    free_directory,
    outcome,
    runs_in,
    show,
)
from sims.records import RunDirectory


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The act in its quick form: two rounds among few clients, in real processes."""
    out = tmp_path_factory.mktemp("demo")
    assert main(["demo", "--only", "learning", "--quick", "--out", str(out)]) == 0
    return out / "demo-1" / "demo-quick"


def test_it_leaves_a_report_beside_its_runs(played: Path) -> None:
    page = (played / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert [each.facts()["channel"] for each in runs_in(played)] == ["processes"]


def test_what_is_told_of_a_run_is_what_it_kept(played: Path) -> None:
    (run,) = runs_in(played)
    told, facts, last = outcome(run), run.facts(), run.read_lines("metrics.jsonl")[-1]
    assert told.label == "FedAvg"
    assert told.common == last["measured"]["common_benign"]["mean_accuracy"]
    assert (told.completed, told.rounds) == (2, 2)
    assert told.sums == 3  # one a round, and the histogram
    assert told.bytes_up * facts["clients"] == pytest.approx(last["bytes_up"])
    assert told.epsilon == pytest.approx(20.0, rel=1e-3)


def test_it_ends_with_a_table_the_price_and_the_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, played: Path
) -> None:
    """Played from what the first time has left, as if it had just been simulated."""

    def simulated(argv: list[str]) -> int:
        Path(argv[3]).mkdir(parents=True)
        (Path(argv[3]) / "demo-quick").symlink_to(played)
        sys.stdout.write("a table of many lines")
        return 0

    monkeypatch.setattr("sims.cli.main", simulated)
    assert main(["demo", "--only", "learning", "--quick", "--out", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    text = " ".join(out.split())
    assert "a table of many lines" not in text
    assert re.search(r"FedAvg \d+\.\d % \d+\.\d %", text)
    assert "No epsilon holds" in text
    assert "20.00" in text
    assert f"{tmp_path}/demo-1/demo-quick/report.html" in out


def test_what_goes_wrong_in_a_run_is_the_end_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sims.cli.main", lambda argv: 130)
    assert main(["demo", "--only", "learning", "--out", str(tmp_path)]) == 130
    assert "The whole report" not in capsys.readouterr().out


def test_a_demo_never_touches_what_another_has_left(tmp_path: Path) -> None:
    assert free_directory(tmp_path).name == "demo-1"
    (tmp_path / "demo-1").mkdir()
    assert free_directory(tmp_path).name == "demo-2"


def test_without_noise_nothing_is_said_to_be_private(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    bare = TrainingOutcome("FedAvg", 0.5, 0.5, 2, 2, 2, (3, 4), 1e6, 1e6, None, None, None)
    show(Console(), TrainingSetting(4, 1, 10, "curious_server", 3), [bare], tmp_path / "report.html")
    text = " ".join(capsys.readouterr().out.split())
    assert "nothing here is differentially private" in text
    assert "50.0 % 50.0 % - 2 of 2 2 3 to 4 1.00" in text


def test_a_run_in_which_nothing_was_released(tmp_path: Path, played: Path) -> None:
    (source,) = runs_in(played)
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    facts: dict[str, Any] = {**source.facts(), "cell": {}}
    run.write_json("run.json", facts)
    lines = [{**line, "completed": False, "tail": None} for line in source.read_lines("metrics.jsonl")]
    sums = [{**line, "count": None} for line in source.read_lines("sums.jsonl")]
    for name, content in (("metrics.jsonl", lines), ("sums.jsonl", sums)):
        (run / name).write_text("".join(json.dumps(each) + "\n" for each in content))
    told = outcome(run)
    assert (told.label, told.completed, told.sums, told.contributors) == ("fedavg", 0, 0, (0, 0))
    assert (told.tail, told.epsilon) == (None, None)
