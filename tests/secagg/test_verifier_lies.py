"""The verifier finds out who lied in transcript-liars by itself: another account of it is rejected."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests import verifier

PATH = Path(__file__).resolve().parent.parent / "vectors" / "transcript-liars.json"
DATA: dict[str, Any] = json.loads(PATH.read_text(encoding="ascii"))
COUNT_LIAR, DEALER, HOLDER, REPORTER = 9, 70000, 300, 36


def changed() -> dict[str, Any]:
    return copy.deepcopy(DATA)


def rejected(data: dict[str, Any]) -> None:
    with pytest.raises(verifier.Rejected):
        verifier.verify(data)


def test_three_clients_are_convicted_one_after_another() -> None:
    rows = [(row["member"], row["offence"]) for entry in DATA["sums"] for row in entry["convicted"]]

    assert rows == [(COUNT_LIAR, "false count"), (DEALER, "false dealing"), (HOLDER, "wrong share")]
    assert [entry.get("error") for entry in DATA["sums"]] == ["CorruptTotal", "Unrecoverable", None]


def test_the_total_of_the_last_sum_is_exact() -> None:
    last = DATA["sums"][-1]
    columns = zip(*(given["values"]["x"] for given in last["inputs"].values()), strict=True)

    assert last["total"]["values"]["x"] == [sum(column) for column in columns]
    assert last["total"]["count"] == len(last["inputs"]) == len(DATA["members"]) - 2


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_conviction_that_is_left_out(index: int) -> None:
    data = changed()
    del data["sums"][index]["convicted"]
    rejected(data)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_conviction_of_somebody_else(index: int) -> None:
    data = changed()
    data["sums"][index]["convicted"][0]["member"] = 1
    rejected(data)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_conviction_too_many(index: int) -> None:
    data = changed()
    rows = data["sums"][index]["convicted"]
    rows.append({**rows[0], "member": 1})
    rejected(data)


@pytest.mark.parametrize(("index", "other"), [(0, 1), (1, 2), (2, 0)])
def test_evidence_of_another_lie(index: int, other: int) -> None:
    data = changed()
    evidence = DATA["sums"][other]["convicted"][0]["evidence"]
    data["sums"][index]["convicted"][0]["evidence"] = evidence
    rejected(data)


@pytest.mark.parametrize(
    "lie", [("sums", 0, "counts"), ("sums", 2, "wrong_shares"), ("clients", str(DEALER), "decoys")]
)
def test_a_lie_that_is_left_out(lie: tuple[Any, ...]) -> None:
    """The frames show it."""
    data = changed()
    first, second, key = lie
    del data[first][second][key]
    rejected(data)


def test_a_report_without_a_reason() -> None:
    data = changed()
    assert data["clients"][str(DEALER)]["unreadable"] == [REPORTER]
    data["clients"][str(DEALER)]["unreadable"] = []
    rejected(data)


@pytest.mark.parametrize("index", [0, 1])
def test_a_total_of_a_sum_that_failed(index: int) -> None:
    data = changed()
    entry = data["sums"][index]
    del entry["error"]
    entry["total"] = DATA["sums"][2]["total"]
    rejected(data)
    entry["error"] = "TooFewClients"
    rejected(data)


def test_convicted_clients_are_asked_nothing_more() -> None:
    for index, liar in ((1, COUNT_LIAR), (2, DEALER)):
        assert liar not in DATA["sums"][index]["roster"]
        data = changed()
        data["sums"][index]["roster"] = sorted([*data["sums"][index]["roster"], liar])
        rejected(data)
