"""A tunnel: sums through an engine that is slow, that loses letters, and whose processes come and go."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest
import trio

from secagg.net.connection import Connection, ack_delay_of
from secagg.net.notices import Notice, Topic
from secagg.net.server import Server
from secagg.net.tunnel import TunnelListener
from secagg.net.tunnel_letters import FAREWELL, KEY_BYTES
from secagg.net.tunnel_stream import FIRST_LIMIT, TunnelStream
from secagg.trust_levels import Trust
from tests.engines.fake_engine import FakeEngine
from tests.secagg.net.rig import KIND, Line, World, run
from tests.secagg.net.tunnel_rig import EngineSite, name_of

KEY = b"k" * KEY_BYTES


async def sums(site: EngineSite, server: Any, count: int = 2, **changes: Any) -> None:
    """A session whose sums are those of all clients, each once."""
    world = site.world
    await server.wait_for_clients(world.clients)
    async with world.session(server, **changes) as session:
        for _ in range(count):
            world.check(await world.ask(session), session, *range(world.clients))


def run_sums(site: EngineSite, count: int = 2) -> None:
    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await sums(site, server, count)

    run(main)


# --- how many exchanges ---


@pytest.mark.parametrize(("trust", "stages"), [(Trust.CURIOUS, 2), (Trust.MALICIOUS, 3)])
def test_each_stage_takes_one_exchange(trust: Trust, stages: int) -> None:
    """The delivery of shares, which needs no reply, travels with the first question."""
    site = EngineSite(World(trust=trust, sums=3))
    counts: list[int] = []

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(4)
            async with site.world.session(server) as session:
                for _ in range(3):
                    counts.append(len(site.letters(0)))
                    await site.world.ask(session)
                counts.append(len(site.letters(0)))

    run(main)
    hello, set_up = 2, 2
    first = hello + set_up
    assert counts == [first, first + stages, first + 2 * stages, first + 3 * stages]
    assert all(each.has_stream for each in site.letters(0)[1 : counts[-1]])
    assert all(each.has_stream for each in site.replies(0)[: counts[-1]])
    delivery, other = site.letters(0)[first].segments[0], site.letters(0)[first + stages].segments[0]
    assert len(delivery.data) > 2 * len(other.data)


def test_frames_larger_than_a_window_take_several_letters() -> None:
    world = World(clients=2, size=30_000)
    site = EngineSite(world, window=FIRST_LIMIT)
    question = bytes(90_000)

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(2)
            async with world.session(server) as session:
                world.round = 1
                total = await session.ask(KIND, question, round_number=1)
                world.check(total, session, 0, 1)

    run(main)
    for letters, least in ((site.letters(0), 90_000), (site.replies(0), 120_000)):
        sizes = [sum(len(each.data) for each in letter.segments) for letter in letters]
        assert max(sizes) <= FIRST_LIMIT
        assert sum(sizes) > least


def test_a_slow_engine() -> None:
    site = EngineSite(engine=FakeEngine(set(), delay=4.0))
    run_sums(site)
    assert site.world.diary.facts("disconnected") == []


def test_letters_are_few_while_nothing_happens() -> None:
    """A node always has a letter to reply to, or gets one soon. Both sides show that they are alive."""
    site = EngineSite()

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(4)
            await trio.sleep(3600)
            assert server.connected == (0, 1, 2, 3)
            await sums(site, server)

    run(main)
    assert site.world.diary.facts("disconnected") == []
    assert len(site.letters(0)) < 3600 / 8


# --- acknowledgements ---


def test_an_acknowledgement_waits_for_a_frame() -> None:
    """Alone, it would take an exchange of its own."""
    site = EngineSite(World(clients=2))
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(2)
            await trio.sleep(10)
            before = trio.current_time()
            server.post(Notice(Topic.REGISTRY, b"none"))
            await server.flush()
            times.append(trio.current_time() - before)

    run(main)
    assert TunnelStream.ack_delay <= times[0] < TunnelStream.ack_delay + 1


def test_acknowledgements_wait_on_tunnels_only() -> None:
    async def main() -> None:
        assert ack_delay_of(Line().near) == 0
        assert Connection(Line().near, peer=1, silence=1).ack_delay == 0
        assert ack_delay_of(TunnelStream(KEY, peer=1, on_output=lambda: None)) > 0

    run(main)


# --- an engine that loses, repeats and reorders ---


@pytest.mark.parametrize("way", ["lose", "drop"])
@pytest.mark.parametrize("number", range(1, 25))
def test_a_lost_letter_costs_no_frame(way: str, number: int) -> None:
    """The streams of its node break at once, and the link goes on over a new connection."""
    site = EngineSite(World(clients=3))
    getattr(site.engine, way).add(number)
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await sums(site, server)
            times.append(trio.current_time())

    run(main)
    assert len(site.engine.letters) > number
    assert times[0] < 5
    assert site.world.diary.facts("left") == []


class RepeatingEngine(FakeEngine):
    """Hands every letter to its node twice, and takes the last of the two replies, or the first."""

    last = True

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        replies: list[bytes | None] = []
        taken = trio.Event()

        async def once() -> None:
            replies.append(await super(RepeatingEngine, self).exchange(node, letter))
            if len(replies) > self.last:
                taken.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(once)
            nursery.start_soon(once)
            await taken.wait()
            nursery.cancel_scope.cancel()
        return replies[-1]


@pytest.mark.parametrize("last", [True, False])
def test_letters_that_arrive_twice(last: bool) -> None:
    """Both get the same reply: the engine carries only one of them. Without that, it loses a part."""
    engine = RepeatingEngine(set())
    engine.last = last
    site = EngineSite(engine=engine)
    run_sums(site, 3)
    assert site.world.diary.facts("disconnected") == []


class UnevenEngine(FakeEngine):
    """Takes another time for every letter and every reply."""

    def __init__(self) -> None:
        super().__init__(set())
        self.random = random.Random(1)

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        await trio.sleep(self.random.uniform(0, 3))
        reply = await super().exchange(node, letter)
        await trio.sleep(self.random.uniform(0, 3))
        return reply


def test_letters_that_pass_each_other() -> None:
    """Frames fill several letters that are on their way together."""
    world = World(clients=2, size=30_000)
    site = EngineSite(world, UnevenEngine(), window=FIRST_LIMIT)
    run_sums(site)
    assert world.diary.facts("disconnected") == []


class MixedEngine(FakeEngine):
    """Returns one reply in place of another."""

    kept: bytes | None = None
    at = 8

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        reply = await super().exchange(node, letter)
        if len(self.letters) == self.at:
            return self.kept
        if node == name_of(0):
            self.kept = reply
        return reply


@pytest.mark.parametrize("at", [6, 8, 9, 10, 12])
def test_a_reply_in_the_place_of_another_is_noticed_at_once(at: int) -> None:
    engine = MixedEngine(set())
    engine.at = at
    site = EngineSite(engine=engine)
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await sums(site, server)
            times.append(trio.current_time())

    run(main)
    assert times[0] < 5


class ChaoticEngine(FakeEngine):
    """Loses, repeats and delays what it likes, and fails now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__(set(), patience=30.0)
        self.random = random.Random(seed)

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        await self._dawdle()
        fate = self.random.choice(["lost", "no reply", "fails", *["twice"] * 6, *["arrives"] * 50])
        if fate == "lost":
            return None
        if fate == "fails":
            raise OSError("no engine")
        if fate == "twice":
            return await self._twice(node, letter)
        reply = await super().exchange(node, letter)
        await self._dawdle()
        return None if fate == "no reply" else reply

    async def _twice(self, node: str, letter: bytes) -> bytes | None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().exchange, node, letter)
            await self._dawdle()
            reply = await super().exchange(node, letter)
            nursery.cancel_scope.cancel()
        return reply

    async def _dawdle(self) -> None:
        await trio.sleep(self.random.choice([0, 0.01, 0.5, 2]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [4, 20_000])
def test_chaos(seed: int, size: int) -> None:
    """All sums are exact. Whatever happened was noticed when it happened: no connection fell silent."""
    site = EngineSite(World(clients=3, size=size), ChaoticEngine(seed), window=FIRST_LIMIT)
    run_sums(site, 3)
    assert len(site.engine.letters) > 40
    for diary in (site.world.diary, *site.world.diaries.values()):
        assert "no sign of life" not in diary.reasons("disconnected")
        assert not diary.facts("left")


class FailingEngine(FakeEngine):
    """Raises what no carrier should."""

    failing = False

    async def nodes(self) -> Collection[str]:
        if self.failing:
            raise OSError("no engine")
        return await super().nodes()

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        if self.failing and node == name_of(1):
            self.letters.append((node, letter))
            raise OSError("no engine")
        return await super().exchange(node, letter)


def test_an_exchange_that_raises_is_a_letter_that_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The other nodes are not disturbed, and nobody is hasty."""
    engine = FailingEngine(set())
    site = EngineSite(engine=engine)

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(4)
            engine.failing, before = True, len(site.letters(1))
            server.post(Notice(Topic.REGISTRY, b"none"))
            await trio.sleep(20)
            assert server.connected == (0, 2, 3)
            assert len(site.letters(1)) < before + 30
            engine.failing = False
            await sums(site, server)

    run(main)
    assert {1} == set(site.world.diary.members("disconnected"))
    assert "an engine failed to list its nodes" in caplog.text
    assert "an engine failed to carry a letter to 'member-1'" in caplog.text


# --- processes that come and go ---


def test_another_process_of_the_server() -> None:
    """Its letters have another instance. The clients leave the session at once and join the next."""
    site = EngineSite(engine=FakeEngine(set(), patience=1000.0))
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes():
            scope = trio.CancelScope()
            with scope:
                async with site.server() as server:
                    await server.wait_for_clients(4)
                    async with site.world.session(server) as session:
                        await site.world.ask(session)
                        with trio.CancelScope(shield=True):
                            await trio.sleep(5)
                        scope.cancel()
            before = trio.current_time()
            async with site.server() as server:
                await sums(site, server)
                times.append(trio.current_time() - before)

    run(main)
    assert len({each.instance for each in site.letters(0)}) == 2
    assert times[0] < 5


async def say_nothing(_end: object) -> None:
    pass


def test_a_server_that_is_killed() -> None:
    """No farewell. The letters that it has left with nodes are answered to nobody."""
    site = EngineSite(engine=FakeEngine(set(), patience=1000.0))
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes():
            with pytest.MonkeyPatch.context() as patch, trio.CancelScope() as scope:
                async with site.server() as server, site.world.session(server) as session:
                    await site.world.ask(session)
                    patch.setattr(TunnelListener, "flush", say_nothing)
                    patch.setattr(Server, "close", say_nothing)
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
            await trio.sleep(40)  # clients try in vain
            before = trio.current_time()
            async with site.server() as server:
                await sums(site, server)
                times.append(trio.current_time() - before)

    run(main)
    assert times[0] < 5


def test_another_process_of_a_node() -> None:
    """It knows no stream of the first one, which has left without a word."""
    site = EngineSite(engine=FakeEngine(set(), patience=50.0))

    async def main() -> None:
        async with site.all_nodes() as scopes, site.server() as server:
            await sums(site, server, 1)
            site.nodes[0].kill()
            scopes[0].cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(site.answering, 0)
                await trio.sleep(5)
                await sums(site, server)
                await trio.sleep(100)  # the letters that the first process had are lost by now
                await sums(site, server)
                nursery.cancel_scope.cancel()

    run(main)


def test_a_node_that_the_engine_does_not_list_for_a_while() -> None:
    """Its client goes on where it was, as soon as the node is back."""
    site = EngineSite()

    async def main() -> None:
        async with site.all_nodes(), site.server() as server:
            await server.wait_for_clients(4)
            async with site.world.session(server) as session:
                await site.world.ask(session)
                site.engine.names.remove(name_of(0))
                await trio.sleep(5)
                connected = [server.connected]
                site.engine.names.add(name_of(0))
                await trio.sleep(3)
                assert [*connected, server.connected] == [(1, 2, 3), (0, 1, 2, 3)]
                site.world.check(await site.world.ask(session), session, 0, 1, 2, 3)

    run(main)


def test_a_node_before_its_server() -> None:
    """It waits for days, and does not complain."""
    site = EngineSite()

    async def main() -> None:
        async with site.all_nodes():
            await trio.sleep(15_000)
            assert not site.world.diaries[0]
            async with site.server() as server:
                await sums(site, server)

    run(main)


# --- farewells ---


class ThreadedEngine(FakeEngine):
    """Begins as most calls of trio do: not at all if its task is cancelled."""

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return await super().exchange(node, letter)


def test_clients_hear_that_the_server_leaves() -> None:
    """The guard: `_Node.flush` waits for the reply. Without it, the last letter may not begin its way."""
    site = EngineSite(engine=ThreadedEngine(set(), delay=1.0))
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes():
            async with site.server() as server:
                await server.wait_for_clients(4)
                await trio.sleep(3)
                times.append(trio.current_time())
            times.append(trio.current_time())
            await trio.sleep(3)

    run(main)
    assert [diary.reasons("dismissed") for diary in site.world.diaries.values()] == [["closing"]] * 4
    assert times[1] - times[0] < FAREWELL


def test_a_farewell_does_not_wait_for_the_dead() -> None:
    site = EngineSite(World(clients=2), FakeEngine({"dead"}))
    times: list[float] = []

    async def main() -> None:
        async with site.all_nodes() as scopes:
            async with site.server() as server:
                await server.wait_for_clients(2)
                site.nodes[0].kill()
                scopes[0].cancel()
                times.append(trio.current_time())
            times.append(trio.current_time())

    run(main)
    most = site.patience.farewell + FAREWELL + 2
    assert times[1] - times[0] < most


def test_the_server_hears_that_a_client_leaves() -> None:
    site = EngineSite(World(clients=2), FakeEngine(set(), delay=1.0))

    async def main() -> None:
        async with site.all_nodes() as scopes, site.server() as server:
            await server.wait_for_clients(2)
            scopes[0].cancel()
            await trio.sleep(8)
            assert server.connected == (1,)

    run(main)
