"""A connection: packets survive any cut of the bytes, and whatever ends it has one name and a reason."""

from __future__ import annotations

import ssl
import tracemalloc

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import MalformedMessage
from secagg.net import packets
from secagg.net.connection import Connection, ConnectionLost, why_broken
from secagg.net.packets import HEADER, MAX_BODY, PacketKind
from tests.secagg.net.rig import Line, run

SILENCE = 60.0


def ends(line: Line) -> tuple[Connection, Connection]:
    return (
        Connection(line.near, peer="server", silence=SILENCE),
        Connection(line.far, peer=7, silence=SILENCE),
    )


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=60),
)
def test_packets_arrive_as_they_were_however_the_bytes_are_cut(sizes: list[int], cuts: list[int]) -> None:
    sent = [packets.packet(PacketKind.PIECE, bytes([k]) * size) for k, size in enumerate(sizes)]

    async def main() -> None:
        line = Line()
        _near, far = ends(line)
        data = b"".join(sent)

        async def trickle() -> None:
            rest = data
            for cut in cuts:
                await line.near.send_all(rest[:cut])
                rest = rest[cut:]
            await line.near.send_all(rest)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            got = [await far.read() for _ in sent]
        assert got == [(PacketKind.PIECE, packet[HEADER.size :]) for packet in sent]
        assert far.bytes_in == len(data)

    run(main)


def test_what_is_written_is_counted_when_it_has_left() -> None:
    async def main() -> None:
        near, far = ends(Line())
        await near.write([packets.ack(1), packets.packet(PacketKind.ALIVE)])
        assert near.bytes_out == len(packets.ack(1)) + HEADER.size
        assert await far.read() == (PacketKind.ACK, bytes(7) + b"\1")
        assert await far.read() == (PacketKind.ALIVE, b"")

    run(main)


def test_a_header_is_judged_before_its_body_is_waited_for() -> None:
    async def main() -> None:
        line = Line()
        _near, far = ends(line)
        began = trio.current_time()
        await line.near.send_all(HEADER.pack(PacketKind.PIECE, MAX_BODY + 1))
        with pytest.raises(MalformedMessage) as caught:
            await far.read()
        assert caught.value.peer == 7
        assert trio.current_time() == began

    run(main)


@pytest.mark.parametrize(
    "sent", [b"", HEADER.pack(PacketKind.ACK, 8), HEADER.pack(PacketKind.ACK, 8) + b"123"]
)
def test_silence_is_taken_for_death(sent: bytes) -> None:
    async def main() -> None:
        line = Line()
        _near, far = ends(line)
        await line.near.send_all(sent)
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match="no sign of life"):
            await far.read()
        assert trio.current_time() - began == pytest.approx(SILENCE)

    run(main)


def test_a_packet_that_trickles_in_is_no_sign_of_life() -> None:
    async def main() -> None:
        line = Line()
        _near, far = ends(line)

        async def trickle() -> None:
            for byte in packets.packet(PacketKind.PIECE, bytes(1000)):
                await line.near.send_all(bytes([byte]))
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            with pytest.raises(ConnectionLost, match="no sign of life"):
                await far.read()
            nursery.cancel_scope.cancel()

    run(main)


def test_packets_that_keep_coming_may_take_forever() -> None:
    async def main() -> None:
        near, far = ends(Line())

        async def signs() -> None:
            for _ in range(100):
                await trio.sleep(SILENCE - 1)
                await near.write([packets.packet(PacketKind.ALIVE)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(signs)
            for _ in range(100):
                assert await far.read() == (PacketKind.ALIVE, b"")

    run(main)


def test_between_two_packets_others_have_their_turn() -> None:
    async def main() -> None:
        near, far = ends(Line())
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        await near.write([packets.packet(PacketKind.ALIVE)] * 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(1000):
                await far.read()
            nursery.cancel_scope.cancel()
        assert turns > 500

    run(main)


def test_a_packet_that_comes_in_crumbs_takes_no_more_memory_than_another() -> None:
    async def main() -> None:
        line, size = Line(capacity=2), 8000
        near, far = ends(line)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.write, [packets.packet(PacketKind.PIECE, bytes(size))])
            await trio.sleep(1)
            tracemalloc.start()
            try:
                await far.read()
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert peak < 8 * size

    run(main)


def test_a_writer_waits_for_as_long_as_the_other_side_does_not_read() -> None:
    async def main() -> None:
        near, _far = ends(Line(capacity=10))
        with trio.move_on_after(100 * SILENCE) as scope:
            await near.write([bytes(11)])
        assert scope.cancelled_caught
        assert near.bytes_out == 0

    run(main)


@pytest.mark.parametrize("missing", range(1, 7))
def test_what_was_torn_off_in_midst_of_a_packet_is_never_completed_by_another(missing: int) -> None:
    """Else the bytes of a goodbye would be taken for the end of a message."""

    async def main() -> None:
        packet = packets.packet(PacketKind.PIECE, b"honest")
        line = Line(capacity=len(packet) - missing)
        near, far = ends(line)
        with trio.move_on_after(1):
            await near.write([packet])
        line.up.capacity = 100
        with pytest.raises(ConnectionLost):
            await near.write([packets.bye(packets.Reason.CLOSING)])
        await near.close()
        with pytest.raises(ConnectionLost):
            await far.read()

    run(main)


@pytest.mark.parametrize("sent", [b"", HEADER.pack(PacketKind.ACK, 8)])
def test_an_end_is_an_end_wherever_it_comes(sent: bytes) -> None:
    async def main() -> None:
        line = Line()
        near, far = ends(line)
        await line.near.send_all(sent)
        await near.close()
        with pytest.raises(ConnectionLost, match="the connection was closed"):
            await far.read()
        with pytest.raises(ConnectionLost, match="the connection broke"):
            await far.write([b"x"])

    run(main)


def test_a_connection_that_breaks_or_is_closed_here_is_lost() -> None:
    async def main() -> None:
        line = Line()
        near, far = ends(line)
        line.cut()
        for side in (near, far):
            with pytest.raises(ConnectionLost, match="the connection broke"):
                await side.read()
        await far.close()
        with pytest.raises(ConnectionLost):
            await far.read()
        with pytest.raises(ConnectionLost):
            await far.write([b"x"])

    run(main)


def test_a_close_does_not_wait_for_the_other_side() -> None:
    async def main() -> None:
        near, far = ends(Line(capacity=1))
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                await near.write([b"xyz"])
            began = trio.current_time()
            await near.close()
            assert trio.current_time() == began
            nursery.cancel_scope.cancel()
        assert far.bytes_in == 0

    run(main)


def test_the_reason_of_tls_is_told_in_plain_words() -> None:
    cause = ssl.SSLError()
    cause.reason = "CERTIFICATE_VERIFY_FAILED"
    error = trio.BrokenResourceError("ssl")
    error.__cause__ = cause
    assert why_broken(error) == "TLS: certificate verify failed"


WROTE = "what the other side wrote"


@pytest.mark.parametrize(
    "cause", [None, ssl.SSLError(), OSError(WROTE), UnicodeDecodeError("ascii", b"\xff", 0, 1, WROTE)]
)
def test_without_one_the_connection_just_broke(cause: Exception | None) -> None:
    error = trio.BrokenResourceError()
    error.__cause__ = cause
    assert why_broken(error) == "the connection broke"
