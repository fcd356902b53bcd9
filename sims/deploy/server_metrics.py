"""The figures of a server for Prometheus. `ServerMetrics` is an `on_event` callback, for sums of any purpose.

Labels are stages, names of error classes and members of enums. They have no ids and no texts from outside, so
no peer can add to them. This module needs the extra `metrics`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from secagg import events
from secagg.errors import Dispute, LedgerError
from secagg.identity_registry import NEVER_EXPIRES, Registry
from secagg.ledger import ServerLedger
from secagg.local_session import Stage
from secagg.net import events as net_events
from secagg.net.events import ServerNetworkEvent

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
# Seconds. A stage takes milliseconds on one machine, and up to a day if clients train for it.
_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)


class ServerMetrics:
    """Counts the events of a server, and makes Prometheus text of them. `registry` returns the registry that
    is in force. `on_ledger_error` is told if the ledger cannot be read; no call raises because of that."""

    def __init__(
        self,
        *,
        registry: Callable[[], Registry],
        ledger: ServerLedger,
        on_ledger_error: Callable[[LedgerError], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._on_ledger_error = on_ledger_error
        self._clock = clock
        self._collectors = CollectorRegistry()
        self._make_sum_figures()
        self._make_stage_figures()
        self._make_client_figures()
        self._make_ledger_figures()
        self._make_registry_figures(registry)
        self._read_ledger()

    # --- the figures ---

    def _make_sum_figures(self) -> None:
        self._released = self._counter("sums_released", "Totals that were released.")
        self._failed = self._counter("sums_failed", "Sums without a total, by error class.", "reason")
        self._refused = self._counter("sums_refused", "Sums that the server did not ask for.", "reason")
        self._begun = self._counter("sessions_begun", "Sessions whose set-up began.")
        self._ready = self._counter("sessions_ready", "Sessions whose set-up is done.")
        self._sessions_failed = self._counter(
            "sessions_failed", "Sessions whose set-up failed, by error class.", "reason"
        )
        self._last = self._gauge(
            "last_total_timestamp_seconds", "Unix time of the last total; 0 if there is none since the start."
        )

    def _make_stage_figures(self) -> None:
        self._stages = Histogram(
            "secagg_stage_duration_seconds",
            "Duration of a stage of the protocol.",
            ["stage"],
            buckets=_BUCKETS,
            registry=self._collectors,
        )
        self._up = self._counter("received_bytes", "Bytes of clients' frames, by stage.", "stage")
        self._down = self._counter("sent_bytes", "Bytes of frames to clients, by stage.", "stage")
        for stage in Stage:
            for figure in (self._stages, self._up, self._down):
                figure.labels(stage.value)

    def _make_client_figures(self) -> None:
        self._connected = self._gauge("clients_connected", "Clients that are connected now.")
        self._excluded = self._counter(
            "clients_excluded", "Clients excluded from a session, by error class.", "reason"
        )
        self._left = self._counter("clients_left", "Clients that left a session.", "reason")
        self._bars = self._counter(
            "bars", "Clients barred from all later sessions, by error class.", "reason"
        )
        self._strangers = self._counter("connections_refused", "Connections that were not authenticated.")
        self._incompatible = self._counter(
            "clients_incompatible", "Connections of clients without a common version."
        )
        for reason in net_events.LeaveReason:
            self._left.labels(_name(reason))

    def _make_ledger_figures(self) -> None:
        self._rho = self._gauge("rho_spent", "Cost in zCDP of a client that was in every released sum.")
        self._unnoised = self._gauge("unnoised_sums", "Released sums without noise that the ledger has.")
        self._barred = self._gauge("clients_barred", "Clients that are barred now.")

    def _make_registry_figures(self, registry: Callable[[], Registry]) -> None:
        version = self._gauge("registry_version", "Version of the registry of clients.")
        version.set_function(lambda: registry().version)
        expiry = self._gauge(
            "registry_expiry_timestamp_seconds", "Unix time at which the registry expires; +Inf: never."
        )
        expiry.set_function(lambda: _expiry(registry()))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"secagg_{name}", text, labels, registry=self._collectors)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"secagg_{name}", text, registry=self._collectors)

    # --- what happens ---

    def count_connected(self, connected: Callable[[], int]) -> None:
        """Take the number of clients that are connected from `connected` from now on."""
        self._connected.set_function(connected)

    def note_not_asked(self, reason: Enum) -> None:
        """Count a sum that the server did not ask for. The name of `reason` is the label."""
        self._refused.labels(_name(reason)).inc()

    def note_not_held(self, error: Exception) -> None:
        """Count a round of training in which no client could be asked. The class of `error` is the label."""
        self._refused.labels(_class(error)).inc()

    def show_rounds(self, planned: int, done: Callable[[], int], failed: Callable[[], int]) -> None:
        """Show the rounds of a training run: how many there are, are over, and have failed."""
        self._gauge("rounds", "Rounds of the training run.").set(planned)
        self._gauge("rounds_done", "Rounds that are over.").set_function(done)
        self._gauge("rounds_failed", "Rounds that are over and changed nothing.").set_function(failed)

    def __call__(self, event: ServerNetworkEvent) -> None:
        """Count `event`. The ledger has recorded it already, if it records such events."""
        self._count_of_sums(event)
        self._count_of_clients(event)
        if isinstance(event, events.SumReleased | net_events.SessionBegun | net_events.SessionClosed):
            self._read_ledger()

    def _count_of_sums(self, event: ServerNetworkEvent) -> None:
        match event:
            case net_events.SessionBegun():
                self._begun.inc()
            case events.SessionReady():
                self._ready.inc()
            case events.SessionFailed():
                self._sessions_failed.labels(_class(event.error)).inc()
            case events.SumReleased():
                self._released.inc()
                self._last.set(self._clock())
            case events.SumAborted():
                self._failed.labels(_class(event.error)).inc()
            case net_events.StageClosed():
                self._stages.labels(event.stage.value).observe(event.seconds)
            case net_events.TrafficCounted():
                self._up.labels(event.stage.value).inc(event.bytes_up)
                self._down.labels(event.stage.value).inc(event.bytes_down)

    def _count_of_clients(self, event: ServerNetworkEvent) -> None:
        match event:
            case net_events.ConnectionRefused():
                self._strangers.inc()
            case net_events.ClientIncompatible():
                self._incompatible.inc()
            case net_events.ClientLeft():
                self._left.labels(_name(event.reason)).inc()
            case net_events.ClientExcluded():
                self._excluded.labels(_class(event.error)).inc()
            case events.Convicted() | events.Excluded(error=Dispute()):  # for which a ledger bars a client
                self._bars.labels(_class(event.error)).inc()

    def _read_ledger(self) -> None:
        try:
            spend, barred = self._ledger.spend, self._ledger.barred
        except LedgerError as error:
            self._on_ledger_error(error)
            return
        self._rho.set(spend.rho)
        self._unnoised.set(spend.unnoised)
        self._barred.set(len(barred))

    # --- the text ---

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format (`TEXT_FORMAT`)."""
        return generate_latest(self._collectors)


def _class(error: Exception) -> str:
    return type(error).__name__


def _name(member: Enum) -> str:
    return member.name.lower()


def _expiry(registry: Registry) -> float:
    return math.inf if registry.expires == NEVER_EXPIRES else registry.expires
