"""``secagg noise --sweep``: the noise of many combinations, and why some have none."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from sims.cli import main
from sims.cli.noise_sweep import Axis, axis

SMALL = ("noise", "--dim", "64")
SVG = "{http://www.w3.org/2000/svg}"


def swept(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> list[dict[str, Any]]:
    assert main([*SMALL, "--json", *options]) == status
    out, err = capsys.readouterr()
    assert err == ""
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    return rows


def parsed(plot: Path) -> ET.Element:
    return ET.parse(plot).getroot()  # noqa: S314  # it was written by this test


def test_each_row_is_the_noise_of_its_combination(capsys: pytest.CaptureFixture[str]) -> None:
    rows = swept(capsys, "--sweep", "epsilon=1,4", "--sweep", "clients=20,40", "--clip", "2.5")
    assert [(row["epsilon"], row["clients"]) for row in rows] == [(1, 20), (1, 40), (4, 20), (4, 40)]
    for row in rows:
        given = ["--epsilon", str(row["epsilon"]), "--clients", str(row["clients"]), "--clip", "2.5"]
        assert main([*SMALL, "--json", *given]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert (row["sigma_total"], row["rho"]) == (alone["sigma_released"], alone["rho"])
        assert row["noise_of_mean"] == pytest.approx(
            math.sqrt(64) * alone["sigma_released"] / (row["clients"] * 2.5)
        )


def test_more_clients_epsilon_and_fewer_dropouts_mean_less_noise(capsys: pytest.CaptureFixture[str]) -> None:
    for name, values, falls in (
        ("clients", "20,50,100", True),
        ("epsilon", "1,2,8", True),
        ("dropouts", "0,20,60", False),
    ):
        noise = [row["noise_of_mean"] for row in swept(capsys, "--sweep", f"{name}={values}")]
        assert noise == sorted(noise, reverse=falls)
        assert len(set(noise)) == 3


def test_what_has_no_noise_is_a_row_that_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, plot = tmp_path / "sweep.csv", tmp_path / "sweep.svg"
    files = ("--csv", str(table), "--plot", str(plot))
    rows = swept(capsys, "--sweep", "bits=2,12", "--sweep", "dropouts=0,100", *files)
    assert [row["ok"] for row in rows] == [False, False, True, False]
    assert all(bool(row["problem"]) is not row["ok"] for row in rows)
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert [row["noise_of_mean"] == "" for row in written] == [not row["ok"] for row in rows]
    assert float(written[2]["noise_of_mean"]) == rows[2]["noise_of_mean"]
    assert len(list(parsed(plot).iter(f"{SVG}circle"))) == 1
    swept(capsys, "--sweep", "bits=2,3", status=2)
    assert main([*SMALL, "--sweep", "bits=2,12"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4  # a head, two rows, an explanation


def test_a_plot_has_a_line_for_each_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "sweep.svg"
    swept(capsys, "--sweep", "epsilon=1:4", "--sweep", "clients=20,40,60", "--plot", str(plot))
    root = parsed(plot)
    drawn = [group for group in root.iter(f"{SVG}g") if "data-series" in group.attrib]
    assert [len(group.findall(f"{SVG}circle")) for group in drawn] == [4, 4, 4]
    assert len({group.get("data-series") for group in drawn}) == 3
    legend = {text.text for text in root.iter(f"{SVG}text")}
    assert {str(group.get("data-series")) for group in drawn} <= legend


def test_nothing_to_draw_is_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "sweep.svg"
    swept(capsys, "--sweep", "bits=2,3", "--plot", str(plot), status=2)
    assert not list(parsed(plot).iter(f"{SVG}path"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("epsilon=0.5,1", (0.5, 1.0)),
        ("epsilon=0.5:2:0.5", (0.5, 1.0, 1.5, 2.0)),
        ("epsilon=0.1:0.3:0.1", (0.1, 0.2, 0.3)),  # exact, although 0.1 + 0.1 + 0.1 is not as floats
        ("clients=10,10, 20", (10, 20)),
        ("bits=8:10", (8, 9, 10)),
        ("dropouts=0:9:5", (0, 5)),
    ],
)
def test_lists_and_ranges(text: str, values: tuple[float, ...]) -> None:
    assert axis(text) == Axis(text.partition("=")[0], values)


@pytest.mark.parametrize(
    "options",
    [
        ("--sweep", "epsilon"),
        ("--sweep", "clip=1,2"),
        ("--sweep", "epsilon=0"),
        ("--sweep", "epsilon=-1,2"),
        ("--sweep", "clients=1.5"),
        ("--sweep", "clients=5:1"),
        ("--sweep", "clients=1:5:0"),
        ("--sweep", "clients=1:2:1:1"),
        ("--sweep", "clients=1:100000"),
        ("--sweep", "clients="),
        ("--sweep", "bits=65"),
        ("--sweep", "epsilon=1", "--sweep", "epsilon=2"),
        ("--sweep", "clients=1:900", "--sweep", "epsilon=1,2"),
        ("--csv", "sweep.csv"),
        ("--sweep", "epsilon=1", "--csv", "nowhere/sweep.csv"),
    ],
)
def test_mistakes_are_reported(
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, bool(err)) == ("", True)
    assert not list(tmp_path.iterdir())
