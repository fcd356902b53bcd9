"""Dialling: whatever keeps a client from its server has one name, a reason, and leaves nothing open."""

from __future__ import annotations

import errno
import socket
from unittest import mock

import pytest
import trio

from secagg.errors import MalformedMessage
from secagg.net import packets
from secagg.net.connection import ConnectionLost
from secagg.net.handshake import ServerConnector
from secagg.net.packets import PacketKind, Reason, Welcome
from secagg.net.reliable_link import DismissedByServer
from secagg.net.settings import Address, Patience
from tests.secagg.net.rig import LINK, Knocker, Line, run

PATIENCE = Patience(handshake=10, silence=60)
DIAL = ServerConnector(Address("host", 1), member=5, context=None, patience=PATIENCE)


async def answered(answer: bytes) -> tuple[object, Line]:
    """What comes of a call to a server that gives `answer`."""
    line = Line()

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        assert (host, port) == ("host", 1)
        return line.near

    with mock.patch.object(trio, "open_tcp_stream", open_stream):
        await line.far.send_all(answer)
        try:
            connection, welcome = await DIAL.connect(LINK, 3)
        except Exception as error:
            return error, line
        assert connection.silence == PATIENCE.silence
        hello = await Knocker(line.far).next(PacketKind.HELLO)
        assert packets.parse_hello(hello, sender=5) == packets.Hello(5, LINK, 3)
        return welcome, line


@pytest.mark.parametrize("resumed", [True, False])
def test_a_welcome(resumed: bool) -> None:
    async def main() -> None:
        welcome, line = await answered(packets.welcome(resumed=resumed, received=2))
        assert welcome == Welcome(resumed, 2)
        assert not line.near.closed

    run(main)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (packets.bye(Reason.EXCLUDED), DismissedByServer),
        (packets.packet(PacketKind.BYE, b"\xff"), MalformedMessage),
        (packets.packet(PacketKind.ALIVE), MalformedMessage),
        (packets.begin(3, 0), MalformedMessage),
        (b"220 smtp.example ESMTP\r\n", MalformedMessage),
        (b"", ConnectionLost),
    ],
)
def test_anything_else_closes_the_connection(answer: bytes, error: type[Exception]) -> None:
    async def main() -> None:
        caught, line = await answered(answer)
        assert type(caught) is error
        assert line.near.closed

    run(main)


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async def main() -> None:
        began = trio.current_time()
        caught, _line = await answered(b"")
        assert str(caught) == "host:1 does not answer"
        assert trio.current_time() == pytest.approx(began + PATIENCE.handshake)

    run(main)


def test_an_attempt_that_is_cancelled_leaves_no_connection_behind() -> None:
    async def main() -> None:
        line = Line()

        async def open_stream(host: str, port: int) -> trio.abc.Stream:
            return line.near

        with mock.patch.object(trio, "open_tcp_stream", open_stream), trio.move_on_after(1) as scope:
            await DIAL.connect(LINK, 0)
        assert scope.cancelled_caught
        assert line.near.closed

    run(main)


def several(*errors: Exception) -> OSError:
    """As trio has it where a name has several addresses."""
    error = OSError("all attempts to connect failed")
    error.__cause__ = ExceptionGroup("multiple connection attempts failed", errors)
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNREFUSED, "Error connecting to ('127.0.0.1', 1): refused"), "Connection refused"),
        (OSError(errno.ENETUNREACH, "whatever"), "Network is unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (several(OSError(errno.ECONNREFUSED, "a"), OSError(errno.ETIMEDOUT, "b")), "Connection refused"),
        (OSError("no number"), "OSError"),
        (UnicodeError("label empty or too long"), "no host has such a name"),
    ],
)
def test_the_reason_is_told_in_the_words_of_the_system(error: Exception, reason: str) -> None:
    async def main() -> None:
        with (
            mock.patch.object(trio, "open_tcp_stream", mock.AsyncMock(side_effect=error)),
            pytest.raises(ConnectionLost) as caught,
        ):
            await DIAL.connect(LINK, 0)
        assert str(caught.value) == f"host:1 cannot be reached ({reason})"

    run(main)
