"""The tables and figures of Simplicial-FL, from the results that are kept; and how quantiles are measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers import simplicial
from papers import simplicial_quantiles as quantiles
from protocols.histogram_quantiles import one_hot, read_quantile
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return simplicial.tables(RESULTS)


def rows(table: str) -> list[list[str]]:
    return [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()][2:]


# --- what was found ---


def test_what_was_run_completed_all_rounds() -> None:
    for record in read_records(RESULTS / "simplicial.jsonl"):
        assert record.result["completed"] == record.settings["rounds"] == 200
        assert record.result["diverged"] is None


def test_methods_are_compared_on_the_same_clients_and_nobody_of_them_trained() -> None:
    held_out: dict[int, list[int]] = {}
    for record in read_records(RESULTS / "simplicial.jsonl"):
        clients = record.result["final"]["held_out_common"]["client"]
        assert held_out.setdefault(record.cell["seed"], clients) == clients
        assert len(clients) == 120
        assert not set(map(str, clients)) & set(record.result["samples"])


def test_tables_show_what_the_results_say(tables: dict[str, str]) -> None:
    means = []
    for record in read_records(RESULTS / "simplicial.jsonl"):
        if record.cell["method"] == "FedAvg":
            last = record.result["final"]["held_out_common"]
            pairs = sorted(zip(last["client"], last["correct"], last["total"], strict=True))
            errors = [100 * (1 - right / total) for _, right, total in pairs]
            means.append(np.mean([each for place, each in enumerate(errors) if place % 3]))
    assert rows(tables["simplicial"])[0][2].startswith(f"{np.mean(means):.2f} ± ")
    assert [row[0] for row in rows(tables["simplicial"])] == list(simplicial.METHODS)
    assert len(rows(tables["simplicial-paired"])) == 2 * 2 * 4


@pytest.mark.parametrize("baseline", simplicial.BASELINES)
@pytest.mark.parametrize("quantile", ["", simplicial.PRIVATE])
def test_the_tail_is_served_better_and_the_mean_hardly_worse(baseline: str, quantile: str) -> None:
    found = simplicial.Experiment(RESULTS)
    assert found.chosen is not None
    tail = found.against(baseline, found.chosen + quantile, high=True)
    mean = found.against(baseline, found.chosen + quantile, high=False)
    assert tail is not None
    assert mean is not None
    assert tail.seeds == mean.seeds == 5
    assert tail.mean <= -1
    assert tail.high < 0
    assert mean.mean <= simplicial.ALLOWED


def test_one_round_costs_less_than_all_of_them(tables: dict[str, str]) -> None:
    one, every, updates = rows(tables["simplicial-privacy"])
    assert 20 / 200 < float(one[1]) < float(every[1]) == 20
    assert updates[1:] == ["none", "no noise"]


def test_plain_and_secure_sums_gave_the_same_numbers(tables: dict[str, str]) -> None:
    plain, secure = (row[1:-1] for row in rows(tables["simplicial-secure"]))
    assert plain == secure
    first, second = (record.result for record in read_records(RESULTS / "simplicial-secure.jsonl"))
    assert first["final"] == second["final"]


@pytest.mark.slow  # draws figures
def test_figures_are_drawn(tmp_path: Path) -> None:
    simplicial.figures(RESULTS, tmp_path)
    names = ["simplicial-errors.svg", "simplicial-quantiles.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


# --- how theta is chosen ---


def results_of(path: Path, errors: dict[str, list[int]]) -> simplicial.Experiment:
    """Three clients with 100 samples each, of which the second to have a number is to choose by."""
    lines = []
    for method, wrong in errors.items():
        final = {"client": [7, 3, 9], "total": [100] * 3, "correct": [100 - each for each in wrong]}
        result: dict[str, Any] = {"final": {"held_out_common": final}}
        cell = {"seed": 1, "method": method}
        lines.append(json.dumps({"digest": method, "cell": cell, "settings": {}, "result": result}))
    (path / "simplicial.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return simplicial.Experiment(path)


def test_every_third_client_is_to_choose_by_and_the_others_to_test(tmp_path: Path) -> None:
    errors = results_of(tmp_path, {"FedAvg": [10, 20, 30]}).errors["FedAvg"]
    assert errors.validation[1].tolist() == [20]
    assert errors.test[1].tolist() == [10, 30]
    assert errors.means([1]) == [20]
    assert errors.highs([1]) == [28]


def test_theta_is_chosen_by_the_tail_of_validation_clients_alone(tmp_path: Path) -> None:
    errors = {
        "FedAvg": [0, 40, 0],
        "FedAvg, unweighted": [0, 50, 0],
        "theta 0.8": [90, 39, 90],
        "theta 0.7": [0, 40, 0],
        "theta 0.5": [0, 40, 0],
    }
    assert results_of(tmp_path, errors).chosen == "theta 0.8"
    errors["theta 0.5"] = [99, 38, 99]
    assert results_of(tmp_path, errors).chosen == "theta 0.5"


def test_a_theta_that_costs_the_mean_too_much_is_not_chosen(tmp_path: Path) -> None:
    errors = {
        "FedAvg": [0, 40, 0],
        "FedAvg, unweighted": [0, 50, 0],
        "theta 0.8": [0, 41, 0],
        "theta 0.7": [0, 43, 0],
        "theta 0.5": [0, 42, 0],
    }
    assert results_of(tmp_path, errors).chosen == "theta 0.8"


def test_nothing_is_chosen_before_everything_was_run_or_if_no_mean_is_allowed(tmp_path: Path) -> None:
    errors = {"FedAvg": [0, 40, 0], "FedAvg, unweighted": [0, 50, 0], "theta 0.8": [0, 42, 0]}
    assert results_of(tmp_path, errors).chosen is None
    others = {"theta 0.7": [0, 42, 0], "theta 0.5": [0, 42, 0]}
    assert results_of(tmp_path, errors | others).chosen is None
    assert results_of(tmp_path, errors).against("FedAvg", "theta 0.8", high=True) is None


# --- quantiles ---


def test_the_kept_errors_are_what_is_measured() -> None:
    kept = quantiles.read(RESULTS)
    assert tuple(kept) == quantiles.cases()
    case = quantiles.Case(bins=64, clients=32, epsilon=1.0)
    assert quantiles.measure(case) == kept[case]


def test_errors_are_below_the_bound_in_at_least_as_many_runs_as_promised() -> None:
    for row in quantiles.read(RESULTS).values():
        assert row["inside"] >= 1 - quantiles.MISSED
        assert row["without"] <= row["error"] <= row["high"] <= row["bound"]


def test_the_bound_is_that_of_the_paper() -> None:
    """With c = 1, everybody's noise has the variance 1 / n of the total's: sqrt(2 s^2 b ln(4 / d) / n)."""
    case, sigma = quantiles.Case(bins=32, clients=100, epsilon=1.0), 4.0
    own = sigma / math.sqrt(case.clients)
    expected = math.sqrt(2 * own**2 * case.bins * math.log(4 / quantiles.MISSED) / case.clients)
    assert quantiles.noise_term(case, sigma) == pytest.approx(expected)


def test_with_hardly_any_noise_only_the_bins_cost() -> None:
    """Checked against quantiles that are read one client after another."""
    case = quantiles.Case(bins=16, clients=40, epsilon=45.0)
    row = quantiles.measure(case, runs=3)
    assert row["error"] == row["without"]
    values, edges = np.arange(40) / 4, np.linspace(0, 10, 17)
    counts = sum((one_hot(value, edges) for value in values), np.zeros(16, np.uint64))
    assert np.array_equal(counts, np.histogram(values, edges)[0])
    assert read_quantile(counts, edges, 0.5, count=40) == 5.0
