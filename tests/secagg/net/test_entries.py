"""Every event that is news has an entry, with facts that a journal can write and no payload in them."""

from __future__ import annotations

import pytest

from secagg import events
from secagg.errors import BadShare, TooFewClients
from secagg.net.entries import Entry, client_entry, server_entry
from tests.secagg.net.rig import KIND, table

SPEC = table()[KIND]
SECRET = b"payload that nobody but clients should see"


@pytest.mark.parametrize(
    ("event", "entry"),
    [
        (events.Late(3), Entry("late", {"member": 3})),
        (events.Missing((1, 4), "masking"), Entry("missing", {"stage": "masking", "members": "1,4"})),
        (events.WrongShares(2, (5, 6)), Entry("wrong shares", {"dealer": 2, "holders": "5,6"})),
        (events.Stranded((7,)), Entry("stranded", {"members": "7"})),
        (
            events.SessionReady(b"\x01\x02", (1, 2), 2, 1),
            Entry("session", {"id": "0102", "clients": 2, "threshold": 2}),
        ),
        (events.SumAborted(4, TooFewClients("few")), Entry("aborted", {"sum": 4, "reason": "few"})),
        (events.SessionFailed(TooFewClients("few")), Entry("failed", {"reason": "few"})),
        (events.StageFull(), None),
        (events.Excluded(1, BadShare(1, "bad")), None),  # written by whoever sends it away
    ],
)
def test_entries_of_a_server(event: events.ServerEvent, entry: Entry | None) -> None:
    assert server_entry(event) == entry


@pytest.mark.parametrize(
    ("event", "entry"),
    [
        (events.Joined(b"\x0a", 9, 5), Entry("session", {"id": "0a", "clients": 9, "threshold": 5})),
        (events.EnvelopeLost(3), Entry("envelope lost", {"peer": 3})),
        (
            events.Asked(1, 2, KIND, SECRET, SPEC, 9),
            Entry("asked", {"sum": 1, "kind": KIND, "invited": 9}),
        ),
        (events.SatOut(1, KIND), Entry("sat out", {"sum": 1})),
        (events.Confirmed(1, 8), Entry("counted", {"sum": 1, "clients": 8})),
        (events.Abandoned(1), Entry("abandoned", {"sum": 1})),
        (events.SessionOver(), Entry("session over", {})),
    ],
)
def test_entries_of_a_client(event: events.ClientEvent, entry: Entry) -> None:
    assert client_entry(event) == entry
