"""The socket of `secagg join --relay`: who may use it, and what a hostile program can do through it."""

from __future__ import annotations

import grp
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from secagg.net.event_log import EventLog, Fact
from secagg.net.tunnel_letters import INSTANCE_BYTES, Letter, parse_letter
from sims.cli import main as command
from sims.config_problems import ConfigError
from sims.engines.flower import relay
from sims.engines.flower.relay import RelayNode, take_to_client

SOON = 5.0  # seconds, of which a test needs a fraction
LONG = 4 << 20  # bytes of a reply: more than a socket holds
ONE = b"1" * INSTANCE_BYTES
OWN_GROUP = grp.getgrgid(os.getgid()).gr_name


class Relay:
    """A relay at a socket, and its log."""

    def __init__(self, path: Path, group: str | None = None) -> None:
        self.path = path
        self.streams: list[trio.SocketStream] = []
        self.lines: list[tuple[str, dict[str, Fact]]] = []
        log = EventLog(lambda text, facts: self.lines.append((text, dict(facts))))
        self.node = RelayNode(path, log, group=group)

    def has_told(self, text: str) -> bool:
        return any(each == text for each, _ in self.lines)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.node.run)
            await self.wait_until_ready()
            try:
                yield
            finally:
                for each in self.streams:
                    each.socket.close()
            nursery.cancel_scope.cancel()

    async def wait_until_ready(self) -> None:
        with trio.fail_after(SOON):
            while not self.has_told("relay"):  # noqa: ASYNC110 in its log
                await trio.sleep(0.005)

    async def connect(self) -> trio.SocketStream:
        self.streams.append(await trio.open_unix_socket(str(self.path)))
        return self.streams[-1]

    async def check_serves(self) -> None:
        """Fail unless the relay takes a letter to the client, and its reply back."""
        stream = await self.node.dialer.open_stream() if self.node.dialer._newest else None
        if stream is not None:
            await stream.send_all(b"x")
        with trio.fail_after(SOON):
            reply = await trio.to_thread.run_sync(take_to_client, str(self.path), letter(1))
        assert parse_letter(reply, sender=0).number == 1


def letter(number: int) -> bytes:
    return Letter(ONE, number).encode()


@pytest.fixture(autouse=True)
def _no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_HOLD", 0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "client.sock"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def group_of(path: Path) -> int:
    return path.stat().st_gid


# --- who may use the socket ---


def test_only_the_own_user_may_connect(path: Path) -> None:
    async def main() -> None:
        async with Relay(path).running():
            assert mode_of(path) == 0o600

    trio.run(main)


def test_a_group_may_connect(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is let in before the first connection can be made."""
    given: list[tuple[Path, str]] = []
    monkeypatch.setattr(relay, "chown", lambda each, group: given.append((each, group)))

    async def main() -> None:
        one = Relay(path, group="flower")
        async with one.running():
            assert mode_of(path) == 0o660
            assert given == [(path, "flower")]
            await one.check_serves()

    trio.run(main)


def test_the_group_of_the_socket(path: Path) -> None:
    async def main() -> None:
        async with Relay(path, group=OWN_GROUP).running():
            assert group_of(path) == os.getgid()

    trio.run(main)


def refused(match: str, node: RelayNode) -> None:
    async def main() -> None:
        with trio.fail_after(SOON):
            await node.run()

    with pytest.raises(ConfigError, match=match):
        trio.run(main)


def test_a_group_that_does_not_exist(path: Path) -> None:
    refused("--relay-group nowhere: .*there is no such group", Relay(path, group="nowhere").node)
    assert not path.exists()


def test_a_group_of_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chown(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(relay, "chown", chown)
    refused("Operation not permitted.*is a member", Relay(path, group="flower").node)
    assert not path.exists()


def test_the_command_takes_a_group_with_a_socket_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "join.toml").write_text("[client]\n")
    assert command(["join", str(tmp_path / "join.toml"), "--relay-group", OWN_GROUP]) == 2
    assert "--relay-group belongs to --relay" in capsys.readouterr().err


# --- whose socket it is ---


def test_a_socket_that_another_process_uses_is_refused(path: Path) -> None:
    async def main() -> None:
        one = Relay(path)
        async with one.running():
            with pytest.raises(ConfigError, match="another process listens there"), trio.fail_after(SOON):
                await Relay(path).node.run()
            await one.check_serves()

    trio.run(main)
    assert not path.exists()


def test_a_socket_that_a_busy_process_uses_is_refused(path: Path) -> None:
    """It accepts no connection just now, because programs take all of its time."""

    async def main() -> None:
        one = Relay(path)
        async with one.running():
            for _ in range(relay._AT_ONCE + 2):
                await one.connect()
            with pytest.raises(ConfigError, match="another process listens there"), trio.fail_after(SOON):
                await Relay(path).node.run()

    trio.run(main)


def test_a_socket_that_an_earlier_process_has_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))

    async def main() -> None:
        one = Relay(path)
        async with one.running():
            await one.check_serves()

    trio.run(main)


def test_another_file_in_the_place_of_the_socket_stays(path: Path) -> None:
    path.write_text("precious")
    refused(f"--relay {path}: cannot be made", Relay(path).node)
    assert path.read_text() == "precious"


def test_the_socket_of_another_process_is_not_removed(path: Path) -> None:
    """It has taken the place of ours meanwhile."""

    async def main() -> None:
        one, other = Relay(path), Relay(path)
        async with trio.open_nursery() as nursery:
            async with one.running():
                await trio.Path(path).unlink()
                nursery.start_soon(other.node.run)
                await other.wait_until_ready()
            await other.check_serves()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert not path.exists()


# --- hostile programs ---


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        relay._SIZE.pack(relay._MOST),  # with its own head, one letter too long
        relay._SIZE.pack((1 << 64) - 1),
        relay._SIZE.pack(100) + b"too short",
        relay._SIZE.pack(0),
        relay._SIZE.pack(7) + b"garbage",
        relay._SIZE.pack(7) + b"garbage and more",
    ],
    ids=["nothing", "a byte", "too long", "endless", "short", "empty", "garbage", "more"],
)
def test_what_is_no_letter_has_no_reply(path: Path, sent: bytes) -> None:
    async def main() -> None:
        one = Relay(path)
        async with one.running():
            stream = await one.connect()
            with trio.fail_after(SOON):
                await stream.send_all(sent)
                await stream.send_eof()
                assert await stream.receive_some() == b""
            await one.check_serves()

    trio.run(main)


def test_the_longest_letter_is_read_and_no_longer_one() -> None:
    async def read(size: int) -> bytes | None:
        one, other = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send_all, relay._SIZE.pack(size) + bytes(size))
            found = await relay._receive(other)  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()
        return found

    longest = relay._MOST - relay._SIZE.size
    assert trio.run(read, longest) == bytes(longest)
    assert trio.run(read, longest + 1) is None


def test_few_programs_are_read_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait in the kernel, and take no memory of the client."""
    reading, most = 0, 0
    receive = relay._receive

    async def counted(stream: trio.SocketStream) -> bytes | None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            return await receive(stream)
        finally:
            reading -= 1

    monkeypatch.setattr(relay, "_receive", counted)

    async def main() -> None:
        one = Relay(path)
        async with one.running():
            streams = [await one.connect() for _ in range(12)]
            for each in streams:
                await each.send_all(relay._SIZE.pack(1000))
            with trio.fail_after(SOON):
                for each in streams:
                    await each.send_eof()
                    assert await each.receive_some() == b""
            await one.check_serves()

    trio.run(main)
    assert most == relay._AT_ONCE


def test_a_program_that_is_silent_makes_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_PATIENCE", 0.2)

    async def main() -> None:
        one = Relay(path)
        async with one.running():
            for _ in range(relay._AT_ONCE):
                await one.connect()
            await one.check_serves()

    trio.run(main)


async def leave_long_replies(one: Relay) -> None:
    """Fill all places with programs that do not read their replies."""
    answer, given = one.node.dialer.answer, 0

    async def long_answer(_letter: bytes) -> bytes:
        nonlocal given
        await trio.lowlevel.checkpoint()
        given += 1
        return bytes(LONG)

    one.node.dialer.answer = long_answer  # type: ignore[method-assign, assignment]
    for _ in range(relay._AT_ONCE):
        stream = await one.connect()
        await stream.send_all(relay._SIZE.pack(len(letter(1))) + letter(1))
    with trio.fail_after(SOON):
        while given < relay._AT_ONCE:  # noqa: ASYNC110
            await trio.sleep(0.005)
    one.node.dialer.answer = answer  # type: ignore[method-assign]


def test_a_program_that_does_not_read_its_reply_makes_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_PATIENCE", 0.2)

    async def main() -> None:
        one = Relay(path)
        async with one.running():
            await leave_long_replies(one)
            await one.check_serves()

    trio.run(main)


def test_programs_that_do_not_read_their_replies_do_not_hold_up_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_LAST", 0.1)

    async def main() -> None:
        one = Relay(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.node.run)
            await one.wait_until_ready()
            await leave_long_replies(one)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < SOON
        for each in one.streams:
            each.socket.close()

    trio.run(main)


def test_a_reply_is_sent_when_the_relay_ends(path: Path) -> None:
    """A program that reads gets the whole of it."""

    async def main() -> None:
        one = Relay(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.node.run)
            await one.wait_until_ready()
            await leave_long_replies(one)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(SOON):
                await trio.sleep(0.05)
                for each in one.streams:
                    async with each:
                        got = b"".join([chunk async for chunk in each])
                    assert len(got) == relay._SIZE.size + LONG

    trio.run(main)


# --- the ClientApp's side ---


@pytest.mark.parametrize(
    "reply", [b"", b"\0", relay._SIZE.pack(relay._MOST + 1), relay._SIZE.pack(9) + b"short"]
)
def test_a_reply_that_is_none(path: Path, reply: bytes) -> None:
    """Another program is at the socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionError):
            take_to_client(str(path), letter(1))
        thread.join()
