"""Tables and figures of the splitting schemes: what they say of results, and what the shipped results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from papers import splitting
from papers.splitting_cells import gaps, grouped, limits, records
from papers.splitting_limits import ETA

RESULTS = Path(__file__).resolve().parents[2] / "papers" / "results"


def write(directory: Path, name: str, *cells: dict[str, Any]) -> None:
    with (directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        for number, each in enumerate(cells):
            kind = "logistic" if "logistic" in name else "least-squares"
            settings = {"data": {"kind": kind}, "rounds": 605, "algorithm": {"eta": 0.05}}
            line = {"digest": f"{name} {number}", "settings": settings, **each}
            file.write(json.dumps(line) + "\n")


def convex(cell: dict[str, Any], falling: float, rounds: int = 605) -> dict[str, Any]:
    """A gap that begins at 1 and falls by a factor every round."""
    seen = [[number, falling**number] for number in range(1, rounds + 1)]
    return {"cell": cell, "result": {"observed": {"optimality-gap": seen, "ergodic-gap": seen}}}


def network(cell: dict[str, Any], loss: Any, accuracy: float = 0.5) -> dict[str, Any]:
    series = {"common": {"pooled_accuracy": [0.1, accuracy]}}
    return {"cell": cell, "result": {"observed": {"training-loss": [[1, 2.0], [2, loss]]}, "series": series}}


def rows_of(table: str) -> dict[str, list[str]]:
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0] + (f" {row[1]}" if row[1][:1] in "nt" else ""): row for row in cells}


def test_rounds_to_a_gap_are_counted_and_gaps_are_read_off(tmp_path: Path) -> None:
    for memory, falling in ((0, 0.9), (2, 0.5)):
        cell = {"method": "FedSplit", "algorithm.memory": memory}
        write(tmp_path, "splitting-squares", convex(cell, falling))
    rows = rows_of(splitting.tables(tmp_path)["splitting-squares"])
    assert rows["FedSplit no"][2:7] == ["0.3487", "5.154e-3", "0", "132", "148"]
    assert rows["FedSplit tau = 2"][2:6] == ["9.766e-4", "0", "0", "20"]
    assert rows["FedPi no"][2:6] == ["missing"] * 4


def test_a_logistic_gap_is_that_of_the_mean_over_ten_users(tmp_path: Path) -> None:
    cell = {"method": "FedRP", "algorithm.memory": 0}
    write(tmp_path, "splitting-logistic", convex(cell, 0.9))
    (record,) = records(tmp_path, "splitting-logistic")
    assert gaps(record)[0][1] == pytest.approx(0.09)
    assert rows_of(splitting.tables(tmp_path)["splitting-logistic"])["FedRP no"][2] == "3.487e-2"


def test_networks_are_means_over_seeds_and_may_diverge(tmp_path: Path) -> None:
    cells = [{"seed": seed, "users": "all classes", "method": "FedRP"} for seed in (1, 2)]
    write(tmp_path, "splitting-mnist", network(cells[0], 0.5, 0.8), network(cells[1], 0.7, 0.9))
    measured = network({"seed": 1, "algorithm.steps": 2}, 0.0)
    measured["result"] |= {"observed": {}, "rounds": [0, 5]}
    measured["result"]["series"]["common"]["pooled_loss"] = [2.0, 1.25]
    write(tmp_path, "splitting-cifar", network({"seed": 1, "algorithm.steps": 5}, "diverged"), measured)
    tables = splitting.tables(tmp_path)
    assert rows_of(tables["splitting-mnist"])["FedRP"][1:3] == ["0.600 (0.500, 0.700)", "85.0 (80.0, 90.0)"]
    assert "| 2 | 1.250 (1.250) | 50.0 (50.0) |" in tables["splitting-cifar"]
    assert "| 5 | diverged | 50.0 (50.0) |" in tables["splitting-cifar"]


@pytest.mark.slow  # draws figures
def test_figures_of_what_is_there_are_drawn(tmp_path: Path) -> None:
    for name in ("splitting-squares", "splitting-logistic"):
        write(tmp_path, name, convex({"method": "FedPi", "algorithm.memory": 0}, 0.9))
        cells = [{"algorithm.name": "fedrp", "step": step} for step in ("constant", "1 / t")]
        write(tmp_path, f"{name}-schedules", *(convex(each, 0.95) for each in cells))
    write(tmp_path, "splitting-mnist", network({"users": "all classes", "method": "FedRP"}, 0.5))
    write(tmp_path, "splitting-mnist-steps", network({"setting": "5 0.9"}, 0.5))
    splitting.figures(tmp_path, tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.svg")}
    assert drawn == {f"splitting-{each}" for each in ("anderson", "ends", "fedrp", "heterogeneity")}


def test_the_shipped_results_are_those_of_an_independent_program() -> None:
    """Rounds to a gap of 1e-6 within 2 %, and what is left where a method has a bias to three digits."""
    found = grouped(RESULTS, "splitting-squares", "method", "algorithm.memory")
    for (method, memory), (rounds, last) in splitting._REFERENCE.items():
        (record,) = found[method, memory]
        values = dict(gaps(record))
        reached = [number for number, gap in values.items() if gap <= splitting.TARGET]
        if rounds == "never":
            assert not reached
            assert values[605] == pytest.approx(float(last), rel=2e-3)
        else:
            assert reached[0] == pytest.approx(int(rounds), rel=0.02)
            assert values[605] < 1e-12


def test_the_shipped_results_end_where_the_closed_form_says() -> None:
    usual = {
        each["steps"]: each["gap"] for each in limits(RESULTS) if "product" not in each and "steps" in each
    }
    found = grouped(RESULTS, "splitting-squares", "method", "algorithm.memory")
    for steps in (5, 100):
        (record,) = found[f"FedAvg, k = {steps}", 0]
        assert gaps(record)[-1][1] == pytest.approx(usual[steps], rel=1e-4)
        assert record.settings["algorithm"]["eta"] == pytest.approx(5000 * ETA)
    assert usual[100] < usual[0]  # infinitely many


def test_shipped_results_over_secure_sums_are_those_over_plain_ones() -> None:
    found = grouped(RESULTS, "splitting-secure", "algorithm.name", "channel.kind")
    for name in ("fedsplit", "fedpi"):
        assert gaps(found[name, "plain"][0]) == gaps(found[name, "secure"][0])
