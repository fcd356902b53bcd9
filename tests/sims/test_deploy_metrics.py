"""What a server shows its operator over HTTP: figures for Prometheus, of events and of real sessions."""

from __future__ import annotations

import http.client
import json
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from secagg import events
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.errors import Dispute, LedgerError, MalformedMessage, TooFewClients, WrongShare
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.local_session import Stage
from secagg.net import events as net_events
from secagg.net.events import LeaveReason, ServerNetworkEvent
from secagg.net.versions import OWN_VERSIONS, NoCommonVersion, SpokenVersions, VersionRange
from secagg.sum_spec import Table, Total
from sims.deploy.http_endpoint import MAX_CONNECTIONS
from sims.deploy.server_metrics import ServerMetrics
from sims.deploy.server_setup import new_ledger
from sims.deploy.sum_schedule import NotAsked
from tests.secagg.ledgers import NOISY, SESSION
from tests.sims.deploy_site import CLIENTS, Running, Site
from tests.sims.small_disk import small_disk

Figures = Mapping[tuple[str, str], float]
Start = Callable[..., Running]


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def parsed(text: str) -> Figures:
    """All samples by their name and the value of their label, if any."""
    families = list(text_string_to_metric_families(text))
    return {
        (sample.name.removeprefix("secagg_"), next(iter(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


# --- figures -----------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[ServerLedger]:
    with ServerLedger.create(tmp_path / "ledger") as opened:
        yield opened


def made(ledger: ServerLedger, registry: Registry | None = None, **settings: Any) -> ServerMetrics:
    used = registry or Registry(4, {1: bytes(32)}, 2_000_000_000)
    return ServerMetrics(registry=lambda: used, ledger=ledger, clock=lambda: 1234.5, **settings)


def figures(metrics: ServerMetrics) -> Figures:
    return parsed(metrics.text().decode())


RELEASED = events.SumReleased(0, Total(parts={"x": np.array([271828.0])}, count=2, invited=3), (1, 2))

OLD = SpokenVersions(VersionRange(2, 2), None)
COUNTED: list[tuple[ServerNetworkEvent, tuple[str, str], float]] = [
    (RELEASED, ("sums_released_total", ""), 1),
    (RELEASED, ("last_total_timestamp_seconds", ""), 1234.5),
    (events.SumAborted(0, TooFewClients("few")), ("sums_failed_total", "TooFewClients"), 1),
    (events.SessionFailed(TooFewClients("few")), ("sessions_failed_total", "TooFewClients"), 1),
    (net_events.SessionBegun(), ("sessions_begun_total", ""), 1),
    (events.SessionReady(b"id", (1, 2), 2, 1), ("sessions_ready_total", ""), 1),
    (net_events.StageClosed(Stage.MASK, 2.5), ("stage_duration_seconds_sum", "mask"), 2.5),
    (net_events.StageClosed(Stage.MASK, 2.5), ("stage_duration_seconds_count", "mask"), 1),
    (net_events.TrafficCounted(Stage.SHARE, 70, 90), ("received_bytes_total", "share"), 70),
    (net_events.TrafficCounted(Stage.SHARE, 70, 90), ("sent_bytes_total", "share"), 90),
    (net_events.ConnectionRefused("host", "prose"), ("connections_refused_total", ""), 1),
    (
        net_events.ClientIncompatible("host", NoCommonVersion(7, own=OWN_VERSIONS, theirs=OLD)),
        ("clients_incompatible_total", ""),
        1,
    ),
    (net_events.ClientLeft(7, LeaveReason.COHORT_FULL), ("clients_left_total", "cohort_full"), 1),
    (
        net_events.ClientExcluded(7, MalformedMessage(7, "prose")),
        ("clients_excluded_total", "MalformedMessage"),
        1,
    ),
    (events.Convicted(7, WrongShare(7, 2)), ("bars_total", "WrongShare"), 1),
    (events.Excluded(7, Dispute(7, 2)), ("bars_total", "Dispute"), 1),
]


@pytest.mark.parametrize(("event", "name", "value"), COUNTED)
def test_an_event_changes_its_figure(
    ledger: ServerLedger, event: ServerNetworkEvent, name: tuple[str, str], value: float
) -> None:
    metrics = made(ledger)
    assert figures(metrics).get(name, 0) == 0
    metrics(event)
    assert figures(metrics)[name] == value


def test_figures_have_neither_ids_nor_texts_nor_values(ledger: ServerLedger) -> None:
    """Client 70707 does everything that a client can do, and the text stays as long as it is."""
    metrics = made(ledger)
    happened = [event for event, _, _ in COUNTED]
    happened += [
        events.Excluded(70707, MalformedMessage(70707, "prose")),
        events.Missing((70707,), "prose"),
        net_events.ClientConnected(70707, False),
        net_events.ClientLeft(70707, LeaveReason.LEFT_SESSION),
    ]
    for event in happened:
        metrics(event)
    once = set(figures(metrics))
    for event in happened * 3:
        metrics(event)
    assert set(figures(metrics)) == once
    for unwanted in ("70707", "271828", "prose", "host"):
        assert unwanted not in metrics.text().decode()


def test_an_excluded_client_that_did_not_lie_is_not_barred(ledger: ServerLedger) -> None:
    metrics = made(ledger)
    metrics(events.Excluded(7, MalformedMessage(7, "bad")))
    assert not any(name == "bars_total" for name, _ in figures(metrics))


def test_sums_that_were_not_asked_are_counted_by_reason(ledger: ServerLedger) -> None:
    metrics = made(ledger)
    metrics.note_not_asked(NotAsked.TOO_FEW_CLIENTS)
    assert figures(metrics)["sums_refused_total", "too_few_clients"] == 1


def test_connected_clients_are_counted_when_somebody_asks(ledger: ServerLedger) -> None:
    metrics, connected = made(ledger), [1]
    metrics.count_connected(lambda: len(connected))
    assert figures(metrics)["clients_connected", ""] == 1
    connected += [2, 3]
    assert figures(metrics)["clients_connected", ""] == 3


@pytest.mark.parametrize(("expires", "shown"), [(2_000_000_000, 2_000_000_000), (0, math.inf)])
def test_the_registry_in_force_is_shown(ledger: ServerLedger, expires: int, shown: float) -> None:
    current = [Registry(1, {1: bytes(32)})]
    metrics = ServerMetrics(registry=lambda: current[0], ledger=ledger)
    current[0] = Registry(9, {1: bytes(32)}, expires)
    assert figures(metrics)["registry_version", ""] == 9
    assert figures(metrics)["registry_expiry_timestamp_seconds", ""] == shown


def test_what_the_ledger_has_spent_is_shown_also_after_a_restart(ledger: ServerLedger) -> None:
    metrics, table = made(ledger), Table({"noisy": NOISY})
    query = m.Query(SESSION, 0, 4, "noisy", pack_positions(range(1, 8), 8), b"").encode()
    ledger.note(events.SessionReady(SESSION, members=tuple(range(8)), threshold=4, neighbours=7))
    ledger.note_asked(query, table)
    ledger.note(RELEASED)
    assert figures(metrics)["rho_spent", ""] == 0
    metrics(RELEASED)
    assert ledger.spend.rho > 0
    for each in (metrics, made(ledger)):
        assert figures(each)["rho_spent", ""] == ledger.spend.rho
        assert figures(each)["unnoised_sums", ""] == 0


def test_barred_clients_are_shown_until_they_are_forgiven(ledger: ServerLedger) -> None:
    metrics = made(ledger)
    ledger.note(events.Convicted(7, WrongShare(7, 2)))
    metrics(net_events.SessionClosed())
    assert figures(metrics)["clients_barred", ""] == 1
    ledger.forgive(7)
    metrics(net_events.SessionBegun())
    assert figures(metrics)["clients_barred", ""] == 0


def test_a_ledger_that_fails_is_reported_and_stops_nothing(
    ledger: ServerLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[LedgerError] = []
    metrics = made(ledger, on_ledger_error=seen.append)
    with monkeypatch.context() as patch:
        patch.setattr(ledger._file, "catch_up", failing(LedgerError("gone")))
        metrics(RELEASED)
    assert len(seen) == 1
    assert figures(metrics)["sums_released_total", ""] == 1


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: object, **_settings: object) -> None:
        raise error

    return fail


# --- a server ----------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    running: list[Running] = []

    def begin(*arguments: str) -> Running:
        running.append(Running(site, *arguments))
        return running[-1]

    yield begin
    for process in running:
        process.end()


def serve(start: Start, site: Site) -> tuple[Running, str]:
    """A server that clients find, and the address of its figures."""
    site.change("serve.toml", '"off"', '"127.0.0.1:0"')
    server = start("serve", "serve.toml")
    started = server.wait_for("started")
    for member in CLIENTS:
        site.change(f"join-{member}.toml", "127.0.0.1:7443", started["address"])
    return server, started["metrics"]


def test_a_session_over_tls_is_counted(site: Site, start: Start) -> None:
    """The first sum is released; the second has no payload to send, and is not asked."""
    site.change("serve.toml", "sessions = 1", "sessions = 2\nsums = 2")
    site.change("serve.toml", "pause = 0", "pause = 1000")
    site.write(
        "serve.toml", (site / "serve.toml").read_text() + '[[ask]]\nkind = "mean"\npayload = "model"\n'
    )
    site.change("sums.toml", 'kind = "mean"', 'kind = "mean"\ntimes = 2')
    server, address = waiting_for_payload(start, site)

    before = parsed(get(address, "/metrics")[1])
    assert before["sums_released_total", ""] == before["sessions_begun_total", ""] == 0
    assert before["clients_connected", ""] == 0
    assert before["registry_version", ""] == 1
    clients = [start("join", f"join-{member}.toml") for member in CLIENTS]
    for client in clients:
        client.wait_for("session over")

    status, text = get(address, "/metrics")
    found = parsed(text)
    assert status == 200
    assert found["sums_released_total", ""] == 1
    assert found["sums_refused_total", "unreadable_payload"] == 1
    assert found["sessions_begun_total", ""] == found["sessions_ready_total", ""] == 1
    assert found["clients_connected", ""] == 3
    assert found["unnoised_sums", ""] == 1
    assert found["rho_spent", ""] == found["clients_barred", ""] == 0
    assert found["last_total_timestamp_seconds", ""] > site.made_at - 1
    for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CONFIRM, Stage.REVEAL):
        assert found["stage_duration_seconds_count", stage.value] == 1
        assert found["received_bytes_total", stage.value] > 0
        assert found["sent_bytes_total", stage.value] > 0
    assert found["stage_duration_seconds_count", "deposit"] == 0
    assert not any(name == "sums_failed_total" for name, _ in found)

    assert get(address, "/health") == (200, '{"status": "good"}\n')
    assert get(address, "/")[0] == 404
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def waiting_for_payload(start: Start, site: Site) -> tuple[Running, str]:
    """A server whose second question was complete when it started, and is not any more."""
    site.write("model", b"")
    running = serve(start, site)
    (site / "model").unlink()
    return running


@pytest.mark.slow
def test_health_turns_bad_when_the_disk_is_full_and_good_again(site: Site, start: Start) -> None:
    with small_disk(site / "disk") as disk:
        site.change("serve.toml", 'ledger = "server.ledger"', 'ledger = "disk/server.ledger"')
        site.change("serve.toml", 'totals = "totals"', 'totals = "disk/totals"')
        new_ledger(site / "serve.toml")
        server, address = serve(start, site)
        assert get(address, "/health")[0] == 200
        disk.fill()
        assert [each["about"] for each in turned(address, 503)["reasons"]] == ["ledger", "totals"]
        disk.free()
        assert turned(address, 200) == {"status": "good"}
        clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]
        assert [client.wait() for client in clients] == [0, 0, 0]
        assert server.wait() == 0


def turned(address: str, status: int) -> dict[str, Any]:
    """Wait until the health is this; the answer."""
    while (found := get(address, "/health"))[0] != status:
        time.sleep(0.2)
    answer: dict[str, Any] = json.loads(found[1])
    return answer


@pytest.mark.slow
def test_hostile_requests_do_not_disturb_a_server(site: Site, start: Start) -> None:
    server, address = serve(start, site)
    host, _, port = address.rpartition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(5 * MAX_CONNECTIONS)]
    for number, each in enumerate(held):
        with suppress(ConnectionError):  # a later one has replaced it
            each.sendall([b"GET / HT", b"\xff" * 3000, b"GET /" + b"x" * 100_000][number % 3])

    assert get(address, "/health")[0] == 200
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]
    assert [client.wait() for client in clients] == [0, 0, 0]
    assert server.wait() == 0
    assert server.stderr() == ""
    assert [path.name for path in (site / "totals").iterdir()] == ["00000000-00-mean.npz"]
    for each in held:
        each.close()


def test_a_failed_session_is_counted(site: Site, start: Start) -> None:
    site.change("serve.toml", "[[ask]]", "[deadlines]\njoin = 1\n[[ask]]")
    site.change("serve.toml", "pause = 0", "pause = 1000")
    site.write("other.toml", (site / "sums.toml").read_text().replace("linf = 10.0", "linf = 20.0"))
    site.change("join-3.toml", "sums.toml", "other.toml")
    server, address = serve(start, site)
    for member in CLIENTS:
        start("join", f"join-{member}.toml")
    server.wait_for("failed")

    found = parsed(get(address, "/metrics")[1])
    assert found["sessions_failed_total", "TooFewClients"] == 1
    assert found["clients_left_total", "refused_invitation"] == 1
    assert found["sessions_ready_total", ""] == found["sums_released_total", ""] == 0
