"""What ``secagg simulate`` keeps of a run: files that agree with each other, and commands that go on."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from secagg.ledger import read_ledger
from secagg.noise.rho_and_epsilon import epsilon
from sims.cli import main
from sims.console_progress import ProgressLines
from sims.coordination.run_writer import as_toml
from sims.records import RunDirectory, find_runs
from sims.records.ledger_signature import verify
from sims.records.run_file_names import RUN_FILES
from sims.simulation import simulate
from sims.simulation.progress import Progress
from sims.simulation.simulate import SimulationStopped
from sims.sweep.parallel_tasks import StopRequest
from sims.sweep.run import stopped_by_signals
from tests.sims.small_runs import DOCUMENT, PRIVATE, SECURE, model, settings


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a directory of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(as_toml({**DOCUMENT, "rounds": 3}))
    return path


def command(*words: object) -> int:
    return main(["simulate", *map(str, words)])


# --- what is kept ---


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with noise and drop-outs by law, a private tail every two rounds, and canaries."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "private")
    tail = {"epsilon": 30.0, "delta": 1e-6, "bins": 4, "every": 2}
    given = settings(**{**PRIVATE, "tail": tail, "audit": {"canaries": 200}, "insecure_seed": False})
    simulate(given, directory=run)
    return run


def test_a_run_says_what_it_is(private: RunDirectory) -> None:
    facts = private.facts()
    assert (facts["status"], facts["rounds"], facts["done"], facts["insecure_seed"]) == (
        "finished",
        5,
        5,
        None,
    )
    assert (facts["channel"], facts["clients"], facts["per_round"], facts["dim"]) == ("secure", 5, 5, 650)
    assert facts["graph"]["kind"] == "complete"
    names = {path.name for path in private.path.iterdir()} - {".lock"}
    assert names == {
        "scenario.toml", "run.json", "ledger", "ledger-seal", "ledger.head", "sums.jsonl", "metrics.jsonl",
        "metrics.csv", "clients.json", "spend.json", "model.npz", "result.json", "canaries.json",
        "manifest.json",
    }  # fmt: skip


def test_sums_and_ledger_tell_the_same_story_and_the_head_is_signed(private: RunDirectory) -> None:
    reading, sums = read_ledger(private / "ledger"), private.read_lines("sums.jsonl")
    asked = [row.body for row in reading.rows if row.body["entry"] == "asked"]
    told = [line for line in sums if line["entry"] == "sum" and line["sum"] is not None]
    assert [(each["round"], each["kind"], each["roster"]) for each in asked] == [
        (line["round"], line["kind"], line["invited"]) for line in told
    ]
    released = [row.body["contributors"] for row in reading.rows if row.body["entry"] == "released"]
    assert released == [line["count"] for line in told if line["count"] is not None]
    facts = private.facts()
    found = verify(private, reading.rows, digest=facts["digest"], key=bytes.fromhex(facts["server_key"]))
    assert found.unsigned == 0
    sessions = [line["session"] for line in sums if line["entry"] == "session"]
    assert sessions == list(range(len(sessions)))


def test_metrics_add_up_the_traffic_and_the_cost_of_sums(private: RunDirectory) -> None:
    lines, sums = private.read_lines("metrics.jsonl"), private.read_lines("sums.jsonl")
    assert [line["round"] for line in lines] == list(range(6))
    for way in ("bytes_up", "bytes_down"):
        total = sum(sum(line[way].values()) for line in sums)
        assert lines[-1][way] == total > 0
    charged = dict.fromkeys(("training", "tail"), 0.0)
    for row in read_ledger(private / "ledger").rows:
        if row.body["entry"] == "asked":
            part = "training" if row.body["kind"] == "update" else "tail"
            charged[part] += row.body["charge"] / 2**40
    assert lines[-1]["rho"] == pytest.approx(sum(charged.values()), rel=1e-9)
    assert lines[-1]["epsilon"] == pytest.approx(epsilon([sum(charged.values())], delta=1e-5))
    assert lines[-1]["epsilon"] <= 50 * (1 + 1e-6)
    assert lines[-1]["tail"]["rho"] == pytest.approx(charged["tail"], rel=1e-9)


def test_metrics_as_lines_and_as_a_table_agree(private: RunDirectory) -> None:
    lines = private.read_lines("metrics.jsonl")
    with (private / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert int(row["round"]) == line["round"]
        assert float(row["rho"]) == line["rho"]
        measured = line["measured"] and line["measured"]["common"]["mean_accuracy"]
        assert row["measured.common.mean_accuracy"] == ("" if measured is None else str(measured))
        heights = line["tail"] and line["tail"]["heights"]
        assert row["tail.heights"] == ("" if heights is None else json.dumps(heights))


def test_the_private_tail_is_asked_when_it_is_due_and_within_its_budget(private: RunDirectory) -> None:
    lines = private.read_lines("metrics.jsonl")
    due = [line["round"] for line in lines if line["tail"] is not None]
    assert due == [2, 4, 5]
    tail = lines[-1]["tail"]
    assert (tail["completed"], tail["bins"], tail["delta"]) == (True, 4, 1e-6)
    assert tail["epsilon"] == pytest.approx(30, rel=1e-3)
    errors = [line for line in private.read_lines("sums.jsonl") if line.get("kind") == "errors"]
    assert [line["part"] for line in errors] == ["tail"] * 3
    # The noise hides single clients, not the histogram: it holds about as many as there are.
    assert sum(tail["heights"]) == pytest.approx(5, abs=5)
    spend = private.read_json("spend.json")
    assert spend["max_rho"] >= spend["clients"]["most"]["rho"] > tail["rho"]


def test_canaries_prove_no_more_than_is_claimed_of_every_noisy_sum(private: RunDirectory) -> None:
    found = private.read_json("canaries.json")
    kinds = [(each["part"], each["kind"]) for each in found["specs"]]
    assert kinds[0] == ("training", "update")
    assert ("tail", "errors") in kinds
    for each in found["specs"]:
        assert 0 < each["epsilon_gaussian"] <= each["epsilon"]
        assert each["runs_per_arm"] == 200


def test_the_tail_changes_nothing_about_the_training() -> None:
    tail = {"epsilon": 50.0, "delta": 1e-5, "bins": 2, "every": 1}
    plain, watched = simulate(settings()), simulate(settings(tail=tail))
    assert plain["series"] == watched["series"]


def test_a_scenario_as_it_was_run_gives_the_same_model_again(scenario: Path) -> None:
    assert command(scenario, "--set", "channel.kind=secure", "--out", "once") == 0
    assert command("once/small/scenario.toml", "--out", "again") == 0
    once, again = RunDirectory(Path("once/small")), RunDirectory(Path("again/small"))
    assert model(once) == model(again)
    assert once.facts()["digest"] == again.facts()["digest"]


def test_the_page_on_runs_names_every_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    hidden = {"ledger-wal", "ledger-shm"}  # SQLite's own, while a run goes on
    assert [name for name in RUN_FILES if f"`{name}`" not in page] == sorted(hidden, reverse=True)


# --- drop-outs by law ---


def test_who_drops_out_is_the_same_over_plain_and_secure_sums(tmp_path: Path) -> None:
    law = {"training": 0.2, "between": 0.2, "group": 0.05, "reveal": 0.1}
    algorithm, rounds = {"name": "rfa"}, 4
    sums: list[Any] = []
    for kind in ("plain", "secure"):
        run = RunDirectory(tmp_path / kind)
        channel = {**SECURE, "kind": kind}
        simulate(settings(channel=channel, dropout=law, algorithm=algorithm, rounds=rounds), directory=run)
        found = (line for line in run.read_lines("sums.jsonl") if line["entry"] == "sum")
        keys = ("round", "kind", "invited", "masked", "count", "revealed", "failure")
        sums.append([[line[key] for key in keys] for line in found])
    assert sums[0] == sums[1]
    assert any(line[3] < line[2] for line in sums[0])


# --- the command ---


def test_a_run_in_the_way_is_an_error_that_says_what_to_do(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(rounds=3)
    with pytest.raises(SimulationStopped):
        simulate(given, directory=RunDirectory(Path("results/small")), stop=lambda: True)
    assert command(scenario) == 2
    err = capsys.readouterr().err
    assert "results/small holds an unfinished run (1 of 3 rounds)" in err
    assert "--resume continues it, --restart begins anew" in err
    assert command(scenario, "--set", "seed=4", "--resume") == 2
    assert "holds a run with other settings" in capsys.readouterr().err
    checkpoint = Path("results/small/checkpoint")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-1])
    assert command(scenario, "--resume") == 2
    assert "is damaged" in capsys.readouterr().err
    checkpoint.write_bytes(whole)
    with RunDirectory(Path("results/small")).locked():
        assert command(scenario, "--resume") == 2
    assert "is in use" in capsys.readouterr().err
    assert command(scenario, "--resume") == 0
    assert "kept in results/small" in capsys.readouterr().err
    assert command(scenario, "--set", "seed=4", "--restart") == 0
    assert RunDirectory(Path("results/small")).facts()["done"] == 3
    capsys.readouterr()
    assert command(scenario) == 0  # of which there is a result, and whose directory another run has now
    err = capsys.readouterr().err
    assert "kept in" not in err
    assert "the runs of 1 of 1 cell are no longer in results/small" in err
    assert "numbers are those of results/small.jsonl; use another --out" in err


def test_a_known_run_is_shown_where_it_is_and_one_that_is_gone_is_not(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(scenario) == 0
    assert "kept in results/small: see results/small/report.html, and" in capsys.readouterr().err
    assert "<svg" in Path("results/small/report.html").read_text()
    assert command(scenario) == 0
    err = capsys.readouterr().err
    assert "already known, not run again: 1 of 1 cell" in err
    assert "kept in results/small: see results/small/report.html" in err
    Path("results/small/report.html").unlink()
    Path("results/small/report.html").mkdir()
    assert command(scenario) == 0
    err = capsys.readouterr().err
    assert "no report was written: results/small/report.html is a directory" in err
    assert "kept in results/small: see it with secagg report results/small, and" in err
    Path("results/small/run.json").write_text("[]")
    assert command(scenario) == 0
    assert "kept in" not in capsys.readouterr().err
    assert command(scenario, "--set", "partition.clients=5000", "--out", "other") == 1
    assert "kept in" not in capsys.readouterr().err


def test_a_place_where_nothing_can_be_kept_is_told_before_anything_runs(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("results").mkdir()
    Path("results/small").touch()
    assert command(scenario) == 2
    assert "results/small cannot be made: File exists" in capsys.readouterr().err


def test_every_cell_of_a_sweep_has_a_directory_and_a_table_needs_none(scenario: Path) -> None:
    assert command(scenario, "--set", "sweep.training.rate=[0.1,0.5]", "--set", "rounds=1") == 0
    assert [run.path.name for run in find_runs(Path("results/small"))] == ["rate=0.1", "rate=0.5"]
    before = {run.path: (run / "run.json").stat().st_mtime_ns for run in find_runs(Path("results/small"))}
    assert command(scenario, "--set", "sweep.training.rate=[0.1,0.5]", "--set", "rounds=1") == 0
    assert {
        run.path: (run / "run.json").stat().st_mtime_ns for run in find_runs(Path("results/small"))
    } == before
    assert command(scenario, "--set", "output.keep=table", "--out", "table") == 0
    assert os.listdir("table") == ["small.jsonl"]


def test_a_finished_run_whose_line_is_lost_is_not_run_again(scenario: Path) -> None:
    assert command(scenario) == 0
    lines = Path("results/small.jsonl").read_bytes()
    Path("results/small.jsonl").unlink()
    before = Path("results/small/run.json").stat().st_mtime_ns
    assert command(scenario) == 0
    assert Path("results/small.jsonl").read_bytes() == lines
    assert Path("results/small/run.json").stat().st_mtime_ns == before


ENDLESS = 100_000
PROGRAM = "import sys; from sims.cli import main; sys.exit(main())"


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_first_signal_finishes_the_round_and_leaves_nobody_behind(scenario: Path, jobs: int) -> None:
    scenario.write_text(as_toml({**DOCUMENT, "rounds": ENDLESS, "sweep": {"seed": [1, 2]}}))
    words = [sys.executable, "-c", PROGRAM, "simulate", str(scenario), "--jobs", str(jobs)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    first = Path("results/small/seed=1/run.json")
    while not (first.exists() and json.loads(first.read_text())["done"] >= 2):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT if jobs == 1 else signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    runs = find_runs(Path("results/small"))
    assert len(runs) == jobs
    for run in runs:
        assert run.status == "interrupted"
        assert run.facts()["done"] == len(run.read_lines("metrics.jsonl")) - 1
    assert "stopping after this round" in err
    assert f"to resume: secagg simulate {scenario} --resume" in err


def test_the_second_signal_interrupts_at_once() -> None:
    stopping, said = StopRequest(), []
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(stopping, lambda: said.append("stopping")):
        signal.raise_signal(signal.SIGINT)
        assert stopping.wanted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert said == ["stopping"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_lines_of_progress_are_few_and_say_where_a_run_is() -> None:
    said: list[str] = []
    now = iter([0.0, 5.0, 11.0, 30.0, 31.0])
    lines = ProgressLines(said.append, lambda: next(now))
    moment = Progress(
        done=2, rounds=9, sum=3, kind="step", stage="mask", survivors=38, accuracy=0.81, epsilon=1.25,
        bytes=4_500_000,
    )  # fmt: skip
    for done in (1, 2, 2, 3):
        lines(str(moment), done, 9)
    text = "round 3 of 9, sum 3 (step), mask, 38 in the last sum, accuracy 81.0%, epsilon 1.25, 4.5 MB sent"
    assert said == [f"2 of 9 rounds; {text}", f"3 of 9 rounds; {text}"]
