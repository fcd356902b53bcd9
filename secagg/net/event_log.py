"""The operator's log: turns events into lines of text, and limits how often a peer can cause the same line.

A line is a short text and a few facts. Only this module chooses the text for an event, and no program depends
on the text. A hostile peer can make the same event happen very often. Therefore a line that a peer can repeat
is written once, and its repetitions are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, assert_never

from secagg import events
from secagg.local_session import Stage
from secagg.net import events as net_events
from secagg.net.events import KeyListing, LeaveReason, NetworkEvent, SessionLossReason

Fact: TypeAlias = str | int | float | bool | None
Sink: TypeAlias = Callable[[str, Mapping[str, Fact]], None]

_REMEMBERED: Final = 4096  # different lines that are counted one by one; all others are counted together
_logger: Final = logging.getLogger("secagg.net")

# A peer cannot cause these events at will. They are written each time, even if too many lines were seen.
_MILESTONES: Final = (
    events.SessionReady,
    events.SumReleased,
    events.SumAborted,
    events.SessionFailed,
    events.Convicted,
    net_events.ClientsAwaited,  # at intervals
    net_events.SessionWaiting,
    net_events.ValuesChanged,  # the client has paid for each from its budget
)
_SESSION_ENDS: Final = (events.SessionOver, net_events.SessionLost, net_events.SessionRefused)

_LEFT: Final = {
    LeaveReason.CONNECTION_LOST: "lost its connection",
    LeaveReason.PROCESS_RESTARTED: "its process was restarted",
    LeaveReason.LEFT_SESSION: "left the session",
    LeaveReason.REFUSED_INVITATION: (
        "refused the invitation; its log says whether it needs another trust, key agreement, number of sums, "
        "table or registry"
    ),
    LeaveReason.COHORT_FULL: "the cohort is full",
    LeaveReason.KEY_CHANGED: "a newer registry lists another key for it, or none",
}
_LOST: Final = {
    SessionLossReason.SERVER_FORGOT: "the server does not know it any more",
    SessionLossReason.DISMISSED: "the server has sent us away",
}


_LISTED: Final = {
    KeyListing.OWN: "listed",
    KeyListing.NEXT: "the new key is listed, and is used from now on",
    KeyListing.OTHER: "another key is listed: install it, or have the authority enrol this one",
    KeyListing.NONE: "this client is not listed: have the authority enrol it again",
}


class LogLine(NamedTuple):
    """One line of the log: a short text, and facts by their names."""

    text: str
    facts: Mapping[str, Fact]

    def __str__(self) -> str:
        return " ".join([self.text, *(f"{key}={value}" for key, value in self.facts.items())])


def to_log(text: str, facts: Mapping[str, Fact]) -> None:
    """Write a line, with facts as `key=value`, to the logger "secagg.net". `EventLog` does so by default."""
    _logger.info("%s", LogLine(text, facts))


class EventLog:
    """An `on_event` callback that writes events by `sink(text, facts)`. Each client or server needs its own.
    A line that a peer could cause again and again is written once, and then only counted.

    >>> from secagg.net.events import ClientConnected
    >>> log = EventLog(lambda text, facts: print(text, dict(facts)))
    >>> log(ClientConnected(member=5, resumed=False))
    connected {'member': 5}
    """

    def __init__(self, sink: Sink = to_log) -> None:
        self._sink = sink
        self._counts: dict[tuple[str, tuple[tuple[str, Fact], ...]], int] = {}
        self._surplus = 0
        self._joined = False

    def __call__(self, event: NetworkEvent) -> None:
        if isinstance(event, net_events.SessionClosed):
            self.write_repetitions()
        self._joined = self._joined or isinstance(event, events.Joined)
        line = render(event)
        if line is not None and self._is_milestone(event):
            self._sink(*line)
        elif line is not None:
            self._write_once(line)
        self._joined = self._joined and not isinstance(event, _SESSION_ENDS)

    def _is_milestone(self, event: NetworkEvent) -> bool:
        """Return whether `event` is written each time it happens: if no peer can cause it at will, or if it
        comes from a client machine that has joined a session. Before that, a server could cause events of the
        machine at no cost, and fill the client's log."""
        return isinstance(event, _MILESTONES) or (self._joined and isinstance(event, events.ClientEvent))

    def write(self, text: str, **facts: Fact) -> None:
        """Write a line that does not come from an event. Unlike an event's line, it is never suppressed."""
        self._sink(text, facts)

    def _write_once(self, line: LogLine) -> None:
        """Count `line`. Write it if it is new and fewer than `_REMEMBERED` different lines are counted."""
        key = (line.text, tuple(line.facts.items()))
        if key in self._counts:
            self._counts[key] += 1
        elif len(self._counts) < _REMEMBERED:
            self._counts[key] = 1
            self._sink(*line)
        else:
            self._surplus += 1

    def write_repetitions(self) -> None:
        """Write how often repeated lines occurred. Forget all lines, so that they can be written again."""
        for (text, facts), times in self._counts.items():
            if times > 1:
                self._sink("repeated", {"what": text, "times": times, **dict(facts)})
        if self._surplus:
            self._sink("repeated", {"what": "more than could be told apart", "entries": self._surplus})
        self._counts.clear()
        self._surplus = 0


def render(event: NetworkEvent) -> LogLine | None:
    """Return the log line that describes `event`, or None if events of its type are not logged."""
    if isinstance(event, net_events.ClientSideEvent):
        return _client_side(event)
    if isinstance(event, net_events.ServerSideEvent):
        return _server_side(event)
    return _client_machine(event) if isinstance(event, events.ClientEvent) else _server_machine(event)


def _client_side(event: net_events.ClientSideEvent) -> LogLine:
    match event:
        case net_events.ServerIncompatible() | net_events.ServerIsOlder():
            return _versions(event)
        case net_events.RegistryAdopted() | net_events.ServerCertificateAdopted() | net_events.KeysRefused():
            return _about_keys(event)
        case net_events.SessionLost():
            return LogLine("session lost", {"reason": _LOST[event.reason]})
        case net_events.SessionRefused():
            return LogLine("refused", {"error": type(event.error).__name__, "reason": str(event.error)})
        case net_events.NoticeReceived():
            return LogLine("notice", {"topic": event.notice.topic.name.lower()})
        case net_events.ValuesChanged():
            return _changed(event)
    return _to_server(event)


def _to_server(event: net_events.ServerConnectionEvent) -> LogLine:
    match event:
        case net_events.ServerConnected():
            return LogLine(_connected(event.resumed), {"server": str(event.server)})
        case net_events.ServerDisconnected():
            return LogLine("disconnected", {"reason": str(event.error)})
        case net_events.ServerUnreachable():
            return LogLine("unreachable", {"reason": str(event.error)})
        case net_events.ClientDismissed():
            return LogLine("dismissed", {"reason": event.reason.name.lower()})
    assert_never(event)


def _versions(event: net_events.VersionEvent) -> LogLine:
    match event:
        case net_events.ServerIncompatible():
            return LogLine("incompatible", {"server": str(event.server), "reason": event.error.why})
        case net_events.ServerIsOlder():
            reason = f"the server uses {event.agreed}; this client speaks {event.own}: upgrade the server"
            return LogLine("versions", {"server": str(event.server), "reason": reason})
        case net_events.ClientIncompatible():
            facts: dict[str, Fact] = {"member": event.error.peer, "host": event.host}
            return LogLine("incompatible", {**facts, "reason": event.error.why})
    spoken = f"the client speaks {event.offered}; this server speaks {event.own}"
    return LogLine("versions", {"member": event.member, "reason": f"{spoken}; used: {event.agreed}"})


def _about_keys(
    event: net_events.RegistryAdopted | net_events.ServerCertificateAdopted | net_events.KeysRefused,
) -> LogLine:
    if isinstance(event, net_events.KeysRefused):
        return LogLine("keys refused", {"error": type(event.error).__name__, "reason": str(event.error)})
    if isinstance(event, net_events.ServerCertificateAdopted):
        return LogLine("server certificate adopted", {})
    about = {"version": event.registry.version, "members": len(event.registry.members)}
    return LogLine("registry adopted", {**about, "own_key": _LISTED[event.listing]})


def _changed(event: net_events.ValuesChanged) -> LogLine:
    about: dict[str, Fact] = {"sum": event.sum_index, "kind": event.kind}
    if event.zeros is None:
        return LogLine("clipped", {**about, "parts": ",".join(event.clipped)})
    return LogLine("zeros", {**about, "reason": str(event.zeros.reason), "detail": event.zeros.detail})


def _server_side(event: net_events.ServerSideEvent) -> LogLine | None:
    match event:
        case net_events.ConnectionRefused():
            return LogLine("refused", {"host": event.host, "reason": event.reason})
        case net_events.ClientIncompatible() | net_events.ClientVersionsDiffer():
            return _versions(event)
        case net_events.ClientConnected():
            return LogLine(_connected(event.resumed), {"member": event.member})
        case net_events.ClientDisconnected():
            return LogLine("disconnected", {"member": event.member, "reason": str(event.error)})
        case net_events.ClientLeft():
            return LogLine("left", {"member": event.member, "reason": _LEFT[event.reason]})
        case net_events.ClientExcluded():
            error, why = type(event.error).__name__, event.error.why
            return LogLine("excluded", {"member": event.member, "error": error, "reason": why})
        case net_events.ClientNotice():
            topic, words = event.notice.topic.name.lower(), printable(event.notice.body)
            return LogLine("notice", {"member": event.member, "topic": topic, "reason": words})
        case net_events.ClientsAwaited() | net_events.SessionWaiting():
            return _waiting(event)
        case (
            net_events.SessionBegun()
            | net_events.StageClosed()
            | net_events.TrafficCounted()
            | net_events.SessionClosed()
        ):
            return None
    assert_never(event)


def _waiting(event: net_events.ClientsAwaited | net_events.SessionWaiting) -> LogLine:
    if isinstance(event, net_events.ClientsAwaited):
        counts = {"connected": event.connected, "needed": event.needed, "barred": event.barred}
        return LogLine("waiting", counts)
    answered = "joined" if event.stage is Stage.ADVERTISE else "answered"
    counts = {answered: event.answered, "expected": event.expected, "offline": event.offline}
    return LogLine("waiting", {"stage": event.stage.value, **counts, "seconds": round(event.seconds)})


def _server_machine(event: events.ServerEvent) -> LogLine | None:
    match event:
        case events.StageFull() | events.SurvivorsFixed() | events.Excluded():
            return None  # `ClientExcluded` or `ClientLeft` follows
        case events.Late() | events.Declined():
            name = "late" if isinstance(event, events.Late) else "declined"
            return LogLine(name, {"member": event.peer})
        case events.Missing():
            return LogLine("missing", {"stage": event.stage, "members": _listed(event.peers)})
        case events.Convicted():
            offence, reason = type(event.error).__name__, event.error.why
            evidence = None if event.evidence is None else event.evidence.sha256
            facts: dict[str, Fact] = {"member": event.peer, "offence": offence, "reason": reason}
            return LogLine("convicted", {**facts, "evidence": evidence})
        case events.Stranded():
            return LogLine("stranded", {"members": _listed(event.peers)})
        case events.SessionReady():
            return _joined(event.session, len(event.members), event.threshold)
        case events.SumReleased():
            return LogLine("released", {"sum": event.sum_index, "clients": len(event.contributors)})
        case events.SumAborted():
            return LogLine("aborted", {"sum": event.sum_index, "reason": str(event.error)})
        case events.SessionFailed():
            return LogLine("failed", {"reason": str(event.error)})
    assert_never(event)


def _client_machine(event: events.ClientEvent) -> LogLine:
    match event:
        case events.Joined():
            return _joined(event.session, event.cohort, event.threshold)
        case events.EnvelopeLost():
            return LogLine("envelope lost", {"peer": event.peer})
        case events.Asked():
            return LogLine("asked", {"sum": event.sum_index, "kind": event.kind, "invited": event.invited})
        case events.SatOut():
            return LogLine("sat out", {"sum": event.sum_index})
        case events.Confirmed():
            return LogLine("counted", {"sum": event.sum_index, "clients": event.contributors})
        case events.Abandoned():
            return LogLine("abandoned", {"sum": event.sum_index})
        case events.SessionOver():
            return LogLine("session over", {})
    assert_never(event)


def printable(body: bytes) -> str:
    """Return a peer's text for a log: one line, without characters that a terminal could act on."""
    return "".join(each if each.isprintable() else "?" for each in body.decode("utf-8", "replace"))


def _connected(resumed: bool) -> str:
    return "reconnected" if resumed else "connected"


def _joined(session: bytes, clients: int, threshold: int) -> LogLine:
    return LogLine("session", {"id": session.hex(), "clients": clients, "threshold": threshold})


def _listed(members: Iterable[int]) -> str:
    return ",".join(map(str, members))
