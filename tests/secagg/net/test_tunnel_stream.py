"""Streams in letters: exact in any order and after any repetition, and bounded whatever arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import SERVER, MalformedMessage
from secagg.net.tunnel_letters import INSTANCE_BYTES, KEY_BYTES, Letter, Segment
from secagg.net.tunnel_stream import FIRST_LIMIT, TunnelEnd, TunnelStream
from tests.secagg.net.rig import run

KEY = b"k" * KEY_BYTES
INSTANCE = bytes(INSTANCE_BYTES)


def ignore() -> None:
    pass


def stream(*, opens: bool = False, window: int = 64, on_output: Callable[[], None] = ignore) -> TunnelStream:
    return TunnelStream(KEY, peer=SERVER, opens=opens, window=window, on_output=on_output)


def part(start: int, data: bytes = b"", *, limit: int = 0, is_last: bool = False) -> Segment:
    return Segment(key=KEY, start=start, data=data, limit=limit, is_last=is_last)


async def all_of(end: TunnelStream) -> bytes:
    found = b""
    while data := await end.receive_some():
        found += data
    return found


def refused(end: TunnelStream, *segments: Segment) -> str:
    """Why the last of the segments is not taken."""
    for segment in segments[:-1]:
        end.take(segment)
    with pytest.raises(MalformedMessage) as caught:
        end.take(segments[-1])
    return caught.value.why


async def blocked(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether a call waits."""
    with trio.move_on_after(1) as scope:
        await call()
    return scope.cancelled_caught


# --- order ---


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12), st.randoms(), st.integers(0, 3))
def test_any_order_and_repetition(chunks: list[bytes], random: object, copies: int) -> None:
    """Letters may pass each other, and arrive again at any time."""

    async def main() -> None:
        near, far = stream(opens=True), stream()
        near.take(part(0, limit=64))
        segments = []
        for chunk in chunks:
            await near.send_all(chunk)
            segments.append(near.next_segment(64))
        await near.aclose()
        segments.append(near.next_segment(64))
        carried = segments * (1 + copies)
        random.shuffle(carried)  # type: ignore[attr-defined]
        for segment in carried:
            far.take(segment)
        assert await all_of(far) == b"".join(chunks)

    run(main)


@given(st.binary(max_size=200), st.integers(1, 40), st.integers(1, 50))
def test_any_window_and_pieces(data: bytes, window: int, piece: int) -> None:
    """An end reads as slowly as it likes, and is never sent more than it has room for."""

    async def main() -> None:
        near, far = stream(opens=True, window=window), stream(window=window)
        found = b""

        async def carry() -> None:
            nonlocal found
            while len(found) < len(data):
                if near.has_output:
                    far.take(near.next_segment(piece))
                assert len(far._unread) <= window
                assert len(near._outgoing) <= window
                if far._unread:
                    found += await far.receive_some(piece)
                if far.has_output:
                    near.take(far.next_segment(piece))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send_all, data)
            nursery.start_soon(carry)
        assert found == data

    run(main)


def test_windows_may_differ() -> None:
    """The first bytes fit into any window. After that, each end knows the window of the other."""

    async def main() -> None:
        near, far = stream(opens=True, window=1 << 20), stream(window=1 << 16)
        await near.send_all(bytes(1 << 20))
        first = near.next_segment(1 << 20)
        assert (len(first.data), first.limit) == (FIRST_LIMIT, 1 << 20)
        far.take(first)
        await far.receive_some(FIRST_LIMIT // 2)
        assert far.has_output
        near.take(far.next_segment(0))
        far.take(near.next_segment(1 << 20))
        assert len(far._unread) == 1 << 16

    run(main)


# --- what a hostile sender may not ---


def test_no_more_than_allowed() -> None:
    async def main() -> None:
        end = stream(window=8)
        end.take(part(0, bytes(8)))
        assert refused(end, part(8, b"x")) == "a letter with more bytes than were allowed"
        assert (
            refused(stream(window=8), part(9, is_last=True)) == "a letter with more bytes than were allowed"
        )

    run(main)


def test_a_limit_counts_from_when_it_is_told() -> None:
    async def main() -> None:
        end = stream(window=8)
        end.take(part(0, bytes(8)))
        assert len(await end.receive_some()) == 8
        refused(end, part(8, b"x"))
        end = stream(window=8)
        end.take(part(0, bytes(8)))
        await end.receive_some()
        assert end.next_segment(0).limit == 16
        end.take(part(8, bytes(8)))

    run(main)


def test_early_segments_take_no_more_than_a_window() -> None:
    """The guard: the bytes of `_keep_early`. Without it, sixteen windows wait for one byte."""

    async def main() -> None:
        end = stream(window=64)
        overlapping = [part(1, bytes(63)), part(2, bytes(62))]
        assert refused(end, *overlapping) == "too many letters that leave something out"
        assert sum(len(each.data) for each in end._early.values()) <= 64

    run(main)


def test_early_segments_are_few() -> None:
    async def main() -> None:
        end = stream(window=64)
        many = [part(start, b"x") for start in range(2, 64, 2)]
        assert refused(end, *many[:16], many[3], many[16]) == "too many letters that leave something out"

    run(main)


def test_early_bytes_are_free_again_when_the_gap_is_closed() -> None:
    async def main() -> None:
        end = stream(window=64)
        for start in range(0, 60, 2):
            end.take(part(start + 1, b"b"))
            end.take(part(start, b"a"))
        assert end._early_bytes == 0
        assert await end.receive_some() == b"ab" * 30

    run(main)


def test_no_overlap() -> None:
    async def main() -> None:
        end = stream()
        end.take(part(0, b"abc"))
        assert refused(end, part(2, b"cd")) == "a letter that repeats a part of another"

    run(main)


def test_a_limit_does_not_shrink() -> None:
    async def main() -> None:
        end = stream()
        end.take(part(0, limit=100))
        end.take(part(0, limit=1))
        await end.send_all(b"abc")
        assert end.next_segment(9).data == b"abc"

    run(main)


# --- waiting ---


def test_a_writer_waits_for_the_window_and_for_the_limit() -> None:
    async def main() -> None:
        end = stream(window=4)
        assert await blocked(lambda: end.send_all(b"abcdef"))
        assert await blocked(end.wait_send_all_might_not_block)
        assert end.next_segment(9).data == b"abcd"
        assert not await blocked(end.wait_send_all_might_not_block)
        await end.send_all(b"ef")
        assert not end.has_output  # the other side has no room
        assert end.next_segment(9).data == b""
        end.take(part(0, limit=8))
        assert end.next_segment(9).data == b"ef"

    run(main)


def test_a_writer_goes_on_when_there_is_room() -> None:
    async def main() -> None:
        end = stream(window=4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.send_all, b"abcdefgh")
            nursery.start_soon(end.wait_send_all_might_not_block)
            await trio.sleep(1)
            assert end.next_segment(9).data == b"abcd"
            await trio.sleep(1)
            assert bytes(end._outgoing) == b"efgh"
            end.next_segment(9)
            end.take(part(0, limit=8))
            end.next_segment(9)

    run(main)


def test_output_is_announced() -> None:
    called: list[str] = []

    async def main() -> None:
        end = stream(window=8, on_output=lambda: called.append("again"))
        await end.send_all(b"abc")
        assert len(called) == 1
        await end.send_all(b"")
        assert len(called) == 1
        await end.aclose()
        await end.aclose()
        assert len(called) == 2

    run(main)


def test_a_reader_announces_room_when_half_of_the_window_is_free() -> None:
    called: list[None] = []

    async def main() -> None:
        end = stream(window=8, on_output=lambda: called.append(None))
        end.take(part(0, bytes(8)))
        await end.receive_some(3)
        assert not called
        assert not end.has_output
        await end.receive_some(1)
        assert called
        assert end.has_output

    run(main)


def test_room_to_send_is_announced() -> None:
    called: list[None] = []

    async def main() -> None:
        end = stream(window=4, on_output=lambda: called.append(None))
        await end.send_all(b"abcd")
        end.next_segment(9)
        await end.send_all(b"ef")
        called.clear()
        end.take(part(0, limit=8))
        assert called

    run(main)


# --- ends ---


def test_the_end_comes_after_the_last_byte() -> None:
    async def main() -> None:
        near, far = stream(opens=True), stream()
        await near.send_all(b"abc")
        first = near.next_segment(2)
        await near.aclose()
        last = near.next_segment(2)
        assert (first.is_last, last.is_last) == (False, True)
        assert near.is_over
        assert not near.has_output
        far.take(last)
        assert await blocked(far.receive_some)
        far.take(first)
        assert await all_of(far) == b"abc"

    run(main)


def test_a_closed_stream_neither_reads_nor_writes() -> None:
    async def main() -> None:
        end = stream()
        end.take(part(1, b"early"))
        await end.aclose()
        for call in (lambda: end.send_all(b""), lambda: end.send_all(b"x"), end.receive_some):
            with pytest.raises(trio.ClosedResourceError):
                await call()
        with pytest.raises(trio.ClosedResourceError):
            await end.wait_send_all_might_not_block()

    run(main)


def test_a_closed_stream_keeps_nothing_that_arrives() -> None:
    async def main() -> None:
        end = stream()
        end.take(part(0, b"abc"))
        end.take(part(9, b"early"))
        await end.aclose()
        end.take(part(3, b"def"))
        assert not end._unread
        assert not end._early
        assert not end._needs_limit

    run(main)


def test_closing_wakes_the_reader_and_the_writer() -> None:
    async def main() -> None:
        end = stream(window=1)

        async def fails(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await call()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, end.receive_some)
            nursery.start_soon(fails, lambda: end.send_all(b"ab"))
            await trio.sleep(1)
            await end.aclose()

    run(main)


def test_what_the_other_side_closed_takes_nothing() -> None:
    async def main() -> None:
        end = stream()
        await end.send_all(b"x")
        end.take(part(0, b"ab", is_last=True))
        with pytest.raises(trio.BrokenResourceError):
            await end.send_all(b"x")
        assert await all_of(end) == b"ab"
        assert not end.has_output  # neither bytes nor room for more
        await end.aclose()
        assert end.next_segment(9) == part(0, limit=66, is_last=True)

    run(main)


def test_a_broken_stream() -> None:
    """What has arrived is still read."""

    async def main() -> None:
        end = stream()
        await end.send_all(b"x")
        end.take(part(0, b"ab"))
        end.take(part(3, b"d"))
        end.take(Segment(key=KEY, is_reset=True))
        assert end.is_over
        assert not end.has_output
        assert await end.receive_some() == b"ab"
        for call in (end.receive_some, lambda: end.send_all(b"x"), end.wait_send_all_might_not_block):
            with pytest.raises(trio.BrokenResourceError):
                await call()

    run(main)


def test_breaking_wakes_who_waits() -> None:
    async def main() -> None:
        end = stream(window=1)

        async def fails(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(trio.BrokenResourceError):
                await call()

        async with trio.open_nursery() as nursery:
            for call in (end.receive_some, lambda: end.send_all(b"ab"), end.wait_send_all_might_not_block):
                nursery.start_soon(fails, call)
                await trio.sleep(1)
            end.break_off()

    run(main)


@pytest.mark.parametrize("closes", [True, False], ids=["this side", "the other side"])
def test_a_closed_stream_asks_for_no_more(closes: bool) -> None:
    """The reader has made room, but there is nothing to come."""

    async def main() -> None:
        end = stream(window=8)
        end.take(part(0, bytes(8), is_last=not closes))
        await end.receive_some()
        if closes:
            await end.aclose()
        assert not end._needs_limit

    run(main)


# --- several streams of a node ---


class Ends:
    """The streams of a node at both ends."""

    def __init__(self, window: int = 64) -> None:
        self.near = TunnelEnd(SERVER, window=window, on_output=ignore)
        self.far = TunnelEnd(7, window=window, on_output=ignore)
        self.accepted: list[TunnelStream] = []

    def open(self, name: bytes) -> TunnelStream:
        return self.near.add(name * KEY_BYTES, opens=True)

    def accept(self, key: bytes) -> TunnelStream:
        self.accepted.append(self.far.add(key, opens=False))
        return self.accepted[-1]

    def up(self) -> Letter:
        letter = self.near.letter(INSTANCE, 0)
        self.far.take(letter, self.accept)
        return letter

    def down(self) -> Letter:
        letter = self.far.letter(INSTANCE, 0)
        self.near.take(letter)
        return letter


def test_streams_share_a_letter() -> None:
    async def main() -> None:
        ends = Ends(window=10)
        first, second = ends.open(b"a"), ends.open(b"b")
        await first.send_all(b"1234567")
        await second.send_all(b"abcdefg")
        letter = ends.up()
        assert [each.data for each in letter.segments] == [b"1234567", b"abc"]
        assert letter.has_more
        assert not ends.up().has_more
        assert [bytes(each._unread) for each in ends.accepted] == [b"1234567", b"abcdefg"]

    run(main)


def test_one_more_stream_than_allowed_ends_the_oldest() -> None:
    async def main() -> None:
        ends = Ends()
        opened = []
        for name in b"abcde":
            opened.append(ends.open(bytes([name])))
            await opened[-1].send_all(b"x")
            ends.up()
        assert [each.is_broken for each in ends.accepted] == [True, False, False, False, False]
        assert [each.is_broken for each in opened] == [True, False, False, False, False]

    run(main)


def test_unknown_streams_are_reset() -> None:
    async def main() -> None:
        ends = Ends()
        opened = ends.open(b"a")
        await opened.send_all(b"x")
        ends.up()
        ends.near.take(Letter(INSTANCE, 0, (Segment(key=b"b" * KEY_BYTES, data=b"x"),)))
        ends.near.take(Letter(INSTANCE, 0, (Segment(key=b"b" * KEY_BYTES, data=b"x"),)))
        assert [each.key[:1] for each in ends.near.letter(INSTANCE, 0).segments] == [b"b"]
        ends.far.lose_all()
        assert [each.is_reset for each in ends.down().segments] == [True]
        assert opened.is_broken
        assert not ends.near.has_output
        assert not ends.far.has_output

    run(main)


def test_an_end_or_a_reset_of_an_unknown_stream_needs_no_answer() -> None:
    ends = Ends()
    unknown = b"u" * KEY_BYTES
    ends.far.take(
        Letter(INSTANCE, 0, (Segment(key=unknown, is_last=True), Segment(key=unknown, is_reset=True)))
    )
    assert not ends.far.has_output


def test_resets_are_bounded() -> None:
    ends = Ends()
    for number in range(100):
        ends.far.take(Letter(INSTANCE, 0, (Segment(key=bytes([number]) * KEY_BYTES),)))
    assert len(ends.far.letter(INSTANCE, 0).segments) == 4


def test_a_stream_that_nobody_knows_is_forgotten_without_a_word() -> None:
    """As after attempts to connect while there is no server."""

    async def main() -> None:
        ends = Ends()
        for name in b"abcdef":
            await ends.open(bytes([name])).send_all(b"x")
        closed = ends.open(b"g")
        await closed.send_all(b"x")
        await closed.aclose()
        assert [each.key[:1] for each in ends.up().segments] == [b"d", b"e", b"f"]

    run(main)


def test_starting_over_keeps_what_was_not_carried() -> None:
    async def main() -> None:
        ends = Ends()
        old, new = ends.open(b"a"), None
        await old.send_all(b"x")
        ends.up()
        new = ends.open(b"b")
        await new.send_all(b"x")
        ends.near.take(Letter(INSTANCE, 0, (Segment(key=b"u" * KEY_BYTES),)))
        ends.near.start_over()
        assert (old.is_broken, new.is_broken) == (True, False)
        assert [each.key[:1] for each in ends.up().segments] == [b"b"]

    run(main)
