"""The tables and figures of FedBC, from the results that are kept; and how local accuracy is observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from papers import fedbc
from sims.scenario import Settings
from sims.simulation import simulate
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return fedbc.tables(RESULTS)


def cells(table: str) -> dict[str, list[str]]:
    """Rows by their names."""
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: others for name, *others in rows}


def test_table_1_has_every_method_and_every_column_beside_the_published_one(tables: dict[str, str]) -> None:
    rows = cells(tables["fedbc-table-1"])
    for method in fedbc.METHODS:
        assert len(rows[method]) == len(rows[f"{method}, published"]) == len(fedbc.EPOCHS)
    assert "missing" not in tables["fedbc-table-1"]


def test_table_1_shows_what_the_results_say(tables: dict[str, str]) -> None:
    values = [
        100 * record.result["series"]["common"]["pooled_accuracy"][-1]
        for record in read_records(RESULTS / "fedbc.jsonl")
        if record.cell["epochs"] == 5 and record.cell["method"] == "FedBC"
    ]
    shown = cells(tables["fedbc-table-1"])["FedBC"][1]
    assert shown.startswith(f"{sum(values) / len(values):.2f} ± ")
    assert shown.endswith(f"({len(values)})")


def test_every_method_of_a_column_has_as_many_rounds(tables: dict[str, str]) -> None:
    assert all(each.isdecimal() for each in cells(tables["fedbc-table-1"])["rounds"])


def test_plain_and_secure_sums_gave_the_same_numbers(tables: dict[str, str]) -> None:
    rows = cells(tables["fedbc-secure"])
    assert rows["plain"] == rows["secure"]
    plain, secure = (record.result for record in read_records(RESULTS / "fedbc-secure.jsonl"))
    assert plain["final"] == secure["final"]
    assert plain["observed"] == secure["observed"]


def test_all_rounds_of_all_cells_were_completed() -> None:
    for path in RESULTS.glob("fedbc*.jsonl"):
        for record in read_records(path):
            assert record.result["completed"] == record.settings["rounds"], (path.name, record.cell)
            assert record.result["diverged"] is None


@pytest.mark.slow  # draws figures
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    fedbc.figures(RESULTS, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["fedbc-gamma.svg", "fedbc-table-1.svg", "fedbc-users.svg"]


# --- local accuracy ---


def small(**algorithm: Any) -> dict[str, Any]:
    """Fifty short rounds of five clients, of which all take part."""
    settings = {
        "rounds": 50,
        "data": {"kind": "synthetic", "preset": "fedbc", "clients": 5, "largest": 60},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.05, "batch": 20},
        "algorithm": {"clip": 100.0, **algorithm},
        "evaluation": {"every": 50, "what": "both", "observe": ["local-accuracy"]},
    }
    return simulate(Settings.model_validate(settings))


def test_the_local_models_of_fedbc_are_its_personal_ones() -> None:
    result = small(name="fedbc", lambda_max=10.0)

    ((number, (mean, pooled)),) = result["observed"]["local-accuracy"]
    assert number == 50
    assert mean == result["series"]["personal"]["mean_accuracy"][-1]
    assert pooled == result["series"]["personal"]["pooled_accuracy"][-1]


def test_local_models_are_looked_at_where_there_are_no_personal_ones() -> None:
    result = small(name="fedavg")

    ((_, (mean, _)),) = result["observed"]["local-accuracy"]
    assert mean > result["series"]["common"]["mean_accuracy"][-1]
