"""The log has a line for every event worth one, and writes it once, however often a peer makes it happen."""

from __future__ import annotations

import hashlib
import logging

import pytest

from secagg import events
from secagg.errors import BadVector, TooFewClients, WrongShare
from secagg.evidence import Evidence, Offence
from secagg.local_session import Stage
from secagg.net import event_log as module
from secagg.net import events as net_events
from secagg.net.connection import ConnectionLost
from secagg.net.event_log import EventLog, Fact, LogLine, render
from secagg.net.events import ConnectionRefused, LeaveReason, NetworkEvent, SessionLossReason
from secagg.net.packets import Reason
from secagg.net.settings import Address
from secagg.usable_values import Unusable, Zeros
from tests.secagg.net.rig import KIND, Diary, table

SPEC = table()[KIND]
SECRET = b"payload that only clients should see"
JOINED = events.Joined(b"\x0a", 9, 5)
LOST = ConnectionLost("it broke")
WRONG = WrongShare(5, 2)
CONVICTED: dict[str, Fact] = {"member": 5, "offence": "WrongShare", "reason": WRONG.why}
EVIDENCE = Evidence(Offence.WRONG_SHARE, 5, b"invitation", b"key list", (), (b"a secret",))
SHA256 = hashlib.sha256(EVIDENCE.encode()).hexdigest()


def refused(reason: object) -> ConnectionRefused:
    return ConnectionRefused("h", str(reason))


def test_a_line_of_the_programs_own_is_always_written() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(3):
        log.write("started", sum=1)
    assert diary == [("started", {"sum": 1})] * 3


@pytest.mark.parametrize(
    "event",
    [
        events.SessionReady(b"\x01", (1, 2), 2, 1),
        events.SumAborted(4, TooFewClients("few")),
        events.SessionFailed(TooFewClients("few")),
        events.Convicted(5, WRONG),
        net_events.ValuesChanged(1, KIND, ("x",), None),
    ],
)
def test_milestones_are_always_written(event: NetworkEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 0)
    diary = Diary()
    log = EventLog(diary)
    for _ in range(3):
        log(event)
    assert diary == [render(event)] * 3


def test_a_line_that_a_peer_can_repeat_is_written_once_and_counted() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(1000):
        log(refused("r"))
    log(refused("other"))
    assert diary == [("refused", {"host": "h", "reason": "r"}), ("refused", {"host": "h", "reason": "other"})]
    log.write_repetitions()
    assert diary[2:] == [("repeated", {"what": "refused", "times": 1000, "host": "h", "reason": "r"})]


def test_the_end_of_a_servers_session_writes_the_counts() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(2):
        log(events.Late(1))
    log(net_events.SessionClosed())
    assert diary[1:] == [("repeated", {"what": "late", "times": 2, "member": 1})]


def test_after_the_counts_it_starts_anew() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(2):
        log(events.Late(1))
        log.write_repetitions()
    assert diary == [("late", {"member": 1})] * 2
    log.write_repetitions()
    assert len(diary) == 2


def test_it_remembers_a_bounded_number_of_different_lines() -> None:
    diary = Diary()
    log = EventLog(diary)
    for number in range(2 * module._REMEMBERED):
        log(refused(number))
        log(refused(0))
    assert len(diary) == module._REMEMBERED
    diary.clear()
    log.write_repetitions()
    more = {"what": "more than could be told apart", "entries": module._REMEMBERED}
    assert diary == [
        ("repeated", {"what": "refused", "times": 2 * module._REMEMBERED + 1, "host": "h", "reason": "0"}),
        ("repeated", more),
    ]
    diary.clear()
    log.write_repetitions()
    assert diary == []


def test_as_many_as_it_remembers_are_told_apart() -> None:
    diary = Diary()
    log = EventLog(diary)
    for number in range(module._REMEMBERED):
        log(refused(number))
    diary.clear()
    log.write_repetitions()
    assert diary == []


def test_a_session_that_a_client_never_joined_is_written_once() -> None:
    diary = Diary()
    log = EventLog(diary)
    for _ in range(3):
        log(events.SessionOver())
    assert diary == [("session over", {})]


@pytest.mark.parametrize(
    "end",
    [
        events.SessionOver(),
        net_events.SessionLost(SessionLossReason.DISMISSED),
        net_events.SessionRefused(BadVector(1, "bad")),
    ],
)
def test_steps_of_a_joined_session_are_always_written_until_it_ends(end: NetworkEvent) -> None:
    diary = Diary()
    log = EventLog(diary)
    for event in (JOINED, events.Abandoned(1), events.Abandoned(1), end):
        log(event)
    assert diary == [render(JOINED), ("abandoned", {"sum": 1}), ("abandoned", {"sum": 1}), render(end)]
    diary.clear()
    for _ in range(3):
        log(events.Abandoned(1))
    assert diary == [("abandoned", {"sum": 1})]


def test_without_a_sink_lines_go_to_the_standard_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="secagg.net"):
        EventLog()(net_events.ClientLeft(7, LeaveReason.CONNECTION_LOST))
    assert caplog.messages == ["left member=7 reason=lost its connection"]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (events.Late(3), LogLine("late", {"member": 3})),
        (events.Declined(3), LogLine("declined", {"member": 3})),
        (events.Missing((1, 4), "masking"), LogLine("missing", {"stage": "masking", "members": "1,4"})),
        (events.Convicted(5, WRONG), LogLine("convicted", {**CONVICTED, "evidence": None})),
        (events.Convicted(5, WRONG, EVIDENCE), LogLine("convicted", {**CONVICTED, "evidence": SHA256})),
        (events.Stranded((7,)), LogLine("stranded", {"members": "7"})),
        (
            events.SessionReady(b"\x01\x02", (1, 2), 2, 1),
            LogLine("session", {"id": "0102", "clients": 2, "threshold": 2}),
        ),
        (events.SumAborted(4, TooFewClients("few")), LogLine("aborted", {"sum": 4, "reason": "few"})),
        (events.SessionFailed(TooFewClients("few")), LogLine("failed", {"reason": "few"})),
        (events.StageFull(), None),
        (events.Excluded(1, BadVector(1, "bad")), None),  # `ClientExcluded` follows
        (net_events.SessionBegun(), None),
        (net_events.StageClosed(Stage.MASK, 1.5), None),
        (net_events.TrafficCounted(Stage.MASK, 1, 2), None),
        (net_events.SessionClosed(), None),
        (refused("r"), LogLine("refused", {"host": "h", "reason": "r"})),
        (net_events.ClientConnected(1, False), LogLine("connected", {"member": 1})),
        (net_events.ClientConnected(1, True), LogLine("reconnected", {"member": 1})),
        (
            net_events.ClientDisconnected(1, LOST),
            LogLine("disconnected", {"member": 1, "reason": "it broke"}),
        ),
        (
            net_events.ClientExcluded(1, BadVector(1, "bad")),
            LogLine("excluded", {"member": 1, "error": "BadVector", "reason": "bad"}),
        ),
    ],
)
def test_lines_of_a_server(event: NetworkEvent, line: LogLine | None) -> None:
    assert render(event) == line


@pytest.mark.parametrize("reason", LeaveReason)
def test_every_reason_to_leave_has_words(reason: LeaveReason) -> None:
    line = render(net_events.ClientLeft(1, reason))
    assert line is not None
    assert line.facts["reason"]


@pytest.mark.parametrize("reason", SessionLossReason)
def test_every_loss_of_a_session_has_words(reason: SessionLossReason) -> None:
    line = render(net_events.SessionLost(reason))
    assert line is not None
    assert line.facts["reason"]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (JOINED, LogLine("session", {"id": "0a", "clients": 9, "threshold": 5})),
        (events.EnvelopeLost(3), LogLine("envelope lost", {"peer": 3})),
        (
            events.Asked(1, 2, KIND, SECRET, SPEC, 9),
            LogLine("asked", {"sum": 1, "kind": KIND, "invited": 9}),
        ),
        (events.SatOut(1, KIND), LogLine("sat out", {"sum": 1})),
        (events.Confirmed(1, 8), LogLine("counted", {"sum": 1, "clients": 8})),
        (events.Abandoned(1), LogLine("abandoned", {"sum": 1})),
        (events.SessionOver(), LogLine("session over", {})),
        (
            net_events.ServerConnected(Address("h", 1), False),
            LogLine("connected", {"server": "h:1"}),
        ),
        (net_events.ServerDisconnected(LOST), LogLine("disconnected", {"reason": "it broke"})),
        (net_events.ServerUnreachable(LOST), LogLine("unreachable", {"reason": "it broke"})),
        (net_events.ClientDismissed(Reason.CLOSING), LogLine("dismissed", {"reason": "closing"})),
        (
            net_events.SessionRefused(BadVector(1, "bad")),
            LogLine("refused", {"error": "BadVector", "reason": "client 1: bad"}),
        ),
        (
            net_events.ValuesChanged(1, KIND, ("x", "n"), None),
            LogLine("clipped", {"sum": 1, "kind": KIND, "parts": "x,n"}),
        ),
        (
            net_events.ValuesChanged(1, KIND, (), Zeros(Unusable.FAILED, "ValueError")),
            LogLine("zeros", {"sum": 1, "kind": KIND, "reason": "failed", "detail": "ValueError"}),
        ),
    ],
)
def test_lines_of_a_client(event: NetworkEvent, line: LogLine) -> None:
    assert render(event) == line


@pytest.mark.parametrize("name", ["_client_side", "_server_side", "_client_machine", "_server_machine"])
def test_an_event_without_a_line_is_an_error(name: str) -> None:
    with pytest.raises(AssertionError):
        getattr(module, name)(object())
