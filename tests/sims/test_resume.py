"""Runs that are cut off: at any moment, and under a seed they end with the very same model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secagg.ledger import read_ledger
from sims.records import RunDirectory
from sims.simulation import simulate
from sims.simulation.simulate import SimulationError, SimulationStopped
from tests.sims.small_runs import PRIVATE, SECURE, Gone, after, crash, model, settings

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, secure": {"channel": SECURE, "dropout": {"training": 0.1, "reveal": 0.1}},
    "rfa, secure": {
        "algorithm": {"name": "rfa"},
        "channel": SECURE,
        "dropout": {"training": 0.1, "group": 0.03},
        "rounds": 4,
    },
    "fedgeomed+": {"algorithm": {"name": "fedgeomed+"}, "rounds": 4},
    "fedgeomed+, secure": {"algorithm": {"name": "fedgeomed+"}, "channel": SECURE},
    "scaffold": {"algorithm": {"name": "scaffold", "clip": 10.0}, "evaluation": {"every": 2, "what": "both"}},
    "an optimiser": {"server": {"kind": "adam", "rate": 0.05}, "rounds": 4},
    "noise, secure": PRIVATE,
    "simplicial with noise": {
        "algorithm": {"name": "simplicial", "clip": 1.0, "loss_bound": 5.0},
        "privacy": {"epsilon": 40.0, "delta": 1e-5},
        "channel": {"kind": "secure"},
        "rounds": 3,
    },
    "stragglers and attackers": {
        "cohort": {"stragglers": 0.5, "per_round": 4},
        "training": {"rate": 0.5, "epochs": 2, "batch": 128},
        "attack": {"kind": "gaussian", "fraction": 0.2},
    },
}


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in result.items() if name not in ("seconds", "bytes_up", "bytes_down")}


SLOW = {"fedavg, secure", "fedgeomed+, secure"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_a_seeded_run_that_is_cut_off_twice_ends_as_if_it_never_was(name: str, tmp_path: Path) -> None:
    given, rng = settings(**CASES[name]), random.Random(name)
    whole, torn = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "torn")
    events: list[Any] = []
    expected = simulate(given, directory=whole, watch=events.append)
    cuts = 0
    for _ in range(2):
        watch = after(rng.randrange(3, max(4, 2 * len(events) // 3)), crash)
        try:
            result = simulate(given, directory=torn, resume=torn.exists, watch=watch)
            break
        except Gone:
            cuts += 1
    else:
        result = simulate(given, directory=torn, resume=torn.exists)
    assert cuts
    assert model(torn) == model(whole)
    assert numbers(result) == numbers(expected)
    lines = [run.read_lines("metrics.jsonl") for run in (whole, torn)]
    kept = ("round", "completed", "clients", "sums", "facts", "rho", "epsilon", "measured")
    assert [[line[key] for key in kept] for line in lines[0]] == [
        [line[key] for key in kept] for line in lines[1]
    ]
    assert expected["completed"] >= given.rounds - 1


def test_without_a_seed_a_round_that_was_cut_off_is_left_out_and_paid_for(tmp_path: Path) -> None:
    given, run = settings(**{**PRIVATE, "insecure_seed": False, "dropout": {}}), RunDirectory(tmp_path / "r")

    def in_round_three(moment: Any) -> None:
        if moment.done == 2 and moment.stage == "reveal":
            crash()

    with pytest.raises(Gone):
        simulate(given, directory=run, watch=in_round_three)
    result = simulate(given, directory=run, resume=True)
    lines = run.read_lines("metrics.jsonl")
    assert [line["completed"] for line in lines] == [True, True, True, False, True, True]
    assert "cut off in the midst" in lines[3]["failure"]
    assert result["completed"] == 4
    # Five sums were asked, of which clients remember one no more; all of them are paid for.
    asked = [row.body for row in read_ledger(run / "ledger").rows if row.body["entry"] == "asked"]
    assert [body["round"] for body in asked] == [0, 1, 2, 3, 4]
    spend = run.read_json("spend.json")
    assert spend["clients"]["least"]["noised"] == 5
    assert spend["clients"]["most"]["rho"] == spend["server"]["rho"] == lines[-1]["rho"]
    assert lines[-1]["epsilon"] == pytest.approx(50, rel=1e-3)
    (note,) = [line for line in run.read_lines("sums.jsonl") if line["entry"] == "resumed"]
    assert (note["round"], note["cut_off"], note["repeats"]) == (2, True, False)
    lost = note["ledger_rows"] - note["checkpoint_rows"]
    sums = [line for line in run.read_lines("sums.jsonl") if line["entry"] == "sum"]
    assert lost >= 1
    assert len(sums) == 4


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_with_the_next_round(tmp_path: Path) -> None:
    given = settings(insecure_seed=False, channel={"kind": "secure"})
    run = RunDirectory(tmp_path / "r")
    told: list[int] = []
    with pytest.raises(SimulationStopped):
        simulate(given, told.append, directory=run, stop=lambda: told[-1] == 2)
    assert (run.status, run.facts()["done"], told) == ("interrupted", 2, [1, 2])
    assert (run / "metrics.csv").exists()
    result = simulate(given, told.append, directory=run, resume=True)
    assert (told, result["completed"]) == ([1, 2, 3, 4, 5], 5)
    assert run.status == "finished"
    assert not (run / "checkpoint").exists()
    # Whoever went on had a key of its own, and both vouch for what they wrote.
    head = run.read_json("ledger.head")
    assert len({head["key"], *(each["key"] for each in head["earlier"])}) == 2


def test_a_run_goes_on_only_from_a_checkpoint_that_is_whole_and_its_own(tmp_path: Path) -> None:
    given, run = settings(), RunDirectory(tmp_path / "r")
    with pytest.raises(SimulationStopped):
        simulate(given, directory=run, stop=lambda: True)
    with pytest.raises(SimulationError, match=r"checkpoint is of a run with other settings"):
        simulate(settings(rounds=6), directory=run, resume=True)
    data = bytearray((run / "checkpoint").read_bytes())
    assert (run / "checkpoint").stat().st_mode & 0o777 == 0o600
    data[len(data) // 2] ^= 1
    (run / "checkpoint").write_bytes(data)
    with pytest.raises(SimulationError, match=r"checkpoint is damaged.*--restart begins the run anew"):
        simulate(given, directory=run, resume=True)
    assert run.read_lines("metrics.jsonl")  # nothing of it is lost


def killed(tmp_path: Path, document: dict[str, Any], moments: list[int]) -> int:
    """How often a run was killed at these moments before it came to its end."""
    command = [sys.executable, "-m", "tests.sims.small_runs", json.dumps(document), str(tmp_path / "killed")]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, *map(str, moments)], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow  # starts many processes
@pytest.mark.parametrize("count", [3, 20])
def test_sigkill_at_any_moment_loses_no_more_than_a_round(count: int, tmp_path: Path) -> None:
    """Every event is a moment: a stage that begins, a write, a sync, a file that takes another's place."""
    rounds = 4 if count == 3 else 12
    privacy = {"epsilon": 40.0, "delta": 1e-5, "dropouts": 2, "removable": True}
    document = {**PRIVATE, "privacy": privacy, "rounds": rounds}
    whole, rng = RunDirectory(tmp_path / "whole"), random.Random(count)
    simulate(settings(**document), directory=whole)
    kills = killed(tmp_path, document, [rng.randrange(5, 50) for _ in range(count)])
    assert kills >= (3 if count == 3 else 12)
    torn = RunDirectory(tmp_path / "killed")
    assert model(torn) == model(whole)
    assert torn.read_json("result.json")["series"] == whole.read_json("result.json")["series"]
    rows = [line["round"] for line in torn.read_lines("metrics.jsonl")]
    assert rows == list(range(rounds + 1))
