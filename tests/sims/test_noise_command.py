"""``secagg noise``."""

import json
import math
import sys
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from secagg import Noise
from sims.cli import main

PATH = Path(__file__).resolve().parent.parent / "vectors" / "noise-parameters.json"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text(encoding="ascii"))
ROWS = [(group, row) for group in VECTORS["grids"] for row in group["rows"]]


def report(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["noise", "--json", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def text(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, str]:
    assert main(["noise", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return dict(line.split(maxsplit=1) for line in out.splitlines())


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["noise", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("secagg noise: ")
    assert err.count("\n") == 1
    return err


def problem(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What is refused as JSON is refused in words as well."""
    assert main(["noise", "--json", *options]) == 2
    out, err = capsys.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert found["ok"] is False
    assert err == f"secagg noise: {found['problem']}\n"
    return found


@pytest.mark.parametrize(
    ("group", "row"),
    ROWS,
    ids=[f"{group['orders']}-{row['dim']}-{row['epsilon']}-{row['bits']}" for group, row in ROWS],
)
def test_rows(capsys: pytest.CaptureFixture[str], group: dict[str, Any], row: dict[str, Any]) -> None:
    names = ("clients", "dim", "clip", "epsilon", "bits", "stddevs")
    options = [text for name in names for text in (f"--{name}", str(row[name]))]
    found = report(capsys, *options, "--delta", "1e-5", "--orders", group["orders"])

    for name in ("granularity", "sigma_local", "sigma_over_granularity", "epsilon"):
        assert found[name] == pytest.approx(row[name], rel=1e-9)
    rows = next(rows["rows"] for rows in VECTORS["rho"] if rows["orders"] == group["orders"])
    (rho,) = (known["rho"] for known in rows if (known["epsilon"], known["delta"]) == (row["epsilon"], 1e-5))
    assert found["rho"] == pytest.approx(rho, rel=1e-9)


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)

    asked = {name: value for name, value in found.items() if not isinstance(value, float)}
    variance = asked.pop("variance")
    assert asked == {
        "ok": True,
        "clients": 100,
        "dropouts": 0,
        "colluders": 0,
        "removable": False,
        "least_roster": 1,
        "dim": 65536,
        "padded_dim": 65536,
        "sums": 1,
        "bits": 15,
        "coarse": False,
        "adjacency": "zero-out",
        "orders": "continuous",
    }
    assert (found["clip"], found["stddevs"], found["delta"]) == (1, 6, 1e-5)
    assert found["epsilon"] == pytest.approx(1, rel=1e-11)
    assert found["sigma_central"] == pytest.approx(10 * found["sigma_local"], rel=1e-11)
    assert found["sigma_released"] == pytest.approx(found["sigma_central"], rel=1e-11)
    assert found["sigma_central"] == pytest.approx(4.0451 * found["sensitivity"], rel=1e-4)
    noise = Noise(scale=found["scale"], variance=Fraction(variance))
    assert math.sqrt(noise.variance) / noise.scale == found["sigma_central"]


def test_json_of_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert problem(capsys, "--bits", "12")["bits_needed"] == 13
    nothing_but_bits = problem(capsys, "--stddevs", "1e17")
    assert nothing_but_bits["bits_needed"] > 64
    assert "lower the standard deviations of room" in nothing_but_bits["problem"]
    assert problem(capsys, "--epsilon", "1e9") == {
        "ok": False,
        "problem": "epsilon must be a number from 1e-09 to 1e+06",
        "bits_needed": None,
    }


def test_drop_outs_and_colluders(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--dropouts", "30", "--colluders", "5", "--bits", "20")
    plain, removable = report(capsys, *options), report(capsys, *options, "--removable")

    for found in (plain, removable):
        assert found["sigma_central"] == pytest.approx(65**0.5 * found["sigma_local"], rel=1e-11)
        assert found["sigma_central"] == pytest.approx(4.0451, rel=1e-3)
    assert plain["sigma_released"] == pytest.approx(plain["sigma_central"] * (100 / 65) ** 0.5, rel=1e-11)
    assert removable["sigma_released"] == pytest.approx(
        removable["sigma_central"] * (70 / 65) ** 0.5, rel=1e-11
    )
    assert removable["least_sigma_over_granularity"] < removable["sigma_over_granularity"] / 10


@pytest.mark.parametrize("removable", [(), ("--removable",)])
def test_fewest_bits(capsys: pytest.CaptureFixture[str], removable: tuple[str, ...]) -> None:
    options = ("--dim", "4", "--clients", "1000", "--dropouts", "100", "--epsilon", "8", *removable)
    found = report(capsys, *options)

    assert found["least_sigma_over_granularity"] >= 4
    coarser = report(capsys, *options, "--bits", str(found["bits"] - 1))
    assert coarser["least_sigma_over_granularity"] < 4


def test_sums_share_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    one, many = report(capsys, "--bits", "20"), report(capsys, "--bits", "20", "--sums", "100")

    assert many["epsilon"] == pytest.approx(one["epsilon"], rel=1e-11)
    assert many["rho"] == pytest.approx(one["rho"] / 100, rel=1e-11)


@pytest.mark.parametrize(("adjacency", "factor"), [("add-remove", 1), ("replace", 2)])
def test_adjacency(capsys: pytest.CaptureFixture[str], adjacency: str, factor: int) -> None:
    zeroed = report(capsys, "--bits", "24")
    found = report(capsys, "--bits", "24", "--adjacency", adjacency)

    assert found["adjacency"] == adjacency
    assert found["sigma_central"] == pytest.approx(factor * zeroed["sigma_central"], rel=1e-3)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text(capsys, "--dim", "65000", "--epsilon", "10", "--bits", "16", "--stddevs", "4")

    assert lines == {
        "clients": "100, of whom 0 may drop out and 0 collude; surplus noise remains",
        "vector": "65,000 elements, padded to 65,536; its norm is clipped to 1",
        "least_roster": "1 client must be there for a sum to begin",
        "ring": "16 bits; a total wraps beyond 4 standard deviations",
        "granularity": "8.03362e-05 is one grid point",
        "sensitivity": "1.00009 is the norm of a vector at most, after rounding",
        "sigma_local": "0.0529648 is what every client adds: 659.289 grid points",
        "sigma_central": "0.529648 is what a total holds at least, as planned",
        "sigma_released": "0.529648 is what it holds if no client drops out",
        "usefulness": "the noise on a total has a norm of about 135, and the total itself of 100 at most",
        "tau": "0 is how far all clients' noise is from the noise that epsilon is for",
        "rho": "1.7827 for every sum (zero-out): another measure of the loss, which adds up over sums "
        "(zero-concentrated differential privacy)",
        "epsilon": "10 for 1 sum at a delta of 1e-05 (zero-out; continuous orders)",
        "meaning": "replacing one client's vector by zeros makes whatever the totals may show at most "
        "e^epsilon times as likely, up to a probability of delta",
    }


def test_text_names_the_adjacency_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    for adjacency, meaning in (("add-remove", "adding or removing one client"), ("replace", "by another")):
        lines = text(capsys, "--adjacency", adjacency, "--sums", "3", "--orders", "integer")
        assert f"({adjacency})" in lines["rho"]
        assert f"for 3 sums at a delta of 1e-05 ({adjacency}; integer orders)" in lines["epsilon"]
        assert meaning in lines["meaning"]


def test_text_of_removable_noise(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text(capsys, "--dropouts", "30", "--removable", "--dim", "1")

    assert lines["clients"].endswith("30 may drop out and 0 collude; surplus noise is removed")
    assert lines["vector"].startswith("1 element; its norm")
    assert ", in components from " in lines["sigma_local"]


def test_text_of_a_coarse_grid(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--clients", "1000", "--dim", "16", "--epsilon", "10", "--bits", "10")
    coarse = text(capsys, *options)

    assert coarse["coarse"].endswith("take more bits")
    assert report(capsys, *options)["coarse"] is True


def test_too_few_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--bits", "12", "--stddevs", "4").endswith("it needs at least 13 bits\n")
    assert report(capsys, "--bits", "13", "--stddevs", "4")["bits"] == 13


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--clients", "0"), "'0' is not a whole number from 1 to 1048576"),
        (("--bits", "65"), "'65' is not a whole number from 1 to 64"),
        (("--clip", "0"), "'0' is not above 0, or is too small or too large"),
        (("--clip", "-1"), "'-1' is not above 0"),
        (("--clip", "1e400"), "'1e400' is not above 0, or is too small or too large"),
        (("--clip", "1e200"), "the clip must be a number from 3.05494e-151 to 3.27339e+150"),
        (("--epsilon", "1e-400"), "'1e-400' is not above 0"),
        (("--epsilon", "x"), "'x' is not a number such as 0.1 or 1/10"),
        (("--epsilon", "1e7"), "noise: epsilon must be a number from 1e-09 to 1e+06\n"),
        (("--epsilon", "0.01", "--orders", "integer"), "an epsilon as small as 0.01 at a delta of 1e-05"),
        (("--stddevs", "1e300"), "the standard deviations of room must be a number from 0.001 to 1e+18"),
        (("--delta", "1e-16"), "delta must be at least 1e-15"),
        (("--delta", "1"), "delta must be a number above 0 and below 1"),
        (("--orders", "real"), "invalid choice: 'real'"),
        (("--adjacency", "swap"), "invalid choice: 'swap'"),
        (("--dropouts", "60", "--colluders", "40"), "no client is left to add noise"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal(capsys, *options)


def test_fractions_are_read_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "--clip", "5/2", "--delta", "1/100000") == report(capsys, "--clip", "2.5")


def test_what_epsilon_is_computed_with_belongs_in_a_bug_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("dp-accounting", "scipy"):
        assert f"{name} {version(name)}" in lines


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.delitem(sys.modules, "secagg.noise.privacy_goal", raising=False)
    monkeypatch.delitem(sys.modules, "secagg.noise.rho_and_epsilon", raising=False)

    assert 'pip install "secagg[dp]"' in refusal(capsys)
