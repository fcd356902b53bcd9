"""An engine, or its operator, that reads, replays, swaps and forges the letters that it carries.

It can always stop a sum. It must not learn more than the sums, nor bring a client to say anything twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import trio

from secagg.errors import SERVER
from secagg.insecure_seeds import seeded_identity
from secagg.net import handshake, open_client_and_server
from secagg.net.tls import server_context
from secagg.net.tunnel_dialer import HOLD, TunnelDialer, carried
from secagg.net.tunnel_letters import Letter, parse_letter
from secagg.trust_levels import Trust
from tests.attacks.engines import refusals, scene, sum_of
from tests.attacks.guards import allow
from tests.engines.fake_engine import FakeEngine
from tests.secagg.net.rig import SEED, World, run
from tests.secagg.net.tls_contexts import certificate, context_of
from tests.secagg.net.tunnel_rig import EngineSite, name_of

OTHER = 50  # the operator's own key, with which it plays the server


# --- what it can read ---


def known_bytes(site: EngineSite) -> list[bytes]:
    """What the two ends have said: the name of their session, and vectors as a plain sum would have them."""
    session = site.world.diary.facts("session")[0]["id"]
    assert isinstance(session, str)
    vectors = [site.world.vector(member, round_number) for member in range(4) for round_number in (1, 2)]
    return [
        bytes.fromhex(session),
        *(vector.astype(kind).tobytes() for vector in vectors for kind in ("<u4", ">u4")),
    ]


def read(site: EngineSite) -> bytes:
    return b"".join(data for _, data in [*site.engine.letters, *site.engine.replies])


def test_an_engine_reads_no_message() -> None:
    """The guard: `check_secure`, which wants TLS between the two ends."""
    site = EngineSite()

    async def main() -> None:
        async with scene(site) as (server, _):
            await sum_of(site, server, range(4))

    run(main)
    assert len(read(site)) > 10_000
    assert not any(secret in read(site) for secret in known_bytes(site))


def test_without_tls_an_engine_reads_all_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_client_and_server, "check_secure", allow)
    site = EngineSite()
    plain = {"context": None, "insecure_plain_tcp": True}

    async def main() -> None:
        async with site.all_nodes(**plain), site.server(**plain) as server:
            await sum_of(site, server, range(4))

    run(main)
    assert known_bytes(site)[0] in read(site)


def test_an_engine_that_plays_the_server() -> None:
    """The guard: clients know the certificate of their server. They say nothing to another one."""
    site = EngineSite()
    own = seeded_identity(SEED, OTHER)
    clients = [certificate(member) for member in range(4)]

    async def main() -> None:
        async with scene(site, context=server_context(own, certificate(OTHER), clients)) as (server, _):
            with trio.move_on_after(60):
                await server.wait_for_clients(1)
            assert server.connected == ()

    run(main)
    for diary in site.world.diaries.values():
        assert "TLS: certificate verify failed" in {str(reason) for reason in diary.reasons("unreachable")}
        assert not diary.facts("connected")


# --- which node it lets be which ---


class SwappingEngine(FakeEngine):
    """Gives node 0 the letters of node 1, and vice versa."""

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        swapped = {name_of(0): name_of(1), name_of(1): name_of(0)}.get(node, node)
        return await super().exchange(swapped, letter)


def swap() -> EngineSite:
    site = EngineSite(engine=SwappingEngine(set()))

    async def main() -> None:
        async with scene(site) as (server, _):
            await server.wait_for_clients(2)
            await trio.sleep(30)
            await sum_of(site, server, server.connected)

    run(main)
    return site


def test_letters_of_one_node_as_those_of_another() -> None:
    """The guard: the id of the node in `ClientAuthenticator._identify`."""
    site = swap()
    assert set(refusals(site)) == {
        (name_of(1), "connects through the node of client 1"),
        (name_of(0), "connects through the node of client 0"),
    }
    assert set(site.world.diary.members("connected")) == {2, 3}


def test_without_the_names_of_nodes_the_keys_alone_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap is not noticed, and harms nobody: the total has each client once."""
    monkeypatch.setattr(handshake, "_member_of", lambda _stream: None)
    site = swap()
    assert refusals(site) == []
    assert set(site.world.diary.members("connected")) == {0, 1, 2, 3}


# --- replays ---


class ReplayingEngine(FakeEngine):
    """Records all replies. Later it gives the server those of one node again, in the place of new ones."""

    replays = False
    forges = False  # whether it writes the expected name and number onto them

    def __init__(self) -> None:
        super().__init__(set())
        self.recorded: dict[str, list[bytes]] = defaultdict(list)

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        if self.replays and node == name_of(0):
            await trio.sleep(1)
            return self._old(parse_letter(letter, sender=SERVER)) if self.recorded[node] else None
        reply = await super().exchange(node, letter)
        if reply is not None:
            self.recorded[node].append(reply)
        return reply

    def _old(self, asked: Letter) -> bytes:
        reply = self.recorded[name_of(0)].pop(0)
        if not self.forges:
            return reply
        old = parse_letter(reply, sender=0)
        return replace(old, instance=asked.instance, number=asked.number).encode()


def replay(forges: bool) -> EngineSite:
    engine = ReplayingEngine()
    site = EngineSite(engine=engine)

    async def main() -> None:
        async with scene(site) as (server, _):
            await sum_of(site, server, range(4))
        engine.replays, engine.forges = True, forges
        assert len(engine.recorded[name_of(0)]) > 6
        site.world.diary.clear()
        async with scene(site, 1, 2, 3) as (server, _):
            await server.wait_for_clients(3)
            await trio.sleep(60)
            assert engine.recorded[name_of(0)] == []
            await sum_of(site, server, (1, 2, 3))

    run(main)
    assert set(site.world.diary.members("connected")) == {1, 2, 3}
    return site


def test_replies_of_an_earlier_process_of_the_server() -> None:
    """The guard: a reply names the letter that it answers. No stream is opened."""
    assert refusals(replay(forges=False)) == []


def test_replies_of_an_earlier_process_that_look_new() -> None:
    """The guard: TLS. What the client said answers no greeting of this server."""
    found = refusals(replay(forges=True))
    assert found
    assert {host for host, _ in found} == {name_of(0)}


def client_states(site: EngineSite) -> list[object]:
    return [list(diary) for diary in site.world.diaries.values()]


@pytest.mark.parametrize("trust", list(Trust))
def test_letters_replayed_to_a_node(trust: Trust) -> None:
    """All that the server has ever said to a client, again, in the midst of a session. The guards: numbers of
    letters, positions of segments, and TLS above them. The client is asked nothing twice."""
    site = EngineSite(World(trust=trust))

    async def main() -> None:
        async with scene(site) as (server, _):
            await server.wait_for_clients(4)
            async with site.world.session(server) as session:
                await site.world.ask(session)
                before = client_states(site)
                await replay_to(site.nodes[0].dialer)
                assert client_states(site) == before
                site.world.check(await site.world.ask(session), session, *range(4))

    async def replay_to(dialer: TunnelDialer) -> None:
        async with trio.open_nursery() as nursery:
            for name, letter in list(site.engine.letters):
                if name == name_of(0):
                    nursery.start_soon(dialer.answer, letter)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    run(main)
    assert [facts["sum"] for facts in site.world.diaries[0].facts("asked")] == [0, 1]


@pytest.mark.parametrize("trust", list(Trust))
def test_letters_replayed_to_a_new_process(trust: Trust) -> None:
    """An engine starts the client again, and wants it to go through the same session as the first process, up
    to the question which clients have dropped. The guards: the streams of the new process have other names
    and, if the engine writes those names onto the letters, TLS. The machine stays as it was made."""
    site = EngineSite(World(trust=trust))

    async def main() -> None:
        async with scene(site) as (server, _):
            await sum_of(site, server, range(4))
        letters = [
            parse_letter(data, sender=SERVER) for name, data in site.engine.letters if name == name_of(0)
        ]
        site.world.diaries[0].clear()
        node = site.node(0)
        settings = {"context": context_of(0), "insecure_plain_tcp": False, "patience": site.patience}
        async with carried(node, farewell=1), site.world.client(0, address=node.dialer, **settings):
            await trio.sleep(1)
            for old in letters:
                await say_again(node.dialer, old)

    async def say_again(dialer: TunnelDialer, old: Letter) -> None:
        renamed = [
            replace(old, segments=tuple(replace(each, key=key) for each in old.segments))
            for key in dialer._end._streams
        ]
        for number, letter in enumerate((old, *renamed)):
            changed = replace(letter, number=1000 * old.number + number)
            with trio.move_on_after(1):
                await dialer.answer(changed.encode())

    run(main)
    diary = site.world.diaries[0]
    assert diary.facts("unreachable")
    assert not any(diary.facts(event) for event in ("connected", "session", "asked", "counted"))


@pytest.mark.parametrize("trust", list(Trust))
def test_a_client_that_is_started_again_joins_the_next_session(trust: Trust) -> None:
    """An engine kills a client in the midst of a session, starts it again, and hopes for a second answer. The
    guard: a process has nothing of the session of an earlier one (`test_rollback`)."""
    site = EngineSite(World(trust=trust))

    async def main() -> None:
        async with site.all_nodes() as scopes, site.server() as server, trio.open_nursery() as nursery:
            await server.wait_for_clients(4)
            async with site.world.session(server, machine=site.world.machine(dropout=0.25)) as session:
                await site.world.ask(session)
                site.nodes[0].kill()
                scopes[0].cancel()
                nursery.start_soon(site.answering, 0)
                await trio.sleep(30)
                assert 0 in server.connected
                site.world.diaries[0].clear()
                site.world.check(await site.world.ask(session), session, 1, 2, 3)
                assert not site.world.diaries[0]
            await sum_of(site, server, range(4))
            nursery.cancel_scope.cancel()

    run(main)
    assert "its process was restarted" in site.world.diary.reasons("left")


def test_an_engine_that_stops_a_sum_is_noticed() -> None:
    """It cannot do more. Nobody waits for longer than the timeouts say."""
    site = EngineSite(engine=FakeEngine(set(), patience=HOLD))

    async def main() -> None:
        async with scene(site) as (server, _):
            await server.wait_for_clients(4)
            site.engine.drop = set(range(10_000))
            await trio.sleep(2 * site.patience.silence + site.patience.grace)
            assert server.connected == ()
            site.engine.drop = set()
            await sum_of(site, server, range(4))

    run(main)
