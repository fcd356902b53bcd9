"""Nodes of an engine that claim to be another client, or flood the server with what they may send.

In every test, the sums of the honest clients go on meanwhile, and are exact.
"""

from __future__ import annotations

import secrets
import tracemalloc

import pytest
import trio

from secagg.insecure_seeds import seeded_identity
from secagg.net import handshake, packets, tunnel_stream
from secagg.net.certificates import make_certificate
from secagg.net.packets import Reason
from secagg.net.settings import Capacity
from secagg.net.tls import client_context
from secagg.net.tunnel import TunnelListener, open_tunnel
from secagg.net.tunnel_dialer import carried
from secagg.net.tunnel_letters import KEY_BYTES, MAX_SEGMENTS, Letter, Segment
from secagg.net.tunnel_stream import FIRST_LIMIT
from tests.attacks.engines import forge, refusals, scene, sum_of
from tests.attacks.network import Intruder, crowd
from tests.engines.fake_engine import FakeEngine
from tests.secagg.net.rig import World, run
from tests.secagg.net.tls_contexts import NOW, certificate, context_of
from tests.secagg.net.tunnel_rig import EngineSite, name_of

MALLORY = "mallory"


def site_with(*names: str) -> EngineSite:
    return EngineSite(engine=FakeEngine(set(names)))


# --- who a node is ---


def intrude_as_1_through_2() -> EngineSite:
    """Node 2 has stolen the key of client 1, and client 1 is connected."""
    site = site_with()

    async def main() -> None:
        async with scene(site, 0, 1, 3) as (server, nursery):
            await server.wait_for_clients(3)
            nursery.start_soon(lambda: site.answering(1, name=name_of(2), memory=World().memories[1]))
            await trio.sleep(30)
            await sum_of(site, server, (0, 1, 3))

    run(main)
    return site


def test_a_node_with_the_key_of_another_client() -> None:
    """The guard: the id of the node in `ClientAuthenticator._identify`."""
    site = intrude_as_1_through_2()
    assert set(refusals(site)) == {(name_of(2), "connects through the node of client 2")}
    assert site.world.diary.facts("left") == []
    assert site.world.diaries[1].reasons("dismissed")[0] == "unknown"


def test_without_the_name_of_its_node_a_thief_displaces_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_member_of", lambda _stream: None)
    site = intrude_as_1_through_2()
    assert refusals(site) == []
    assert "replaced" in site.world.diaries[1].reasons("dismissed")


def test_a_node_with_a_key_that_nobody_has_registered() -> None:
    """The guard: the trust anchors of the server's TLS context. A name that the engine gives is no proof."""
    site = site_with()
    stranger = seeded_identity(b"stranger", 1)
    context = client_context(stranger, make_certificate(stranger, now=NOW), certificate(100))

    async def main() -> None:
        async with scene(site, 0, 2, 3) as (server, nursery):
            nursery.start_soon(lambda: site.answering(1, context=context))
            await sum_of(site, server, (0, 2, 3))
            await trio.sleep(10)

    run(main)
    assert {host for host, _ in refusals(site)} == {name_of(1)}
    assert all(str(reason).startswith("TLS:") for _, reason in refusals(site))
    assert 1 not in site.world.diary.members("connected")


@pytest.mark.parametrize("name", [name_of(1), MALLORY], ids=["its name", "no name"])
def test_a_node_with_its_own_key_and_the_id_of_another_client(name: str) -> None:
    """The guard: the key of the id in `ClientAuthenticator._identify`. Client 2 says that it is client 1."""
    site = site_with(MALLORY)

    async def main() -> None:
        async with scene(site, 0, 3) as (server, nursery):
            nursery.start_soon(lambda: site.answering(1, name=name, context=context_of(2)))
            await sum_of(site, server, (0, 3))
            await trio.sleep(10)

    run(main)
    assert set(refusals(site)) == {(name, "is not a client of this server, or uses another client's id")}
    assert 1 not in site.world.diary.members("connected")


def test_a_node_without_a_name_is_who_its_key_says() -> None:
    """The engine's names are a second guard. Who has a key is its client, wherever it is."""
    site = site_with(MALLORY)

    async def main() -> None:
        async with scene(site, 0, 2, 3) as (server, nursery):
            nursery.start_soon(lambda: site.answering(1, name=MALLORY))
            await sum_of(site, server, (0, 1, 2, 3))

    run(main)
    assert refusals(site) == []


def test_a_node_that_is_refused_reads_why() -> None:
    site = site_with()

    async def main() -> None:
        async with scene(site, 0, 3) as (server, _):
            await server.wait_for_clients(2)
            node = site.node(2)
            async with carried(node):
                raw = await node.dialer.open_stream()
                stream = trio.SSLStream(raw, context_of(1), https_compatible=True)
                intruder = Intruder(stream)
                await intruder.hello(1)
                assert await intruder.dismissal() is Reason.UNKNOWN
                await intruder.until_closed()

    run(main)


# --- floods ---


def opening(letter: Letter) -> Letter:
    """As many new streams as fit into a letter, and at once more."""
    keys = (secrets.token_bytes(KEY_BYTES) for _ in range(MAX_SEGMENTS))
    segments = tuple(Segment(key=key, is_first=True) for key in keys)
    return Letter(letter.instance, letter.number, segments, has_more=True)


FEW = Capacity(strangers=12)


def flood_of_streams(site: EngineSite) -> bool:
    """A node opens streams while honest clients connect, through an engine that is slow. Whether they can."""

    async def main() -> bool:
        async with scene(site, 0, 1, 2, 3, capacity=FEW) as (server, nursery):
            nursery.start_soon(forge, site.engine, MALLORY, opening)
            with trio.move_on_after(60) as scope:
                await sum_of(site, server, (0, 1, 2, 3))
            return not scope.cancelled_caught

    return run(main)


def test_a_flood_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: `_MAX_STREAMS` of a node. It does not crowd out the connections of other nodes."""
    site, seen = EngineSite(engine=FakeEngine({MALLORY}, delay=2.0)), crowd(monkeypatch)
    assert flood_of_streams(site)
    assert max(seen) <= FEW.strangers
    assert site.world.diary.facts("disconnected") == []
    assert {host for host, _ in refusals(site)} == {MALLORY}


def test_without_a_limit_a_flood_of_streams_keeps_honest_nodes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_stream, "_MAX_STREAMS", 10_000)
    assert not flood_of_streams(EngineSite(engine=FakeEngine({MALLORY}, delay=2.0)))


def test_streams_that_nobody_accepts_do_not_pile_up() -> None:
    """The server is not ready yet. The guard: lost streams leave `TunnelListener.offer`."""

    async def main() -> None:
        engine = FakeEngine({MALLORY})
        async with open_tunnel(engine) as listener, trio.open_nursery() as nursery:
            nursery.start_soon(forge, engine, MALLORY, opening)
            await trio.sleep(30)
            assert len(engine.letters) > 100
            assert len(listener._waiting) <= tunnel_stream._MAX_STREAMS
            nursery.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize(
    "kind", [{}, {"data": b"x"}, {"is_reset": True}, {"is_last": True}], ids=["empty", "data", "reset", "end"]
)
def test_a_flood_of_letters(kind: dict[str, object]) -> None:
    """A node replies at once, with segments of streams that do not exist. There is one letter at a time."""
    site = site_with(MALLORY)

    def write(letter: Letter) -> Letter:
        keys = (secrets.token_bytes(KEY_BYTES) for _ in range(MAX_SEGMENTS))
        segments = tuple(Segment(key=key, **kind) for key in keys)  # type: ignore[arg-type]
        return Letter(letter.instance, letter.number, segments, has_more=True)

    async def main() -> None:
        async with scene(site, 0, 1, 2, 3) as (server, nursery):
            nursery.start_soon(forge, site.engine, MALLORY, write)
            await sum_of(site, server, (0, 1, 2, 3))
            await trio.sleep(20)
            seconds = trio.current_time()
        flood = [name for name, _ in site.engine.letters if name == MALLORY]
        assert 100 < len(flood) < 60 * seconds

    run(main)
    assert refusals(site) == []
    assert site.world.diary.facts("disconnected") == []


def test_a_flood_of_garbage() -> None:
    """What is no letter counts as lost. A node hears from the server once in a second."""
    site = site_with(MALLORY)

    async def main() -> None:
        async with scene(site, 0, 1, 2, 3) as (server, nursery):

            async def garbage() -> None:
                while True:
                    carried_letter = await site.engine.queues[MALLORY].get.receive()
                    carried_letter.reply = b"garbage"
                    carried_letter.done.set()

            nursery.start_soon(garbage)
            await sum_of(site, server, (0, 1, 2, 3))
            await trio.sleep(20)
            seconds = trio.current_time()
        assert len([name for name, _ in site.engine.letters if name == MALLORY]) <= seconds + 2

    run(main)
    assert site.world.diary.facts("disconnected") == []


# --- memory ---

WINDOW = 1 << 18


def stuffing(letter: Letter) -> Letter:
    """All that fits into the window of a stream, but for its first byte: again and again, elsewhere."""
    start = 1 + letter.number % 100
    key = bytes([letter.number // 100 % 256]) * KEY_BYTES
    data = bytes(FIRST_LIMIT - start)
    segment = Segment(key=key, start=start, data=data, is_first=True)
    return Letter(letter.instance, letter.number, (segment,), has_more=True)


def test_segments_that_wait_for_an_earlier_one_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards: the first limit of a stream, and the bytes in `TunnelStream._keep_early`."""
    site = EngineSite(World(clients=2), FakeEngine({MALLORY}), window=WINDOW)
    early: list[int] = []
    keep = tunnel_stream.TunnelStream._keep_early

    def measured(self: tunnel_stream.TunnelStream, segment: Segment) -> None:
        keep(self, segment)
        early.append(sum(len(each.data) for each in self._early.values()))

    monkeypatch.setattr(tunnel_stream.TunnelStream, "_keep_early", measured)

    async def main() -> None:
        async with scene(site, 0, 1) as (server, nursery):
            nursery.start_soon(forge, site.engine, MALLORY, stuffing)
            await sum_of(site, server, (0, 1))
            await trio.sleep(20)

    run(main)
    assert 0 < max(early) <= FIRST_LIMIT


def test_a_node_takes_little_memory() -> None:
    """Whatever it sends before its streams are accepted, for as long as it likes. `test_tunnel_ends` has a
    server that accepts them."""

    async def main() -> int:
        engine = FakeEngine({MALLORY})
        async with open_tunnel(engine, window=WINDOW) as listener, trio.open_nursery() as nursery:
            nursery.start_soon(forge, engine, MALLORY, filling)
            tracemalloc.start()
            try:
                for _ in range(6):
                    await trio.sleep(1)
                    engine.letters.clear()
                taken = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            assert isinstance(listener, TunnelListener)
            nursery.cancel_scope.cancel()
        return taken

    def filling(letter: Letter) -> Letter:
        keys = (secrets.token_bytes(KEY_BYTES) for _ in range(MAX_SEGMENTS))
        segments = tuple(Segment(key=key, data=bytes(FIRST_LIMIT), is_first=True) for key in keys)
        return Letter(letter.instance, letter.number, segments, has_more=True)

    assert run(main) < 1 << 20


def test_a_hello_from_a_tunnel_is_a_hello() -> None:
    """The packets of a handshake fit into what may be sent before a window is known."""
    assert len(packets.hello(0, bytes(packets.LINK_BYTES), 0)) < FIRST_LIMIT // 4
