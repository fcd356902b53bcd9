"""The two ends of a tunnel by themselves: which letters they send and take, and when."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import trio

from secagg.errors import MalformedMessage, ParameterError, WrongEventLoop
from secagg.net import tunnel_stream
from secagg.net.connection import host_of
from secagg.net.open_client_and_server import open_server
from secagg.net.settings import ENGINE
from secagg.net.tunnel import TunnelListener, member_of_node, open_tunnel
from secagg.net.tunnel_dialer import TunnelDialer, carried
from secagg.net.tunnel_letters import (
    FAREWELL,
    INSTANCE_BYTES,
    KEY_BYTES,
    MAX_DATA,
    Letter,
    Segment,
    parse_letter,
)
from secagg.net.tunnel_stream import _MAX_STREAMS, FIRST_LIMIT, WINDOW, TunnelStream
from tests.engines.fake_engine import FakeEngine, FakeNode
from tests.secagg.net.rig import World, run
from tests.secagg.net.tunnel_rig import EngineSite

ONE = b"1" * INSTANCE_BYTES
TWO = b"2" * INSTANCE_BYTES
KEY = b"k" * KEY_BYTES


# --- the node's end ---


def letter(number: int, *segments: Segment, instance: bytes = ONE) -> bytes:
    return Letter(instance, number, segments).encode()


async def answered(dialer: TunnelDialer, content: bytes) -> Letter:
    return parse_letter(await dialer.answer(content), sender=0)


def test_a_letter_is_held_until_there_is_something_to_send() -> None:
    async def main() -> None:
        dialer = TunnelDialer(hold=10)
        assert await answered(dialer, letter(1)) == Letter(ONE, 1)
        assert trio.current_time() == 10
        stream = await dialer.open_stream()
        await stream.send_all(b"x")
        reply = await answered(dialer, letter(2))
        assert trio.current_time() < 11
        assert (reply.number, [each.data for each in reply.segments]) == (2, [b"x"])

    run(main)


def test_only_the_newest_letter_is_held() -> None:
    replies: list[int] = []

    async def main() -> None:
        dialer = TunnelDialer(hold=10)

        async def answer(number: int) -> None:
            replies.append((await answered(dialer, letter(number))).number)

        async with trio.open_nursery() as nursery:
            for number in range(1, 9):
                nursery.start_soon(answer, number)
                await trio.sleep(1)
            assert replies == list(range(1, 8))

    run(main)


def test_no_stream_before_the_first_letter() -> None:
    async def main() -> None:
        dialer = TunnelDialer(hold=1)
        with trio.move_on_after(100) as scope:
            await dialer.open_stream()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialer.open_stream)
            await dialer.answer(letter(1))

    run(main)


def test_nothing_is_sent_to_a_process_that_is_gone() -> None:
    """A letter of the old process is still held when one of the new process comes. Only this is answered."""
    found: dict[bytes, Letter] = {}

    async def main() -> None:
        dialer = TunnelDialer()

        async def answer(instance: bytes) -> None:
            found[instance] = await answered(dialer, letter(1, instance=instance))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, ONE)
            await trio.sleep(1)
            stream = await dialer.open_stream()
            await stream.send_all(b"new")  # no process of the server knows this stream yet
            nursery.start_soon(answer, TWO)

    run(main)
    assert found[ONE] == Letter(ONE, 1)
    assert [each.data for each in found[TWO].segments] == [b"new"]


def test_a_letter_that_is_none_breaks_the_streams() -> None:
    """It came in the place of one whose content is missing."""

    async def main() -> None:
        for bad in (b"garbage", letter(2, Segment(key=KEY, start=1 << 40, data=b"x"))):
            dialer = TunnelDialer(hold=1)
            await dialer.answer(letter(1))
            stream = dialer._end.add(KEY, opens=True)
            await stream.send_all(b"x")
            with pytest.raises(MalformedMessage):
                await dialer.answer(bad)
            assert stream.is_broken

    run(main)


def test_a_repeated_letter_has_the_same_reply() -> None:
    async def main() -> None:
        dialer = TunnelDialer(hold=5)
        await dialer.answer(letter(1))
        await (await dialer.open_stream()).send_all(b"x")
        reply = await dialer.answer(letter(2))
        assert await dialer.answer(letter(2)) == reply
        for number in range(3, 9):
            await dialer.answer(letter(number))
        assert len(dialer._replies) == 4  # no more than letters that the server leaves with a node

    run(main)


def test_a_repeated_letter_whose_answer_was_given_up() -> None:
    async def main() -> None:
        dialer = TunnelDialer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialer.answer, letter(1))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert await answered(dialer, letter(1)) == Letter(ONE, 1)

    run(main)


def test_a_letter_that_is_late_or_replayed_has_an_empty_reply() -> None:
    """The engine may drop this reply. Its content is taken, and the newest letter is still held."""
    replies: dict[int, Letter] = {}

    async def main() -> None:
        dialer = TunnelDialer()

        async def answer(number: int, *segments: Segment) -> None:
            replies[number] = await answered(dialer, letter(number, *segments))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, 7)
            await trio.sleep(1)
            stream = await dialer.open_stream()
            await stream.send_all(b"x")
            before = trio.current_time()
            await answer(3, Segment(key=stream.key, data=b"late"))
            assert trio.current_time() == before
            assert await stream.receive_some() == b"late"
            assert list(replies) == [3]

    run(main)
    assert replies[3] == Letter(ONE, 3)
    assert [each.data for each in replies[7].segments] == [b"x"]


def test_a_letter_of_an_instance_that_was_replaced_is_ignored() -> None:
    """It does not break the streams of the new one. If it is not late, the server learns of the refusal."""

    async def main() -> None:
        dialer = TunnelDialer(hold=1)
        await dialer.answer(letter(1, instance=ONE))
        await dialer.answer(letter(1, instance=TWO))
        stream = await dialer.open_stream()
        await stream.send_all(b"x")
        await dialer.answer(letter(2, instance=TWO))
        late = await answered(dialer, letter(2, Segment(key=stream.key, is_reset=True), instance=ONE))
        assert late == Letter(TWO, 2)
        assert not stream.is_broken

    run(main)


def test_an_adapter_breaks_the_streams_of_a_reply_that_it_cannot_send() -> None:
    async def main() -> None:
        dialer = TunnelDialer(hold=1)
        await dialer.answer(letter(1))
        stream = await dialer.open_stream()
        await stream.send_all(b"x")
        await dialer.answer(letter(2))
        dialer.lose_streams()
        assert stream.is_broken
        assert [each.is_reset for each in (await answered(dialer, letter(3))).segments] == [True]

    run(main)


def test_calls_from_a_thread_are_refused() -> None:
    dialer = TunnelDialer()
    with pytest.raises(WrongEventLoop, match="answer must be called by a task of trio"):
        dialer.answer(letter(1)).send(None)
    with pytest.raises(WrongEventLoop, match="lose_streams must be called by a task of trio"):
        dialer.lose_streams()


def test_a_node_that_cannot_say_goodbye_gives_up() -> None:
    """There is no letter to reply to, and none comes."""

    async def main() -> None:
        node = FakeNode(FakeEngine(set()), "berlin")
        async with carried(node):
            await node.dialer.answer(letter(1))
            await (await node.dialer.open_stream()).send_all(b"x")
            before = trio.current_time()
        assert trio.current_time() - before == FAREWELL

    run(main)


# --- the server's end ---


def test_a_stream_that_comes_after_the_listener_is_closed() -> None:
    """As clients do that hear that the server leaves. Without a guard, all of the tunnel breaks down."""

    async def main() -> None:
        engine = FakeEngine({"berlin"})
        node = engine.node("berlin")
        async with open_tunnel(engine) as listener, carried(node):
            await listener.aclose()
            stream = await node.dialer.open_stream()
            await stream.send_all(b"x")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

    run(main)


def test_accept_waits_and_is_woken_by_the_end() -> None:
    async def main() -> None:
        listener = TunnelListener()

        async def fails() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await trio.sleep(1)
            await listener.aclose()

    run(main)


def test_a_node_cannot_have_many_letters() -> None:
    """Whatever the server has to say, it waits."""

    async def main() -> None:
        engine = FakeEngine({"berlin"})
        async with open_tunnel(engine, farewell=1) as listener:
            await trio.sleep(1)
            for number in range(20):
                listener.nodes["berlin"]._end._reset(bytes([number]) * KEY_BYTES)
                await trio.sleep(1)
            assert len(engine.letters) == 4

    run(main)


# The start of a TLS record that never ends: the server reads it all, and grants the stream its window.
RECORD = bytes([22, 3, 1, 0x40, 0]) + bytes(FIRST_LIMIT - 5)
FLOOD = 12  # letters


class Hoarder:
    """A node whose streams have as many bytes as the server allows, all but one of which nobody can read: one
    before them is left out. It opens another stream with each letter."""

    def __init__(self) -> None:
        self.letters = 0

    async def run(self, engine: FakeEngine, name: str) -> None:
        while self.letters < FLOOD:
            carried = await engine.queues[name].get.receive()
            self.letters += 1
            carried.reply = self._reply(parse_letter(carried.letter, sender=0)).encode()
            carried.done.set()

    def _reply(self, letter: Letter) -> Letter:
        start = FIRST_LIMIT + 1
        more = [
            Segment(key=each.key, start=start, data=bytes(min(each.limit, MAX_DATA) - start))
            for each in letter.segments
            if each.limit > start
        ]
        opened = Segment(key=self.letters.to_bytes(KEY_BYTES), data=RECORD, is_first=True)
        return Letter(letter.instance, letter.number, (*more, opened), has_more=True)


def hoarded() -> int:
    """Return the bytes that a server holds of a node which it does not know yet."""
    site = EngineSite(World(clients=2), FakeEngine({"mallory"}))

    async def main() -> int:
        hoarder = Hoarder()
        async with site.server(), trio.open_nursery() as nursery:
            tracemalloc.start()
            try:
                nursery.start_soon(hoarder.run, site.engine, "mallory")
                while hoarder.letters < FLOOD:
                    await trio.sleep(1)
                    site.engine.letters.clear()
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
                nursery.cancel_scope.cancel()

    return run(main)


def test_a_server_holds_few_windows_of_a_stranger() -> None:
    """The guard: `_MAX_STREAMS` of a node. All of them are in handshakes that do not go on."""
    assert WINDOW < hoarded() < (_MAX_STREAMS + 1) * WINDOW


def test_without_a_limit_of_streams_a_stranger_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_stream, "_MAX_STREAMS", 10_000)
    assert hoarded() > 2 * _MAX_STREAMS * WINDOW


def test_one_loss_is_one_loss() -> None:
    """Several letters are on their way when one of them is lost. The fate of the others does not matter."""

    async def main() -> None:
        engine = FakeEngine({"berlin"}, patience=10)
        async with open_tunnel(engine, farewell=1) as listener:
            for number in range(3):
                await trio.sleep(1)
                listener.nodes["berlin"]._end._reset(bytes([number]) * KEY_BYTES)
            await trio.sleep(8.5)  # the first letter is lost
            seen = listener.nodes["berlin"]._instance
            await trio.sleep(3)  # and the second and the third
            assert listener.nodes["berlin"]._instance == seen
            await trio.sleep(8)  # until that of the new instance is
            assert listener.nodes["berlin"]._instance != seen

    run(main)


def test_the_name_of_a_node() -> None:
    found = [member_of_node(name) for name in ("member-4", "site-12-3", "4", "-4", "berlin", "member-4x", "")]
    assert found == [4, 3, None, 4, None, None, None]


def test_a_node_is_named_in_the_log() -> None:
    async def main() -> None:
        for node, shown in [("berlin", "berlin"), ("a\nreleased", "a\\nreleased"), ("x" * 999, "x" * 100)]:
            assert host_of(TunnelStream(KEY, peer=1, node=node, on_output=lambda: None)) == shown

    run(main)


@pytest.mark.parametrize("make", [TunnelDialer, TunnelListener])
def test_a_window_has_room_for_the_first_bytes(make: Any) -> None:
    assert make(window=FIRST_LIMIT)
    with pytest.raises(ParameterError) as caught:
        make(window=FIRST_LIMIT - 1)
    assert caught.value.parameter == "window"


def test_no_sums_through_an_engine_without_tls() -> None:
    async def main() -> None:
        with pytest.raises(ParameterError, match="an engine is not on this machine"):
            async with open_server(TunnelListener(), members={}, insecure_plain_tcp=True):
                pass
        with pytest.raises(ParameterError, match="an engine is not on this machine"):
            async with World().client(0, address=TunnelDialer()):
                pass

    run(main)


def test_a_server_through_an_engine_has_no_address() -> None:
    site = EngineSite()

    async def main() -> None:
        async with site.server() as server:
            assert server.address is ENGINE

    run(main)
