"""What the machines' events look like in a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from secagg import events
from secagg.events import ClientEvent, ServerEvent
from secagg.net.journal import Fact


class Entry(NamedTuple):
    """A name and its facts."""

    event: str
    facts: Mapping[str, Fact]


def server_entry(event: ServerEvent) -> Entry | None:
    """None for what is no news, or what others write about."""
    match event:
        case events.Late():
            return Entry("late", {"member": event.peer})
        case events.Missing():
            return Entry("missing", {"stage": event.stage, "members": _listed(event.peers)})
        case events.WrongShares():
            return Entry("wrong shares", {"dealer": event.dealer, "holders": _listed(event.holders)})
        case events.Stranded():
            return Entry("stranded", {"members": _listed(event.peers)})
        case events.SessionReady():
            return _session(event.session, len(event.members), event.threshold)
        case events.SumReleased():
            return Entry("released", {"sum": event.sum_index, "clients": len(event.contributors)})
        case events.SumAborted():
            return Entry("aborted", {"sum": event.sum_index, "reason": str(event.error)})
        case events.SessionFailed():
            return Entry("failed", {"reason": str(event.error)})
    return None


def client_entry(event: ClientEvent) -> Entry:
    match event:
        case events.Joined():
            return _session(event.session, event.cohort, event.threshold)
        case events.EnvelopeLost():
            return Entry("envelope lost", {"peer": event.peer})
        case events.Asked():
            return Entry("asked", {"sum": event.sum_index, "kind": event.kind, "invited": event.invited})
        case events.SatOut():
            return Entry("sat out", {"sum": event.sum_index})
        case events.Confirmed():
            return Entry("counted", {"sum": event.sum_index, "clients": event.contributors})
        case events.Abandoned():
            return Entry("abandoned", {"sum": event.sum_index})
    return Entry("session over", {})


def _session(session: bytes, clients: int, threshold: int) -> Entry:
    return Entry("session", {"id": session.hex(), "clients": clients, "threshold": threshold})


def _listed(members: Iterable[int]) -> str:
    return ",".join(map(str, members))
