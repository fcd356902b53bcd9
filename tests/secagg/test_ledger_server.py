"""A server's ledger: what was asked and released, counted before anyone sees a total."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import events
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.client_budget import Spend, sum_charge
from secagg.errors import BadKey, LedgerError, ParameterError, StateError, SumFailed, TooFewClients
from secagg.ledger import Role, ServerLedger, read_ledger
from secagg.ledger.chained_rows import Body
from secagg.noise.zcdp_cost import Adjacency
from secagg.query_context import query_digest
from secagg.sum_spec import Table, Total
from tests.secagg.ledgers import NOISY, PLAIN, SESSION

TABLE = Table({"noisy": NOISY, "plain": PLAIN})
READY = events.SessionReady(SESSION, members=(1, 2, 3, 5, 8, 9, 10, 11), threshold=4, neighbours=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def query(sum_index: int, kind: str, *, roster: int = 7) -> bytes:
    bitmap = pack_positions(range(1, roster + 1), 8)
    return m.Query(SESSION, sum_index, 4, kind, bitmap, b"model").encode()


def released(sum_index: int) -> events.SumReleased:
    total = Total(parts={"x": np.zeros(1)}, count=6, invited=7)
    return events.SumReleased(sum_index, total, (1, 2, 3, 5, 8, 9))


def bodies(path: Path) -> list[Body]:
    return [row.body for row in read_ledger(path).rows]


def charge(roster: int, adjacency: Adjacency = Adjacency.ZERO_OUT) -> int:
    found = sum_charge(NOISY, roster=roster, adjacency=adjacency)
    assert found is not None
    return found


def test_a_sum_is_counted_when_it_is_released(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(READY)
        ledger.note_asked(query(0, "noisy"), TABLE)
        assert ledger.spend == Spend()
        ledger.note(released(0))
        assert ledger.spend == Spend(charge=charge(7), noised=1)
        ledger.note_asked(query(1, "plain"), TABLE)
        ledger.note(released(1))
        ledger.note_asked(query(2, "noisy", roster=6), TABLE, adjacency=Adjacency.ADD_REMOVE)
        ledger.note(released(2))
        spend = ledger.spend
    assert spend == Spend(charge=charge(7) + charge(6), noised=2, unnoised=1)
    with ServerLedger.open(path) as ledger:
        assert ledger.spend == spend
    reading = read_ledger(path)
    assert reading.spend == spend
    assert reading.owner.role is Role.SERVER


def test_what_was_asked_and_released_can_be_read(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(READY)
        ledger.note_asked(query(0, "noisy"), TABLE)
        ledger.note(released(0))
    _, session, asked, counted = bodies(path)
    assert session == {"entry": "session", "session": SESSION.hex(), "cohort": 8, "threshold": 4}
    expected: dict[str, Any] = {
        "entry": "asked",
        "session": SESSION.hex(),
        "sum index": 0,
        "round": 4,
        "kind": "noisy",
        "query": query_digest(query(0, "noisy")).hex(),
        "spec": NOISY.digest.hex(),
        "roster": 7,
        "adjacency": "zero-out",
        "charge": charge(7),
        "bytes": NOISY.packed_bytes,
        "broadcast bytes": len(query(0, "noisy")),
    }
    assert {key: asked[key] for key in expected} == expected
    assert [part["name"] for part in asked["parts"]] == ["loss", "update"]
    assert asked["promise"]["colluders"] == 1
    assert counted == {
        "entry": "released",
        "session": SESSION.hex(),
        "sum index": 0,
        "kind": "noisy",
        "contributors": 6,
        "charge": charge(7),
        "adjacency": "zero-out",
        "charge so far": charge(7),
        "unnoised so far": 0,
    }


def test_failures_and_exclusions_cost_nothing_and_are_written_down(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(events.SessionFailed(TooFewClients("why")))
        ledger.note(READY)
        ledger.note_asked(query(0, "noisy"), TABLE)
        ledger.note(events.Excluded(9, BadKey(9, "a reason at length")))
        ledger.note(events.SumAborted(0, SumFailed("why")))
        assert ledger.spend == Spend()
    _, failed, _, _, excluded, aborted = bodies(path)
    assert failed == {"entry": "failed", "session": "", "why": "TooFewClients"}
    assert excluded == {"entry": "excluded", "session": SESSION.hex(), "peer": 9, "why": "BadKey"}
    assert aborted == {"entry": "aborted", "session": SESSION.hex(), "sum index": 0, "why": "SumFailed"}


@pytest.mark.parametrize("event", [events.StageFull(), events.Late(3), events.Missing((3,), "masking")])
def test_not_everything_is_worth_a_row(path: Path, event: events.ServerEvent) -> None:
    with ServerLedger.create(path) as ledger:
        before = ledger.head
        ledger.note(event)
        assert ledger.head == before


def test_a_release_without_its_query_cannot_be_counted(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(READY)
        with pytest.raises(StateError, match="sum 0 was released, but the ledger was not told of its query"):
            ledger.note(released(0))
        ledger.note_asked(query(1, "noisy"), TABLE)
        with pytest.raises(StateError, match="sum 0 was released"):
            ledger.note(released(0))
        assert ledger.spend == Spend()


def test_a_release_belongs_to_the_session_of_its_query(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        ledger.note(READY)
        ledger.note_asked(query(0, "noisy"), TABLE)
        ledger.note(replace(READY, session=b"t" * 32))
        with pytest.raises(StateError, match="sum 0 was released, but the ledger was not told of its query"):
            ledger.note(released(0))
        assert ledger.spend == Spend()


def test_costs_of_different_kinds_are_not_added_up(path: Path) -> None:
    with ServerLedger.create(path) as one, ServerLedger.open(path) as two:
        one.note(READY)
        one.note_asked(query(0, "noisy"), TABLE, adjacency=Adjacency.REPLACE)
        two.note(READY)
        two.note_asked(query(0, "noisy"), TABLE)
        one.note(released(0))
        with pytest.raises(ParameterError, match="1 sums were charged under replace adjacency"):
            two.note(released(0))
        before = two.head
        with pytest.raises(ParameterError, match="to which costs under zero-out cannot be added"):
            two.note_asked(query(1, "noisy"), TABLE)
        assert two.head == before
        two.note_asked(query(1, "plain"), TABLE)
        two.note(released(1))
    expected = Spend(charge(7, Adjacency.REPLACE), noised=1, unnoised=1, adjacency=Adjacency.REPLACE)
    assert read_ledger(path).spend == expected


def test_only_a_query_asks_for_a_sum(path: Path) -> None:
    with ServerLedger.create(path) as ledger, pytest.raises(StateError, match="only a query asks for a sum"):
        ledger.note_asked(m.Farewell(SESSION).encode(), TABLE)


def test_a_ledger_that_cannot_be_written_lets_no_total_through(path: Path) -> None:
    ledger = ServerLedger.create(path)
    ledger.note(READY)
    ledger.note_asked(query(0, "noisy"), TABLE)
    ledger.close()
    with pytest.raises(LedgerError, match="was closed"):
        ledger.note(released(0))


def test_two_servers_may_share_a_ledger(path: Path) -> None:
    with ServerLedger.create(path) as one, ServerLedger.open(path) as two:
        for ledger in (one, two):
            ledger.note(READY)
            ledger.note_asked(query(0, "noisy"), TABLE)
        for ledger in (one, two):
            ledger.note(released(0))
        assert one.spend == two.spend == Spend(charge=2 * charge(7), noised=2)
    assert bodies(path)[-1]["charge so far"] == 2 * charge(7)


def test_a_ledger_that_is_checked_stays_as_it_is(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        before = ledger.head
        ledger.check_writable()
        assert ledger.head == before
        ledger.note(READY)
    with pytest.raises(LedgerError, match="closed"):
        ledger.check_writable()


def test_a_ledger_that_was_moved_is_not_writable_until_it_is_back(path: Path) -> None:
    with ServerLedger.create(path) as ledger:
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(LedgerError):
            ledger.check_writable()
        path.with_name("elsewhere").rename(path)
        ledger.check_writable()
