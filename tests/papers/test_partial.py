"""The tables and figures of partial personalisation, from the results that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers import partial
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"
SEEDS = 3


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return partial.tables(RESULTS)


def rows(table: str) -> dict[str, list[str]]:
    """By their first cells."""
    split = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: rest for name, *rest in split}


def mean(cell: str) -> float:
    return float(cell.split(" ")[0])


def test_every_part_has_every_order_and_every_seed(tables: dict[str, str]) -> None:
    found = rows(tables["partial-methods"])
    for order in ("FedAlt", "FedSim", "fine-tuning"):
        for part in ("input", "output", "adapter"):
            assert found[f"{order} {part}"][0].count(",") == SEEDS - 1
    assert all("missing" not in cell for row in rows(tables["partial-robust"]).values() for cell in row)


def test_the_table_shows_what_the_results_say(tables: dict[str, str]) -> None:
    records = [
        record
        for record in read_records(RESULTS / "partial.jsonl")
        if record.cell["method"] == "FedAlt output"
    ]
    finals = [record.result["final"]["personal"] for record in records]
    accuracies = [100 * sum(final["correct"]) / sum(final["total"]) for final in finals]
    row = rows(tables["partial-methods"])["FedAlt output"]
    assert mean(row[0]) == pytest.approx(sum(accuracies) / SEEDS, abs=0.051)


def test_the_numbers_in_a_sum_are_those_of_the_shared_part(tables: dict[str, str]) -> None:
    """16 channels to 62 classes, with a bias, are the output layer."""
    found = rows(tables["partial-methods"])
    assert int(found["none"][2]) - int(found["FedSim output"][2]) == 17 * 62
    assert found["alone"][2] == "0"


def test_personal_output_layers_and_adapters_help_most_clients(tables: dict[str, str]) -> None:
    found = rows(tables["partial-methods"])
    for order in ("FedAlt", "FedSim"):
        for part in ("output", "adapter"):
            assert float(found[f"{order} {part}"][1]) > 3
            hurt, helped = (float(cell.removesuffix(" %")) for cell in found[f"{order} {part}"][3:5])
            assert hurt < 25 < helped


def test_personal_parts_help_and_a_median_of_the_shared_part_helps_under_corruption(
    tables: dict[str, str],
) -> None:
    found = {name: list(map(mean, row[:6])) for name, row in rows(tables["partial-robust"]).items()}
    robust, average, median, _, *_ = found["none"]
    assert robust > median + 10
    assert abs(robust - average) < 1
    *_, robust, average = found["negated 0.25"]  # of honest clients
    assert robust > average + 1
    *_, robust, average = found["omniscient 0.25"]
    assert robust > average + 1


def test_secure_sums_give_the_same_numbers(tables: dict[str, str]) -> None:
    found = rows(tables["partial-secure"])
    assert found["plain sums"] == found["secure sums"]


def test_nothing_failed() -> None:
    for path in RESULTS.glob("partial*.jsonl"):
        for record in read_records(path):
            assert record.result["completed"] == record.settings["rounds"], (path, record.cell)


@pytest.mark.slow  # draws figures
def test_figures_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        partial.figures(RESULTS, tmp_path / name)
    drawn = sorted((tmp_path / "first").iterdir())
    assert [each.name for each in drawn] == ["partial-methods.svg", "partial-robust.svg"]
    for each in drawn:
        assert each.read_bytes() == (tmp_path / "second" / each.name).read_bytes()
