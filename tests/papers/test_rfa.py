"""The tables and figures of RFA, from the results that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers import rfa
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return rfa.tables(RESULTS)


def rows(table: str) -> dict[str, list[str]]:
    """By their first cells."""
    split = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: rest for name, *rest in split}


def mean(cell: str) -> float:
    return float(cell.split(" ")[0])


def test_every_corruption_has_every_rule(tables: dict[str, str]) -> None:
    for name in ("rfa-mnist", "rfa-unipen"):
        found = rows(tables[name])
        assert list(found)[:5] == ["none", "negated 0.01", "negated 0.1", "negated 0.25", "negated 0.3"]
        assert all("missing" not in row[:4] for row in found.values())


def test_the_table_shows_what_the_results_say(tables: dict[str, str]) -> None:
    values = [
        100 * record.result["series"]["common"]["pooled_accuracy"][-1]
        for record in read_records(RESULTS / "rfa-mnist.jsonl")
        if record.cell["corruption"] == "negated 0.25" and record.cell["rule"] == "RFA-1"
    ]
    assert mean(rows(tables["rfa-mnist"])["negated 0.25"][2]) == pytest.approx(
        sum(values) / len(values), abs=0.051
    )


def test_rfa_is_robust_to_negated_images_and_loses_little_without(tables: dict[str, str]) -> None:
    found = rows(tables["rfa-mnist"])
    assert float(found["negated 0.25"][3]) >= 8
    assert float(found["none"][3]) >= -2


def test_rfa_withstands_who_knows_everything_where_clients_agree_enough(tables: dict[str, str]) -> None:
    average, robust, *_ = rows(tables["rfa-mnist"])["omniscient 0.1"]
    assert mean(average) < 20
    assert mean(robust) >= 45
    for clients in ("MNIST, all classes", "the same, longer"):
        *_, average, robust, _ = rows(tables["rfa-omniscient"])[clients]
        assert mean(average) < 20
        assert mean(robust) >= 45


def test_secure_sums_give_the_same_numbers(tables: dict[str, str]) -> None:
    found = rows(tables["rfa-secure"])
    assert found["plain sums"] == found["secure sums"]


def test_nothing_failed() -> None:
    for path in RESULTS.glob("rfa-*.jsonl"):
        for record in read_records(path):
            assert record.result["completed"] == record.settings["rounds"], (path, record.cell)


@pytest.mark.slow  # draws figures
def test_figures_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        rfa.figures(RESULTS, tmp_path / name)
    drawn = sorted((tmp_path / "first").iterdir())
    assert [each.name for each in drawn] == ["rfa-corruption.svg", "rfa-omniscient.svg"]
    assert all(each.read_bytes() == (tmp_path / "second" / each.name).read_bytes() for each in drawn)
