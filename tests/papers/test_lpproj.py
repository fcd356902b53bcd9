"""The tables and figures of lp-proj, from the results that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers import lpproj, lpproj_attacks
from sims.sweep import read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"
PARAMETERS = {"rate": ("training", "rate"), "pull": ("algorithm", "pull")}


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return lpproj.tables(RESULTS)


def cells(table: str) -> dict[str, list[str]]:
    """Rows by their names."""
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: others for name, *others in rows}


def test_nothing_is_missing(tables: dict[str, str]) -> None:
    assert [name for name, table in tables.items() if "missing" in table or table.count("\n") < 2] == []


def test_the_theory_has_the_best_pull_of_the_formula_and_twice_that_as_threshold(
    tables: dict[str, str],
) -> None:
    best, ahead, *_ = cells(tables["lpproj-theory"])["same-value"]
    assert (best, ahead) == ("0.000246", "0.000493")


@pytest.mark.parametrize("data", ["synthetic", "unipen"])
def test_runs_have_the_settings_that_validation_chose(tables: dict[str, str], data: str) -> None:
    validation = "lpproj-validation" if data == "synthetic" else "lpproj-unipen-validation"
    chosen = {name: row[-1] for name, row in cells(tables[validation]).items()}
    used = 0
    for record in read_records(RESULTS / f"lpproj-{data}.jsonl"):
        method = record.cell["method"].partition(",")[0]
        for name, _, value in (each.partition(" ") for each in chosen.get(method, "").split(" and ")):
            if name in PARAMETERS:
                section, key = PARAMETERS[name]
                assert record.settings[section][key] == float(value), (method, name)
                used += 1
    assert used >= len(chosen) - 1


def test_attacks_have_the_settings_of_runs_without_an_attack() -> None:
    def own(name: str) -> dict[str, tuple[object, ...]]:
        return {
            each.cell["method"]: (
                each.settings["algorithm"].get("pull"),
                each.settings["training"]["rate"],
                each.settings["training"].get("steps"),
            )
            for each in read_records(RESULTS / f"{name}.jsonl")
        }

    without = own("lpproj-synthetic")
    assert {name: without[name] for name in lpproj_attacks.METHODS} == own("lpproj-attacks")


def test_table_1_shows_what_the_results_say(tables: dict[str, str]) -> None:
    found = [
        each.result
        for each in read_records(RESULTS / "lpproj-synthetic.jsonl")
        if each.cell["method"] == "lp-proj-1"
    ]
    rounds = []
    for result in found:
        values = result["series"]["personal"]["mean_accuracy"]
        rounds.append(next(k for k, value in zip(result["rounds"], values, strict=True) if value >= 0.6))
    shown = cells(tables["lpproj-synthetic"])["lp-proj-1"]
    assert shown[0] == ", ".join(map(str, rounds))
    assert shown[3] == f"{sum(rounds) / len(rounds) * 2 * 10 * 42:,.0f}"
    assert shown[4] == f"{sum(rounds) / len(rounds) * 10 * 42 * 7 / 1000:,.1f}"


def test_local_training_takes_nothing(tables: dict[str, str]) -> None:
    assert cells(tables["lpproj-synthetic"])["local"][1] == "0"


def test_votes_stand_where_means_fall() -> None:
    """Under sign flips by half of the clients or more: within three points of local training, or lost."""
    found = {
        (each.cell["corruption"], each.cell["method"]): lpproj_attacks.accuracy(each)
        for each in read_records(RESULTS / "lpproj-attacks.jsonl")
    }
    for level in ("0.5", "0.8"):
        alone = found[f"sign flip {level}", "local"]
        for method in ("lp-proj-1", "RSA"):
            assert found[f"sign flip {level}", method] > alone - 3
        for method in ("lp-proj-2", "Ditto", "FedAvg"):
            assert found[f"sign flip {level}", method] < 50


def test_plain_and_secure_sums_gave_the_same_numbers() -> None:
    plain, secure = (
        {
            each.cell["method"]: (each.result["series"], each.result["final"])
            for each in read_records(RESULTS / "lpproj-secure.jsonl")
            if each.cell["channel.kind"] == kind
        }
        for kind in ("plain", "secure")
    )
    assert plain == secure


@pytest.mark.slow  # draws figures
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    lpproj.figures(RESULTS, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"lpproj-{each}.svg" for each in ("attacks", "fairness", "numbers", "pull", "theory")}


def test_attacks_are_on_what_is_sent() -> None:
    """The median asks many questions about one update, and local training sends nothing."""
    found = read_records(RESULTS / "lpproj-attacks.jsonl")
    levels = {each.cell["method"]: each.settings["attack"].get("level", "update") for each in found}
    assert levels == dict.fromkeys(lpproj_attacks.METHODS, "answer") | {"median": "update", "local": "update"}
