"""The HTTP endpoint of a server: what it answers, where it listens, and that nobody can disturb it."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
import trio
import trio.testing

from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog
from secagg.net.settings import Address
from sims.cli import main
from sims.config_problems import ConfigError
from sims.deploy.config import METRICS_ADDRESS, MetricsSection, ServeConfig, load
from sims.deploy.http_endpoint import MAX_CONNECTIONS, HttpEndpoint, Reply, open_endpoint
from sims.deploy.serve import make_monitoring
from sims.deploy.server_setup import load_server_setup
from tests.sims.deploy_site import Site

LOCAL = Address("127.0.0.1", 0)


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


# --- HTTP --------------------------------------------------------------------------------------------


async def hello() -> Reply:
    await trio.lowlevel.checkpoint()
    return Reply(HTTPStatus.OK, b"hello")


@asynccontextmanager
async def on_wire(endpoint: HttpEndpoint) -> AsyncIterator[trio.abc.Stream]:
    """A connection in memory, which the endpoint has closed when the block is over."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.handle_connection, theirs)
        yield ours


async def everything(stream: trio.abc.Stream) -> bytes:
    """All bytes until the other side closes."""
    found = b""
    while data := await stream.receive_some(1 << 16):
        found += data
    return found


def answer(*pieces: bytes, is_local: bool = False) -> tuple[int, bytes]:
    """The status and the body that an endpoint with one path, `/hello`, answers to a request; (0, b"") if it
    closes the connection."""
    got: list[bytes] = []

    async def ask() -> None:
        async with on_wire(HttpEndpoint({"/hello": hello}, is_local=is_local)) as stream:
            for piece in pieces:
                await stream.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            got.append(await everything(stream))

    trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))
    head, _, body = got[0].partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /hello HTTP/1.1", (200, b"hello")),
        (b"GET /hello?x=1 HTTP/1.0", (200, b"hello")),
        (b"HEAD /hello HTTP/1.1", (200, b"")),
        (b"GET / HTTP/1.1", (404, b"Not Found\n")),
        (b"GET /hello/ HTTP/1.1", (404, b"Not Found\n")),
        (b"GET /%68ello HTTP/1.1", (404, b"Not Found\n")),
        (b"POST /hello HTTP/1.1", (405, b"Method Not Allowed\n")),
        (b"get /hello HTTP/1.1", (405, b"Method Not Allowed\n")),
        (b"GET  /hello HTTP/1.1", (400, b"Bad Request\n")),
        (b"GET /hello HTTP/2.0", (400, b"Bad Request\n")),
        (b"GET /hello", (400, b"Bad Request\n")),
        (b"GET /\xff\x00 HTTP/1.1", (400, b"Bad Request\n")),
        (b"\x16\x03\x01\x02\x00\x01", (400, b"Bad Request\n")),  # the beginning of TLS
        (b"", (400, b"Bad Request\n")),
    ],
)
def test_requests(request_line: bytes, expected: tuple[int, bytes]) -> None:
    assert answer(request_line + b"\r\nHost: x\r\n\r\n") == expected


NUMBERS = [
    "127.0.0.1",
    "127.0.0.1:9464",
    "[::1]",
    "[::1]:9464",
    "192.0.2.1:80",
    "localhost",
    "LocalHost:9464 ",
]
NAMES = [
    "evil.example",
    "evil.example:9464",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    "[",
    "a:b:1",
]


@pytest.mark.parametrize("host", NUMBERS)
def test_this_machine_is_asked_by_its_number_or_as_localhost(host: str) -> None:
    request = f"GET /hello HTTP/1.1\r\nAccept: */*\r\nhOST: {host}\r\n\r\n".encode()
    assert answer(request, is_local=True) == (200, b"hello")


@pytest.mark.parametrize("host", NAMES)
def test_a_web_page_cannot_read_what_is_for_this_machine(host: str) -> None:
    """Its name may have the address of this machine, but the browser sends the name."""
    request = f"GET /hello HTTP/1.1\r\nHost:{host}\r\n\r\n".encode()
    assert answer(request, is_local=True) == (421, b"Misdirected Request\n")
    assert answer(request) == (200, b"hello")
    twice = request.replace(b"Host:", b"Host: localhost\r\nHost:")
    assert answer(twice, is_local=True)[0] == 421


def test_a_request_without_a_host_is_answered() -> None:
    assert answer(b"GET /hello HTTP/1.0\r\n\r\n", is_local=True) == (200, b"hello")


def test_a_request_in_single_bytes() -> None:
    request = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
    assert answer(*(request[at : at + 1] for at in range(len(request)))) == (200, b"hello")


class Flood(trio.abc.Stream):
    """A peer that sends without end, and reads everything."""

    def __init__(self) -> None:
        self.taken = 0
        self.answered = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self.taken += max_bytes or 0
        return b"x" * (max_bytes or 0)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.answered += bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_request_without_end_is_refused_after_a_few_bytes() -> None:
    stream = Flood()
    trio.run(HttpEndpoint({}).handle_connection, stream)
    assert 0 < stream.taken <= 1 << 14
    assert stream.answered.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("begun", [b"", b"GET /hello HTT"])
def test_whoever_is_silent_is_disconnected(begun: bytes) -> None:
    assert answer(begun) == (0, b"")


def test_whoever_reads_nothing_is_disconnected() -> None:
    async def ask() -> None:
        ours, theirs = trio.testing.lockstep_stream_pair()  # what is sent waits until it is read
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HttpEndpoint({"/hello": hello}).handle_connection, theirs)
            await ours.send_all(b"GET /hello HTTP/1.1\r\n\r\n")

    trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_that_goes_does_no_harm() -> None:
    async def ask() -> None:
        endpoint = HttpEndpoint({"/hello": hello})
        for begun in (b"", b"GET /hello HTTP/1.1\r\n\r\n"):
            ours, theirs = trio.testing.memory_stream_pair()
            await ours.send_all(begun)
            await ours.aclose()
            await endpoint.handle_connection(theirs)

    trio.run(ask)


def test_one_connection_too_many_replaces_the_oldest() -> None:
    async def ask() -> None:
        endpoint = HttpEndpoint({"/hello": hello})
        streams = []
        async with trio.open_nursery() as nursery:
            for _ in range(3 * MAX_CONNECTIONS):
                ours, theirs = trio.testing.memory_stream_pair()
                streams.append(ours)
                nursery.start_soon(endpoint.handle_connection, theirs)
                await trio.testing.wait_all_tasks_blocked()
                assert len(nursery.child_tasks) <= MAX_CONNECTIONS
            assert await everything(streams[0]) == b""
            await streams[-1].send_all(b"GET /hello HTTP/1.1\r\n\r\n")
            assert (await everything(streams[-1])).endswith(b"hello")
            nursery.cancel_scope.cancel()

    trio.run(ask)


def test_an_endpoint_on_a_real_port() -> None:
    async def ask() -> None:
        async with open_endpoint(LOCAL, {"/hello": hello}) as address:
            assert address.port != 0
            assert await trio.to_thread.run_sync(get, str(address), "/hello") == (200, "hello")
            assert await trio.to_thread.run_sync(get, str(address), "/hello", "HEAD") == (200, "")
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(b"GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n")
                assert (await everything(stream)).startswith(b"HTTP/1.1 421 ")

    trio.run(ask)


# --- the address -------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def listen_at(site: Site, address: str | None) -> None:
    line = "" if address is None else f'listen = "{address}"'
    site.change("serve.toml", 'listen = "off"', line)


def test_the_default_is_a_loopback_address_and_may_be_left_out(site: Site) -> None:
    listen_at(site, None)
    section = load(site / "serve.toml", ServeConfig).metrics
    assert (section.listen, section.is_explicit) == (METRICS_ADDRESS, False)
    assert METRICS_ADDRESS.is_loopback
    site.change("serve.toml", "[metrics]", "")
    assert load(site / "serve.toml", ServeConfig).metrics == section


@pytest.mark.parametrize("given", ['"9464"', "9464", '"on"', "false"])
def test_what_is_no_address_is_refused(site: Site, given: str) -> None:
    site.change("serve.toml", 'listen = "off"', f"listen = {given}")
    with pytest.raises(ConfigError) as caught:
        load(site / "serve.toml", ServeConfig)
    assert caught.value.keys == ("metrics.listen",)


def cautions(site: Site, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """What `--check` prints, which is also what the log will say."""
    assert main(["serve", "--check", str(site / "serve.toml")]) == 0
    printed = {line for line in capsys.readouterr().out.splitlines() if line.startswith("caution: ")}
    assert printed == {f"caution: {each}" for each in load_server_setup(site / "serve.toml").cautions}
    return printed


@pytest.mark.parametrize(
    ("address", "more"), [("127.0.0.1:9", 0), ("[::1]:9", 0), ("0.0.0.0:9", 1), ("192.0.2.1:9", 1)]
)
def test_an_address_for_others_draws_a_caution(
    site: Site, address: str, more: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cautions(site, capsys)
    listen_at(site, address)
    assert len(cautions(site, capsys) - before) == more


def test_without_the_extra_there_is_a_caution_or_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cautions(site, capsys)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert cautions(site, capsys) == before  # it is off
    listen_at(site, None)
    (new,) = cautions(site, capsys) - before
    assert "secagg[metrics]" in new
    chosen = (site / "serve.toml").read_text().replace("[metrics]", '[metrics]\nlisten = "[::1]:9"')
    site.write("serve.toml", chosen)
    with pytest.raises(ConfigError) as caught:
        load_server_setup(site / "serve.toml")
    assert caught.value.keys == ("metrics.listen",)


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_a_default_address_that_is_taken_is_a_caution(site: Site, taken: str) -> None:
    setup = load_server_setup(site / "serve.toml")
    default = MetricsSection.model_construct(_fields_set=set(), listen=Address.parse(taken))
    setup = replace(setup, config=setup.config.model_copy(update={"metrics": default}))

    async def serve(ledger: ServerLedger) -> None:
        monitoring = make_monitoring(setup, ledger, EventLog(lambda *_: None))
        async with monitoring.serving():
            assert monitoring.address is None
            assert len(monitoring.cautions) == 1

    with setup.open_ledger() as ledger:
        trio.run(serve, ledger)


@pytest.mark.parametrize("address", ["taken", "192.0.2.1:9", "a..b:9"])
def test_a_chosen_address_that_cannot_be_used_ends_the_server(
    site: Site, address: str, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listen_at(site, taken if address == "taken" else address)
    assert main(["serve", str(site / "serve.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "metrics.listen" in line
    assert list((site / "totals").glob("*")) == []
