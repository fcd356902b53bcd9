"""The tables and figures of Fed+, from the results that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from papers import fedplus
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return fedplus.tables(RESULTS)


def cells(table: str) -> list[list[str]]:
    return [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()]


def test_table_2_has_every_row_published_printed_and_tuned(tables: dict[str, str]) -> None:
    head, _, *rows = cells(tables["fedplus-table-2"])
    assert head[2:] == [
        "Local",
        "Scaffold",
        "pFedMe",
        "perFedAvg",
        "APFL",
        "FedAvg+",
        "FedGeoMed+",
        "FedCoMed+",
    ]
    assert len(rows) == 15
    for published, printed, tuned in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert "-" not in published[3:]
        assert "-" not in printed
        assert "-" not in tuned[-3:]


def test_table_2_shows_what_the_results_say(tables: dict[str, str]) -> None:
    values = [
        record.result["series"]["personal"]["mean_accuracy"][-1]
        for record in read_records(RESULTS / "fedplus.jsonl")
        if record.cell["dataset"] == "MNIST-personal-N50" and record.cell["method"] == "APFL"
    ]
    row = cells(tables["fedplus-table-2"])[2 + 3 * 3 + 1]
    assert row[6] == f"{100 * sum(values) / len(values):.1f}"


def test_errors_of_the_regression_are_twice_its_losses(tables: dict[str, str]) -> None:
    losses = [
        record.result["series"]["personal"]["mean_loss"][-1]
        for record in read_records(RESULTS / "fedplus-regression.jsonl")
        if record.cell["method"] == "Local"
    ]
    row = cells(tables["fedplus-table-2"])[2 + 3 * 4 + 1]
    assert row[2] == f"{2 * sum(losses) / len(losses):.0f}"


def test_tuned_settings_are_those_that_did_best_on_validation_samples(tables: dict[str, str]) -> None:
    best = {}
    for method, sigma, delta, *scores in cells(tables["fedplus-validation"])[2:]:
        for parties, score in zip(("N10", "N50"), scores, strict=True):
            if score.startswith("**"):
                best[method, parties] = (float(sigma), float(delta))
    assert len(best) == 6
    for record in read_records(RESULTS / "fedplus-tuned.jsonl"):
        own = record.settings["algorithm"]
        key = (record.cell["method"], record.cell["dataset"].rpartition("-")[2])
        assert (own["sigma"], own["delta"]) == best[key], record.cell


def test_secure_sums_give_the_same_numbers(tables: dict[str, str]) -> None:
    rows = cells(tables["fedplus-secure"])[2:]
    assert len(rows) == 3
    assert all(row[-1] == "yes" for row in rows)


def test_whoever_was_not_run_is_left_out(tmp_path: Path) -> None:
    for path in RESULTS.glob("fedplus*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["cell"].get("method") != "Scaffold"]
        (tmp_path / path.name).write_text("".join(kept))
    row = cells(fedplus.tables(tmp_path)["fedplus-table-2"])[3]
    assert row[3] == "-"


@pytest.mark.slow  # draws figures
def test_figures_are_drawn(tmp_path: Path) -> None:
    fedplus.figures(RESULTS, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"fedplus-table-2.svg", "fedplus-stragglers.svg", "fedplus-jumps.svg"}
