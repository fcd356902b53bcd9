"""Links: every frame once, in order and unchanged, over connections that break wherever they like."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import SERVER, MalformedMessage, OversizeMessage, SecaggError, SlowReader
from secagg.net import packets
from secagg.net.connection import Connection, ConnectionLost, StreamEnded
from secagg.net.packets import HEADER, MAX_BODY, PacketKind, Reason
from secagg.net.reliable_link import (
    MAX_KEEPALIVES,
    MAX_UNREAD,
    ClosedLocally,
    DismissedByServer,
    Link,
    ReceivedFrame,
)
from secagg.net.upload_slots import GRACE, UploadSlots
from secagg.net.versions import OWN_VERSIONS
from tests.secagg.net.rig import LINK, Knocker, Line, run

SILENCE = 60.0
MEMBER = 7


class Side:
    """One end of a link and what was delivered there."""

    def __init__(self, *, server: bool, slots: UploadSlots | None = None, limit: int = 1 << 20) -> None:
        self.left: list[tuple[int, int]] = []  # (length of a frame, bytes of it that have left)
        self.link = Link(
            LINK,
            member=MEMBER,
            peer=MEMBER if server else SERVER,
            slots=slots,
            progress=lambda frame, sent: self.left.append((len(frame), sent)),
        )
        self.link.frame_limit = limit
        self.arrivals: list[ReceivedFrame] = []
        self.why: SecaggError | None = None

    @property
    def frames(self) -> list[bytes]:
        return [arrival.frame for arrival in self.arrivals]

    async def deliver(self, arrival: ReceivedFrame) -> None:
        await trio.lowlevel.checkpoint()
        self.arrivals.append(arrival)

    async def run(self, stream: trio.abc.Stream, received: int) -> SecaggError:
        """Over one connection, which is closed at the end."""
        connection = Connection(stream, peer=self.link.peer, silence=SILENCE)
        async with self.link.run_lock:
            self.why = await self.link.run(connection, received=received, deliver=self.deliver)
        await connection.close()
        return self.why


async def connect(near: Side, far: Side, line: Line) -> None:
    """Both ends over one connection, until it ends."""
    received = near.link.received, far.link.received
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.run, line.near, received[1])
        nursery.start_soon(far.run, line.far, received[0])


def sides() -> tuple[Side, Side]:
    return Side(server=False), Side(server=True)


def frames_of(sizes: list[int], mark: int) -> list[bytes]:
    return [random.Random(mark * 1000 + k).randbytes(size) for k, size in enumerate(sizes)]


# --- what links are for --------------------------------------------------------------------------------


sizes_of_frames = st.lists(st.sampled_from([1, 7, 300, MAX_BODY, MAX_BODY + 1, 2 * MAX_BODY + 5]), max_size=4)
where = st.one_of(
    st.integers(1, 80),
    st.integers(1, 3 * MAX_BODY),
    st.sampled_from([k * (MAX_BODY + HEADER.size) + d for k in (1, 2) for d in range(-20, 20)]),
)
cuts = st.lists(st.tuples(st.sampled_from(["up", "down"]), where, st.booleans()), max_size=8)


@settings(max_examples=60)
@given(up=sizes_of_frames, down=sizes_of_frames, cuts=cuts)
def test_every_frame_arrives_once_and_in_order_wherever_connections_break(
    up: list[int], down: list[int], cuts: list[tuple[str, int, bool]]
) -> None:
    async def main() -> None:
        near, far = sides()
        sent = frames_of(up, 1), frames_of(down, 2)
        for side, frames in zip((near, far), sent, strict=True):
            for frame in frames:
                side.link.send(frame)
        for direction, after, tight in cuts:
            line = Line(capacity=1000 if tight else 1 << 20)
            getattr(line, direction).left = after
            with trio.move_on_after(SILENCE):
                await connect(near, far, line)
                assert {type(near.why), type(far.why)} <= {ConnectionLost, StreamEnded}  # nobody is to blame
        with trio.move_on_after(SILENCE):
            await connect(near, far, Line())
        assert far.frames == sent[0]
        assert near.frames == sent[1]
        assert (near.link.received, far.link.received) == (len(down), len(up))
        await near.link.flush()
        await far.link.flush()

    run(main)


def test_what_is_sent_again_are_the_identical_bytes() -> None:
    async def main() -> None:
        near, far = sides()
        frame = random.Random(1).randbytes(3 * MAX_BODY)
        near.link.send(frame)
        logs = []
        for after in (10, MAX_BODY, 2 * MAX_BODY + 100, 10 * MAX_BODY):
            line = Line()
            line.up.left = after
            with trio.move_on_after(1):
                await connect(near, far, line)
            logs.append(bytes(line.up.log))
        whole = logs[-1]
        for log in logs:
            assert whole.startswith(log)
        assert far.frames == [frame]

    run(main)


def test_a_frame_whose_acknowledgement_was_lost_is_not_delivered_twice() -> None:
    async def main() -> None:
        near, far = sides()
        near.link.send(b"once")
        line = Line()
        line.down.left = 1  # of the acknowledgement
        await connect(near, far, line)
        assert far.frames == [b"once"]
        line = Line()
        with trio.move_on_after(1):
            await connect(near, far, line)
        assert far.frames == [b"once"]
        assert b"once" not in line.up.log

    run(main)


def test_what_a_greeting_says_is_not_said_again() -> None:
    async def main() -> None:
        near, far = sides()
        near.link.send(b"once")
        line = Line()
        line.down.quota = 0  # the acknowledgement stays behind
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, far, line)
            await trio.sleep(1)
            line.cut()
        assert far.frames == [b"once"]
        with trio.move_on_after(1):
            await connect(near, far, line := Line())
        assert not line.down.log

    run(main)


def test_a_frame_that_was_not_taken_in_comes_again() -> None:
    """A connection may end between the last byte of a frame and the moment at which it is its turn."""

    async def main() -> None:
        near, far = sides()

        async def stuck(_arrival: ReceivedFrame) -> None:
            await trio.sleep_forever()

        near.link.send(b"frame")
        line = Line()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.run, line.near, 0)
            async with far.link.run_lock:
                connection = Connection(line.far, peer=MEMBER, silence=SILENCE)
                nursery.start_soon(cut_soon, far.link)
                await far.link.run(connection, received=0, deliver=stuck)
            nursery.cancel_scope.cancel()
        assert far.link.received == 0
        with trio.move_on_after(1):
            await connect(near, far, Line())
        assert far.frames == [b"frame"]

    async def cut_soon(link: Link) -> None:
        await trio.sleep(1)
        link.close(Reason.REPLACED)

    run(main)


def test_both_sides_can_send_more_than_the_wire_holds_at_the_same_time() -> None:
    async def main() -> None:
        near, far = sides()
        frames = frames_of([3 * MAX_BODY, 5], 3), frames_of([2 * MAX_BODY, MAX_BODY], 4)
        for side, mine in zip((near, far), frames, strict=True):
            for frame in mine:
                side.link.send(frame)
        with trio.move_on_after(SILENCE):
            await connect(near, far, Line(capacity=64))
        assert (far.frames, near.frames) == frames

    run(main)


def test_acknowledgements_find_a_place_between_the_pieces_of_a_long_frame() -> None:
    """Else whoever waits for one would wait for the whole upload."""

    async def main() -> None:
        near, far = sides()
        line = Line(capacity=MAX_BODY)
        near.link.send(bytes(6 * MAX_BODY))
        far.link.send(b"short")
        far.link.frame_limit = 1 << 30
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.run, line.near, 0)
            reader = Knocker(line.far)
            await reader.send(packets.begin(5, 0), packets.packet(PacketKind.PIECE, b"short"))
            kinds = []
            while PacketKind.ACK not in kinds:
                kinds.append((await reader.connection.read())[0])
            assert near.frames == [b"short"]
            assert kinds.count(PacketKind.PIECE) < 6
            nursery.cancel_scope.cancel()

    run(main)


def test_a_frame_says_how_many_its_sender_had_seen_when_it_was_made() -> None:
    async def main() -> None:
        near, far = sides()

        async def reply(arrival: ReceivedFrame) -> None:
            near.link.send(b"to " + arrival.frame)

        near.deliver = reply  # type: ignore[method-assign]
        near.link.send(b"early")
        far.link.send(b"1")
        far.link.send(b"2")
        line = Line()
        line.up.left = 1  # nothing gets through at first: what is made early stays so
        await connect(near, far, line)
        with trio.move_on_after(1):
            await connect(near, far, Line())
        assert far.arrivals == [
            ReceivedFrame(b"early", 0),
            ReceivedFrame(b"to 1", 1),
            ReceivedFrame(b"to 2", 2),
        ]

    run(main)


def test_progress_is_told_for_every_piece() -> None:
    async def main() -> None:
        near, far = sides()
        near.link.send(bytes(MAX_BODY + 1))
        with trio.move_on_after(1):
            await connect(near, far, Line())
        size = MAX_BODY + 1
        assert near.left == [(size, 0), (size, MAX_BODY), (size, size)]

    run(main)


# --- how much a peer may cost ---------------------------------------------------------------------------


def test_a_reader_that_never_reads_is_found_out() -> None:
    async def main() -> None:
        _near, far = sides()
        for _ in range(MAX_UNREAD):
            far.link.send(b"x")
        with pytest.raises(SlowReader) as caught:
            far.link.send(b"one more")
        assert caught.value.peer == MEMBER
        assert far.link.sent == MAX_UNREAD

    run(main)


def test_whoever_acknowledges_can_be_sent_any_number_of_frames() -> None:
    async def main() -> None:
        near, far = sides()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, far, Line())
            await trio.sleep(1)
            for number in range(5 * MAX_UNREAD):
                far.link.send(bytes([number]))
                await far.link.flush()
            nursery.cancel_scope.cancel()
        assert near.frames == [bytes([number]) for number in range(5 * MAX_UNREAD)]

    run(main)


@asynccontextmanager
async def facing(side: Side, *, received: int = 0, capacity: float = 1e9) -> AsyncIterator[Knocker]:
    """A hand-made peer of a link; the link must have ended by itself when the block ends."""
    line = Line(capacity)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.run, line.far, received)
        yield Knocker(line.near)


def ends_with(error: type[SecaggError], match: str, *data: bytes, sent: int = 0, server: bool = True) -> Side:
    """A link that has sent `sent` frames, and is told `data`, ends because of that and at once."""
    side = Side(server=server, limit=100)

    async def main() -> None:
        for _ in range(sent):
            side.link.send(b"frame")
        began = trio.current_time()
        async with facing(side) as peer:
            for _ in range(sent):
                await peer.frame()
            await peer.send(*data)
        assert trio.current_time() == began

    run(main)
    assert isinstance(side.why, error)
    assert match in str(side.why)
    assert not side.frames
    return side


@pytest.mark.parametrize("size", [0, 101, (1 << 32) - 1])
def test_a_frame_is_refused_when_it_is_announced(size: int) -> None:
    ends_with(OversizeMessage, f"announced a message of {size} bytes; 100", packets.begin(size, 0))


def test_a_frame_of_the_limit_is_taken() -> None:
    async def main() -> None:
        side = Side(server=True, limit=100)
        async with facing(side) as peer:
            await peer.send_frame(bytes(100), seen=0)
            await peer.next(PacketKind.ACK)
            await peer.stream.aclose()
        assert side.frames == [bytes(100)]

    run(main)


def piece(size: int) -> bytes:
    return packets.packet(PacketKind.PIECE, bytes(size))


@pytest.mark.parametrize(
    "data",
    [
        [packets.begin(10, 0), piece(11)],
        [packets.begin(10, 0), piece(9)],
        [packets.begin(10, 0), piece(1)],
        [packets.begin(10, 0), piece(MAX_BODY)],
    ],
)
def test_a_piece_has_the_only_length_that_it_can_have(data: list[bytes]) -> None:
    ends_with(MalformedMessage, "another length than announced", *data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("begin", [packets.begin(10, 0), packets.begin(10, 0)]),
        ("piece", [piece(10)]),
        ("hello", [packets.hello(MEMBER, LINK, 0)]),
        ("versions", [packets.packet(PacketKind.VERSIONS, bytes([3, 3, 2, 2]))]),
        ("welcome", [packets.welcome(resumed=True, received=0)]),
        ("welcome", [packets.begin(10, 0), packets.welcome(resumed=True, received=0)]),
        ("bye", [packets.bye(Reason.CLOSING)]),  # only a server ends a connection on purpose
    ],
)
def test_packets_come_in_their_order(name: str, data: list[bytes]) -> None:
    ends_with(MalformedMessage, f"out of order ({name})", *data)


def test_a_piece_that_belongs_to_no_frame_is_refused() -> None:
    async def main() -> None:
        side = Side(server=True, limit=100)
        async with facing(side) as peer:
            await peer.send_frame(b"whole", seen=0)
            await peer.send(piece(1))
        assert side.frames == [b"whole"]
        assert isinstance(side.why, MalformedMessage)

    run(main)


@pytest.mark.parametrize("garbage", [b"\0" * 5, b"GET / HTTP/1.1\r\n", b"\xff" * 100])
def test_garbage_is_refused(garbage: bytes) -> None:
    ends_with(MalformedMessage, "not a packet", garbage)


@pytest.mark.parametrize("count", [3, (1 << 64) - 1])
def test_what_was_not_sent_cannot_be_acknowledged(count: int) -> None:
    ends_with(MalformedMessage, "cannot have received", packets.ack(count), sent=2)


@pytest.mark.parametrize("acks", [[0], [1, 1], [2, 1]])
def test_nothing_is_acknowledged_twice(acks: list[int]) -> None:
    ends_with(MalformedMessage, "the same twice", *map(packets.ack, acks), sent=2)


def test_a_frame_that_has_not_been_begun_cannot_be_acknowledged() -> None:
    async def main() -> None:
        side = Side(server=True)
        side.link.send(bytes(MAX_BODY))
        side.link.send(b"waits")
        async with facing(side, capacity=100) as peer:
            await peer.send(packets.ack(2))
        assert isinstance(side.why, MalformedMessage)

    run(main)


def test_a_greeting_claims_no_more_than_was_sent() -> None:
    async def main() -> None:
        side = Side(server=True)
        side.link.send(b"x")
        async with facing(side, received=2):
            pass
        assert isinstance(side.why, MalformedMessage)
        assert "cannot have received" in str(side.why)

    run(main)


def test_a_greeting_that_was_held_up_is_no_greeting() -> None:
    """An older connection than the one it replaced: nobody broke the protocol, and nothing is sent twice."""

    async def main() -> None:
        side = Side(server=True)
        side.link.send(b"x")
        async with facing(side) as peer:
            assert await peer.frame() == b"x"
            await peer.send(packets.ack(1))
            await side.link.flush()
            await peer.stream.aclose()
        async with facing(side, received=0):
            pass
        assert isinstance(side.why, ConnectionLost)
        assert "older" in str(side.why)
        async with facing(side, received=1) as peer:
            await peer.stream.aclose()
        assert "closed" in str(side.why)

    run(main)


def test_nobody_needs_so_many_signs_of_life() -> None:
    alive = packets.packet(PacketKind.ALIVE)
    ends_with(MalformedMessage, "too many keep-alive", *[alive] * (MAX_KEEPALIVES + 1))
    ends_with(MalformedMessage, "too many keep-alive", packets.begin(10, 0), *[alive] * (MAX_KEEPALIVES + 1))


def test_signs_of_life_are_counted_by_the_second() -> None:
    async def main() -> None:
        side = Side(server=True)
        async with facing(side) as peer:
            for _ in range(5):
                await peer.send(*[packets.packet(PacketKind.ALIVE)] * MAX_KEEPALIVES)
                await trio.sleep(1.01)
            await peer.send_frame(b"alive", seen=0)
            await peer.next(PacketKind.ACK)
            await peer.stream.aclose()
        assert side.frames == [b"alive"]

    run(main)


# --- slots -----------------------------------------------------------------------------------------------


def test_a_long_frame_waits_for_a_slot_and_is_not_read_meanwhile() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1)
        side = Side(server=True, slots=slots)
        line = Line(capacity=1000)
        near = Side(server=False)
        near.link.send(bytes(MAX_BODY + 1))
        async with trio.open_nursery() as nursery:
            async with slots.hold():
                nursery.start_soon(connect, near, side, line)
                await trio.sleep(SILENCE / 2)
                assert len(line.up.log) < MAX_BODY / 2
            await near.link.flush()
            nursery.cancel_scope.cancel()
        assert side.frames == [bytes(MAX_BODY + 1)]

    run(main)


def test_a_short_frame_needs_no_slot() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1)
        side, near = Side(server=True, slots=slots), Side(server=False)
        near.link.send(bytes(MAX_BODY))
        async with trio.open_nursery() as nursery, slots.hold():
            nursery.start_soon(connect, near, side, Line())
            await trio.sleep(1)
            await near.link.flush()
            nursery.cancel_scope.cancel()
        assert side.frames == [bytes(MAX_BODY)]

    run(main)


def test_a_slot_is_held_until_the_frame_is_taken_in() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1e9)
        taken = trio.Event()
        side, near = Side(server=True, slots=slots), Side(server=False)

        async def slow(arrival: ReceivedFrame) -> None:
            await trio.sleep(10 * GRACE)
            taken.set()

        side.deliver = slow  # type: ignore[method-assign]
        near.link.send(bytes(MAX_BODY + 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, side, Line())
            await trio.sleep(1)
            async with slots.hold():
                assert taken.is_set()
            nursery.cancel_scope.cancel()

    run(main)


def test_an_upload_that_stops_makes_room_for_others_and_goes_on_later() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1e9)
        side, near = Side(server=True, slots=slots), Side(server=False)
        frame = bytes(2 * MAX_BODY)
        near.link.send(frame)
        async with facing(side) as peer:
            await peer.send(packets.begin(len(frame), 0), piece(MAX_BODY))
            await trio.sleep(1)
            async with slots.hold():
                pass
        assert isinstance(side.why, ConnectionLost)
        assert "made room for others" in str(side.why)
        with trio.move_on_after(1):
            await connect(near, side, Line())
        assert side.frames == [frame]

    run(main)


def test_an_upload_that_goes_on_is_no_slow_one() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=MAX_BODY / 10)
        side = Side(server=True, slots=slots)
        async with facing(side) as peer:
            await peer.send(packets.begin(9 * MAX_BODY, 0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold_once, slots)
                for _ in range(9):
                    await peer.send(piece(MAX_BODY))
                    await trio.sleep(9)
            await peer.stream.aclose()
        assert len(side.frames) == 1

    async def hold_once(slots: UploadSlots) -> None:
        await trio.sleep(1)
        async with slots.hold():
            pass

    run(main)


@pytest.mark.parametrize("sent", [1, MAX_BODY // 2, MAX_BODY + 20])
def test_a_client_that_dies_mid_upload_takes_no_slot_with_it(sent: int) -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1)
        side = Side(server=True, slots=slots)
        data = packets.begin(2 * MAX_BODY, 0) + piece(MAX_BODY) + piece(MAX_BODY)
        async with facing(side) as peer:
            await peer.send(data[: len(packets.begin(1, 0)) + sent])
            await peer.stream.aclose()
        async with slots.hold():
            assert side.frames == []

    run(main)


# --- life and death --------------------------------------------------------------------------------------


def test_two_idle_sides_keep_each_other_alive() -> None:
    async def main() -> None:
        near, far = sides()
        with trio.move_on_after(100 * SILENCE) as scope:
            await connect(near, far, Line())
        assert scope.cancelled_caught
        assert near.why is far.why is None

    run(main)


def test_a_side_that_waits_for_a_slot_gives_signs_of_life() -> None:
    async def main() -> None:
        slots = UploadSlots(1, slowest=1)
        near, far = Side(server=False), Side(server=True, slots=slots)
        near.link.send(bytes(2 * MAX_BODY))
        async with trio.open_nursery() as nursery:
            async with slots.hold():
                nursery.start_soon(connect, near, far, Line(capacity=1000))
                await trio.sleep(20 * SILENCE)
            await near.link.flush()
            nursery.cancel_scope.cancel()
        assert far.frames == [bytes(2 * MAX_BODY)]

    run(main)


def test_a_side_that_says_nothing_is_taken_for_dead() -> None:
    async def main() -> None:
        side = Side(server=True)
        began = trio.current_time()
        async with facing(side):
            pass
        assert trio.current_time() == pytest.approx(began + SILENCE)
        assert isinstance(side.why, ConnectionLost)
        assert "no sign of life" in str(side.why)

    run(main)


def test_signs_of_life_come_four_times_as_often_as_they_are_needed() -> None:
    async def main() -> None:
        side = Side(server=True)
        async with facing(side) as peer:
            began = trio.current_time()
            assert (await peer.connection.read())[0] is PacketKind.ALIVE
            assert trio.current_time() == pytest.approx(began + SILENCE / 4)
            await peer.stream.aclose()

    run(main)


@pytest.mark.parametrize("reason", Reason)
def test_a_client_learns_why_its_server_ended_the_connection(reason: Reason) -> None:
    bye = packets.bye_versions(OWN_VERSIONS) if reason is Reason.VERSIONS else packets.bye(reason)
    side = ends_with(DismissedByServer, reason.name.lower(), bye, server=False)
    assert isinstance(side.why, DismissedByServer)
    assert side.why.reason is reason


def test_a_server_says_nothing_that_has_no_meaning() -> None:
    bye = packets.packet(PacketKind.BYE, b"\xee")
    ends_with(MalformedMessage, "unknown reason", bye, server=False)


def test_whoever_cuts_a_connection_is_told_its_own_reason() -> None:
    async def main() -> None:
        side = Side(server=True)
        async with facing(side):
            await trio.sleep(1)
            assert side.link.is_up
            side.link.close(Reason.CLOSING)
        assert isinstance(side.why, ClosedLocally)
        assert not side.link.is_up

    run(main)


def test_a_connection_that_another_replaced_is_only_lost() -> None:
    async def main() -> None:
        side = Side(server=True)
        side.link.supersede()  # there is none yet
        async with facing(side):
            await trio.sleep(1)
            side.link.supersede()
        assert isinstance(side.why, ConnectionLost)
        assert "took its place" in str(side.why)

    run(main)


def test_a_cut_is_of_one_connection() -> None:
    """The next one ends for its own reasons, even if it ends before it has begun."""

    async def main() -> None:
        side = Side(server=True)
        async with facing(side):
            await trio.sleep(1)
            side.link.close(Reason.REPLACED)
        side.link.close(Reason.CLOSING)  # there is no connection to cut
        async with facing(side, received=1):
            pass
        assert isinstance(side.why, MalformedMessage)

    run(main)


def test_a_link_has_one_connection_at_a_time() -> None:
    async def main() -> None:
        side = Side(server=True)
        connection = Connection(Line().far, peer=MEMBER, silence=SILENCE)
        with pytest.raises(AssertionError):
            await side.link.run(connection, received=0, deliver=side.deliver)

    run(main)


def test_to_flush_means_everything_even_what_is_sent_meanwhile() -> None:
    async def main() -> None:
        near, far = sides()
        line = Line(capacity=0)
        near.link.send(b"1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, far, line)
            await trio.sleep(1)
            async with trio.open_nursery() as flushing:
                flushing.start_soon(near.link.flush)
                await trio.sleep(1)
                near.link.send(b"2")
                line.up.capacity = line.down.capacity = 1000
            assert far.frames == [b"1", b"2"]
            nursery.cancel_scope.cancel()

    run(main)


def test_to_flush_without_a_connection_is_to_wait_for_nothing() -> None:
    async def main() -> None:
        near, far = sides()
        near.link.send(b"1")
        await near.link.flush()
        line = Line(capacity=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, far, line)
            await trio.sleep(1)
            async with trio.open_nursery() as flushing:
                flushing.start_soon(near.link.flush)
                await trio.sleep(1)
                line.cut()
        assert trio.current_time() < SILENCE
        # What was not flushed then is flushed on the next connection.
        line = Line(capacity=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, near, far, line)
            await trio.sleep(1)
            with trio.move_on_after(1) as scope:
                await near.link.flush()
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()

    run(main)
