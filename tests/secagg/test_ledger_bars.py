"""A server's ledger remembers whom to bar: liars, and both sides of a dispute, until they are forgiven."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg import errors, events
from secagg.evidence import Evidence, Offence
from secagg.ledger import ServerLedger, read_ledger

LIE = errors.FalseCount(5, "a masked count that is not 1")
EVIDENCE = Evidence(Offence.FALSE_COUNT, 5, b"invitation", b"keys", (), (b"one-time secret",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_liars_and_both_sides_of_a_dispute_are_barred_for_good(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(events.Convicted(5, LIE, EVIDENCE))
        ledger.note(events.Excluded(5, LIE))
        for peer, other in ((2, 9), (9, 2)):
            ledger.note(events.Excluded(peer, errors.Dispute(peer, other)))
        ledger.note(events.Excluded(7, errors.BadKey(7, "why")))
        assert ledger.barred == {2, 5, 9}
    with ServerLedger.open(path) as ledger:
        assert ledger.barred == {2, 5, 9}
    rows = [row.body for row in read_ledger(path).rows if row.body["entry"] == "barred"]
    assert [(row["peer"], row["why"]) for row in rows] == [(5, "FalseCount"), (2, "Dispute"), (9, "Dispute")]
    assert [row.get("evidence") for row in rows] == [EVIDENCE.sha256, None, None]
    assert [row.get("other") for row in rows] == [None, 9, 2]


def test_evidence_itself_is_not_written(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(events.Convicted(5, LIE, EVIDENCE))
        ledger.note(events.Convicted(6, errors.FalseReport(6, "why")))
    text = str([row.body for row in read_ledger(path).rows])
    assert EVIDENCE.sha256 in text
    assert "one-time" not in text
    assert EVIDENCE.values[0].hex() not in text


def test_whoever_is_forgiven_may_come_again_and_lie_again(path: Path) -> None:
    with ServerLedger.create(path) as ledger, ServerLedger.open(path) as operator:
        ledger.note(events.Convicted(5, LIE))
        operator.forgive(5)
        assert ledger.barred == frozenset()
        ledger.note(events.Convicted(5, LIE))
        assert operator.barred == {5}
        operator.forgive(5)
    with ServerLedger.open(path) as ledger:
        assert ledger.barred == frozenset()
    rows = [row.body for row in read_ledger(path).rows if row.body["entry"] == "forgiven"]
    assert rows == [{"entry": "forgiven", "peer": 5}] * 2


def test_only_who_is_barred_can_be_forgiven(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(events.Convicted(5, LIE))
        before = ledger.head
        with pytest.raises(errors.LedgerError, match="client 6 is not barred"):
            ledger.forgive(6)
        assert ledger.head == before
