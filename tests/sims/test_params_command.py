"""``secagg params``."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from secagg import graph_parameters
from sims.cli import main, params

PATH = Path(__file__).resolve().parent.parent / "vectors" / "ring-parameters.json"
GROUPS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="ascii"))["groups"]


def report(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["params", "--json", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["params", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("secagg params: ")
    assert err.count("\n") == 1
    return err


def test_json_by_default_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)

    bounds = [found.pop(f"log2_{name}") for name in ("corrupt", "disconnected", "unrecoverable")]
    assert found == {
        "clients": 1000,
        "corrupt": 50,
        "corrupt_part": "1/20",
        "dropout": "1/10",
        "sums": 1,
        "cumulative_dropout": "1/10",
        "dropped": 100,
        "trust": "curious_server",
        "form": "exact",
        "sigma": 40,
        "eta": 30,
        "graph": "ring",
        "neighbours": 40,
        "threshold": 19,
    }
    assert bounds == pytest.approx([-41.56, -97.73, -31.71], abs=0.01)


def check_row(
    capsys: pytest.CaptureFixture[str], group: dict[str, Any], form: str, row: dict[str, Any]
) -> None:
    options = (
        *("--clients", str(row["clients"]), "--corrupt", row["corrupt"], "--dropout", row["dropout"]),
        *("--trust", row["server"], "--form", form, "--sums", str(row.get("sums", 1))),
        *("--sigma", str(group["sigma"]), "--eta", str(group["eta"])),
    )
    if row["neighbours"] is None:
        assert "tolerate fewer of either" in refusal(capsys, *options)
        return
    found = report(capsys, *options)
    assert found["graph"] == "ring"
    assert (found["neighbours"], found["threshold"]) == (row["neighbours"], row["threshold"])


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: str(group["source"]))
def test_some_rows(capsys: pytest.CaptureFixture[str], group: dict[str, Any]) -> None:
    for form in group["forms"]:
        for row in (group["rows"][0], group["rows"][-1]):
            check_row(capsys, group, form, row)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: str(group["source"]))
def test_all_rows(capsys: pytest.CaptureFixture[str], group: dict[str, Any]) -> None:
    for form in group["forms"]:
        for row in group["rows"]:
            check_row(capsys, group, form, row)


@pytest.mark.parametrize("text", ["0.29", "29/100", "29"])
def test_colluders_are_counted_exactly(capsys: pytest.CaptureFixture[str], text: str) -> None:
    # In binary, 0.29 * 100 is less than 29.
    found = report(capsys, "--clients", "100", "--corrupt", text)

    assert (found["corrupt"], found["corrupt_part"]) == (29, "29/100")


def test_drop_out_adds_up_over_sums(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--dropout", "0.1", "--sums", "5")

    assert (found["dropout"], found["cumulative_dropout"], found["dropped"]) == ("1/10", "40951/100000", 409)


@pytest.mark.parametrize(
    ("options", "graph", "neighbours"),
    [
        (("--clients", "128"), "complete", 127),
        (("--clients", "128", "--graph", "ring"), "ring", 18),
        (("--clients", "128", "--form", "exact"), "ring", 18),
        (("--clients", "128", "--form", "exact", "--graph", "auto"), "complete", 127),
        (("--clients", "128", "--form", "exact", "--trust", "malicious_server"), "complete", 127),
        (("--graph", "complete"), "complete", 999),
        (("--neighbours", "51"), "ring", 52),
        (("--clients", "2", "--corrupt", "0", "--dropout", "0"), "complete", 1),
    ],
)
def test_graph(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], graph: str, neighbours: int
) -> None:
    found = report(capsys, *options)

    assert (found["graph"], found["neighbours"]) == (graph, neighbours)
    assert (found["log2_unrecoverable"] is None) is (graph == "complete")


def test_text_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "--dropout", "1/3"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "clients", "drop-out", "graph", "threshold", "corrupt", "disconnected", "unrecoverable",
    ]  # fmt: skip
    assert lines[0].endswith("1,000, of whom 50 may collude with a curious_server")
    assert lines[1].endswith("333 may be missing after 1 sum")
    assert lines[2].endswith("ring, where each client has 84 neighbours")
    assert lines[3].endswith("a mask opens with 26 shares")
    assert " at most 2^-44.0 that " in lines[4]
    assert " at most 2^-106.5 that " in lines[5]
    assert " at most 2^-30.9 that " in lines[6]


def test_text_of_what_cannot_happen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "--graph", "complete"]) == 0

    assert capsys.readouterr().out.count(" no chance that ") == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--clients", "0"), "'0' is not a whole number from 2 to 1000000000"),
        (("--clients", "1000000001"), "'1000000001' is not a whole number from 2 to 1000000000"),
        (("--corrupt", "3/2"), "'3/2' is neither a whole number nor a part of all such as 0.1 or 1/10"),
        (("--corrupt", "1000"), "1000 clients of whom 1000 are corrupt need 1001 survivors"),
        (("--dropout", "1"), "'1' is not at least 0 and below 1"),
        (("--dropout", "-1."), "argument --dropout: expected one argument"),
        (("--sums", "65"), "'65' is not a whole number from 1 to 64"),
        (("--sums", "64", "--dropout", "1e-1000"), "too many digits: round --dropout"),
        (("--sigma", "0"), "'0' is not a whole number from 1 to 1024"),
        (("--eta", "1025"), "'1025' is not a whole number from 1 to 1024"),
        (("--neighbours", "1"), "'1' is not a whole number from 2 to 131072"),
        (("--neighbours", "1000"), "1000 clients have at most 999 neighbours each: lower --neighbours"),
        (("--trust", "blind"), "invalid choice: 'blind'"),
        (("--graph", "star"), "invalid choice: 'star'"),
        (("--form", "round"), "invalid choice: 'round'"),
        (("--graph", "complete", "--clients", "1025"), "takes from 2 to 1024 clients, not 1025"),
        (("--trust", "malicious_server", "--clients", "1025"), "takes from 2 to 1024 clients, not 1025"),
        (("--trust", "malicious_server", "--graph", "ring"), "take the complete graph"),
        (("--corrupt", "1/2", "--dropout", "1/2", "--clients", "5000"), "leave no two honest ones"),
        (
            ("--clients", "5000", "--corrupt", "1/3", "--dropout", "1/3", "--trust", "semi_malicious_server"),
            "no ring of 5000 clients with up to 4999 neighbours withstands 1666 corrupt and 1666 dropped",
        ),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(capsys, *options)


def test_help_tells_what_form_does_and_what_the_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["params", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "exit status is 0 if parameters were found, and 2 if not or if an argument is wrong" in text
    assert "a ring also if --form is given, --graph is not, and the server is not malicious" in text


def test_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    assert main(["params"]) == 0


def test_choices_and_limits_are_those_of_the_library() -> None:
    assert tuple(graph_parameters.ServerClass) == params.SERVERS
    assert tuple(graph_parameters.GraphChoice) == params.GRAPHS
    assert tuple(graph_parameters.Form) == params.FORMS
    assert params.MAX_CLIENTS == graph_parameters.MAX_CLIENTS
    assert params.MAX_NEIGHBOURS == graph_parameters.MAX_NEIGHBOURS
    assert params.MAX_BITS == graph_parameters.MAX_BITS
