"""A server and its clients take up new keys while they run, and nobody else is disturbed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from secagg.client_memory import VolatileMemory
from secagg.errors import SERVER, CertificateError, LedgerError, ParameterError
from secagg.hand_over import HandOver
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.net.certificates import make_certificate
from secagg.net.client_keys import certificate_notice
from secagg.net.connection import StreamEnded
from secagg.net.event_log import EventLog
from secagg.net.events import RegistryAdopted
from secagg.net.notices import Notice, Topic
from secagg.net.settings import Patience
from secagg.net.tls import ClientTls, server_context
from secagg.trust_levels import Trust
from tests.secagg.net.rig import SEED, Diary, Network, World, on_network

AUTHORITY, NEW_KEY = seeded_identity(SEED, 200), seeded_identity(SEED, 201)
NOW = int(time.time())
HOST, NEXT_HOST = seeded_identity(SEED, 100), seeded_identity(SEED, 101)


def pem(identity: Identity, days: int = 10) -> bytes:
    return make_certificate(identity, now=NOW, days=days)


class Trusting(World):
    """A world with an authority, whose public key all clients have."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"trust": Trust.MALICIOUS, **settings})
        self.own = {member: seeded_identity(SEED, member) for member in range(self.clients)}

    def client(self, member: int, **changes: Any) -> Any:
        return super().client(member, **{"authority": AUTHORITY.public, **changes})

    def next_registry(
        self, members: dict[int, bytes] | None = None, *, version: int = 1, expires: int = 0
    ) -> Notice:
        """Make it the one of the server, and return what clients are told."""
        keys = {k: identity.public for k, identity in self.own.items()} if members is None else members
        self.registry = Registry(version, keys, expires)
        return Notice(Topic.REGISTRY, self.registry.sign(AUTHORITY))

    # --- with certificates ---

    def host(self, identity: Identity = HOST, previous: Any = (), days: int = 10) -> Any:
        certificates = [pem(each) for each in self.own.values()]
        return server_context(identity, pem(identity, days), certificates, previous=previous)

    def tls(self, member: int, host: Identity = HOST) -> ClientTls:
        return ClientTls(self.own[member], pem(self.own[member]), pem(host))


def play(world: Trusting, main: Callable[[Trusting, Network], Awaitable[None]]) -> Trusting:
    on_network(lambda network: main(world, network))
    return world


async def sum_of(world: World, server: Any, *members: int) -> None:
    async with world.session(server, expected=len(members), members=members) as session:
        world.check(await world.ask(session), session, *members)


def test_a_new_registry_reaches_all_clients_and_the_next_session_uses_it() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(4)
            async with world.session(server) as session:
                server.renew(members=world.registry.members, notices=[world.next_registry()])
                world.check(await world.ask(session), session, 0, 1, 2, 3)  # with its own registry
            await sum_of(world, server, 0, 1, 2, 3)

    world = play(Trusting(), main)
    assert all(diary.facts("registry adopted")[0]["version"] == 1 for diary in world.diaries.values())
    assert all(not diary.facts("disconnected") for diary in world.diaries.values())
    assert all(memory.registry == (1, world.registry.digest) for memory in world.memories.values())


def test_who_connects_after_a_renewal_takes_part_in_the_session_that_began_before() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1), trio.open_nursery() as nursery:

            async def come_late() -> None:
                await trio.sleep(1)
                old = world.registry
                server.renew(members=old.members, notices=[world.next_registry()])
                for member in (2, 3):
                    nursery.start_soon(lambda late: world.answering(late, registry=old), member)

            await server.wait_for_clients(2)
            nursery.start_soon(come_late)
            async with world.session(server, expected=4) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            await sum_of(world, server, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(Trusting(), main)
    assert all(diary.facts("registry adopted") for diary in world.diaries.values())
    assert not any(diary.facts("refused") for diary in world.diaries.values())


def test_a_client_that_waits_for_its_first_session_uses_the_new_registry() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(4)
            server.renew(members=world.registry.members, notices=[world.next_registry()])
            await sum_of(world, server, 0, 1, 2, 3)

    world = play(Trusting(), main)
    assert not any(diary.facts("refused") for diary in world.diaries.values())


@pytest.mark.parametrize("in_session", [False, True])
def test_whose_key_has_changed_is_told_and_comes_back_with_the_new_one(in_session: bool) -> None:
    async def main(world: Trusting, network: Network) -> None:
        host = {"context": world.host(), "insecure_plain_tcp": False}
        async with world.server(**host) as server, trio.open_nursery() as nursery:
            for member in (0, 1, 2):
                nursery.start_soon(world_answering, world, member)
            async with world.client(3, **world_tls(world, 3)) as client:
                nursery.start_soon(answer_all, world, client, 3)
                await server.wait_for_clients(4)
                if in_session:
                    async with world.session(server) as session:
                        await rotate(world, server, client)
                        assert server.connected == (0, 1, 2, 3)
                        world.check(await world.ask(session), session, 0, 1, 2, 3)
                else:
                    await rotate(world, server, client)
                assert server.connected == (0, 1, 2)
                await server.wait_for_clients(4)
                await sum_of(world, server, 0, 1, 2, 3)
                nursery.cancel_scope.cancel()

    world = play(Trusting(), main)
    assert world.diaries[3].facts("registry adopted")
    assert world.diaries[3].facts("dismissed") == [{"reason": "unknown"}]
    assert all(not world.diaries[k].facts("disconnected") for k in (0, 1, 2))


async def rotate(world: Trusting, server: Any, client: Any) -> None:
    """Give client 3 another key."""
    await client.offer_key(NEW_KEY, pem(NEW_KEY))
    world.own[3] = NEW_KEY
    notice = world.next_registry()
    server.renew(members=world.registry.members, context=world.host(), notices=[notice])


async def world_answering(world: Trusting, member: int) -> None:
    await world.answering(member, **world_tls(world, member))


def test_a_new_process_of_the_client_is_not_disconnected_when_the_session_is_over() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.all_clients() as scopes:
            await server.wait_for_clients(4)
            async with world.session(server):
                world.own[3] = NEW_KEY
                world.next_registry()
                server.renew(members=world.registry.members)
                scopes[3].cancel()
                again = await network.dial(3, link=b"M" * 16)
                await again.welcomed()
            assert server.connected == (0, 1, 2, 3)

    play(Trusting(), main)


def world_tls(world: Trusting, member: int) -> dict[str, Any]:
    return {"context": world.tls(member), "insecure_plain_tcp": False}


async def answer_all(world: World, client: Any, member: int) -> None:
    async for asked in client:
        await client.answer(asked, world.values(member, asked))


def test_a_client_that_missed_the_registry_finds_the_server_with_its_new_key() -> None:
    async def main(world: Trusting, network: Network) -> None:
        world.own[3], old = NEW_KEY, world.own[3]
        notice = world.next_registry()
        mine = {"context": ClientTls(old, pem(old), pem(HOST)), "insecure_plain_tcp": False, "identity": old}
        before = Registry(0, {**world.registry.members, 3: old.public})
        async with world.server(context=world.host(), insecure_plain_tcp=False) as server:
            server.post(notice)
            async with world.client(3, **mine, registry=before) as client:
                await client.offer_key(NEW_KEY, pem(NEW_KEY))
                await server.wait_for_clients(1)
                await world.diaries[3].has("registry adopted")

    world = play(Trusting(), main)
    assert world.diaries[3].facts("unreachable")


def test_a_removed_client_leaves_the_session_and_stays_away() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(4)
            async with world.session(server) as session:
                notice = world.next_registry({k: world.own[k].public for k in (0, 1, 2)})
                server.renew(members=world.registry.members, notices=[notice])
                assert session.members == (0, 1, 2)
                world.check(await world.ask(session), session, 0, 1, 2)
            await sum_of(world, server, 0, 1, 2)
            await world.diaries[3].has("dismissed")
            await world.diary.has("refused")
            assert 3 not in server.connected

    world = play(Trusting(), main)
    assert world.diary.members("left") == [3]
    assert "not listed" in str(world.diaries[3].facts("registry adopted")[0]["own_key"])


@pytest.mark.parametrize("frames", [[b"\xc1\xff"], [b"stray"] * 9], ids=["notice", "stray frames"])
@pytest.mark.parametrize("in_session", [False, True])
def test_what_a_revoked_key_does_is_not_held_against_the_new_one(
    in_session: bool, frames: list[bytes]
) -> None:
    """A thief of the old key breaks the protocol after the key has changed, to have its owner excluded."""

    async def main(world: Trusting, network: Network) -> None:
        members = world.registry.members
        async with world.server() as server, world.all_clients(0, 1, 2):
            server.renew(members={**members, 3: NEW_KEY.public})
            thief = await network.dial(3)
            await thief.welcomed()
            await server.wait_for_clients(4)

            async def be_revoked() -> None:
                server.renew(members=members, notices=[world.next_registry(dict(members))])
                with suppress(StreamEnded):
                    for frame in frames:
                        await thief.send_frame(frame, seen=0)

            if in_session:
                async with world.session(server, expected=3) as session:
                    await be_revoked()
                    world.check(await world.ask(session), session, 0, 1, 2)
            else:
                await be_revoked()
            async with world.all_clients(3):
                await server.wait_for_clients(4)
                await sum_of(world, server, 0, 1, 2, 3)

    play(Trusting(), main)


def test_what_a_stolen_key_did_before_it_was_revoked_excludes_nobody_later() -> None:
    async def main(world: Trusting, network: Network) -> None:
        members, patience = world.registry.members, Patience(grace=3600)
        async with world.server(patience=patience) as server, world.all_clients(0, 1, 2):
            server.renew(members={**members, 3: NEW_KEY.public})
            thief = await network.dial(3)
            await thief.welcomed()
            await thief.send_frame(b"\xc1\xff", seen=0)
            await world.diary.has("excluded")
            server.renew(members=members, notices=[world.next_registry(dict(members))])
            async with world.all_clients(3):
                await server.wait_for_clients(4)
                await sum_of(world, server, 0, 1, 2, 3)

    play(Trusting(), main)


def test_a_revoked_key_that_is_excluded_in_its_last_session_excludes_nobody_else() -> None:
    """The key changes while its thief is in a session, which would have gone on with it."""

    async def main(world: Trusting, network: Network) -> None:
        members = world.registry.members
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            server.renew(members={**members, 3: NEW_KEY.public})
            thief = await network.dial(3)
            await thief.welcomed()
            await server.wait_for_clients(4)

            async def be_revoked() -> None:
                await thief.frame()
                server.renew(members=members, notices=[world.next_registry(dict(members))])
                await thief.send(b"\xff" * 5)

            nursery.start_soon(be_revoked)
            async with world.session(server, expected=4):
                await world.diary.has("excluded")
                async with world.all_clients(3):
                    await server.wait_for_clients(4)

    world = play(Trusting(), main)
    assert world.diary.members("excluded") == [3]


def test_a_client_that_does_not_read_is_disconnected_soon() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server:
            mute = await network.dial(3)
            await mute.welcomed()
            server.renew(members={0: bytes(32)}, notices=[world.next_registry()])
            assert (await mute.dismissal()).name == "UNKNOWN"

    play(Trusting(), main)


def test_a_running_server_does_not_begin_to_use_tls() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server:
            with pytest.raises(ParameterError):
                server.renew(members={}, context=world.host())

    play(Trusting(), main)


@pytest.mark.parametrize("trust", list(Trust))
def test_an_expired_registry_is_refused_and_its_successor_brings_the_client_back(trust: Trust) -> None:
    async def main(world: Trusting, network: Network) -> None:
        world.next_registry(expires=NOW - 100)
        stale = {"registry": world.registry}
        async with world.server() as server, world.all_clients(**stale):
            await server.wait_for_clients(4)
            machine = world.machine(**({} if trust is Trust.CURIOUS else {"now": NOW - 200}))
            with pytest.raises(Exception, match="only 0"):
                async with world.session(server, machine=machine):
                    pass
            server.renew(members=world.registry.members, notices=[world.next_registry(version=2)])
            await sum_of(world, server, 0, 1, 2, 3)

    world = play(Trusting(trust=trust), main)
    assert {line["error"] for d in world.diaries.values() for line in d.facts("refused")} == {
        "ExpiredRegistry"
    }


def test_a_registry_file_of_the_client_itself_counts_too() -> None:
    async def main(world: Trusting, network: Network) -> None:
        async with world.client(3) as client:
            await client.offer_registry(world.next_registry().body)
            await client.offer_registry(Registry(0, world.registry.members).sign(AUTHORITY))

    world = play(Trusting(), main)
    assert world.memories[3].registry[0] == 1
    assert [line["error"] for line in world.diaries[3].facts("keys refused")] == ["WrongRegistry"]


def test_the_callback_can_store_a_registry_before_it_is_remembered() -> None:
    async def main(world: Trusting, network: Network) -> None:
        def store(event: object) -> None:
            if isinstance(event, RegistryAdopted):
                assert world.memories[3].registry[0] == 0

        async with world.client(3, on_event=store) as client:
            await client.offer_registry(world.next_registry().body)
        assert world.memories[3].registry[0] == 1

    play(Trusting(), main)


def test_a_memory_that_cannot_remember_a_registry_stops_the_client() -> None:
    class Full(VolatileMemory):
        def remember_registry(self, version: int, digest: bytes) -> None:
            if version:
                raise LedgerError("the disk is full")

    async def main(world: Trusting, network: Network) -> None:
        async with world.client(3, memory=Full()) as client:
            await client.offer_registry(world.next_registry().body)
            with pytest.raises(LedgerError):
                await client.__anext__()

    play(Trusting(), main)


# --- the server's certificate --------------------------------------------------------------------------


def test_a_server_with_a_new_certificate_serves_both_kinds_of_clients() -> None:
    statement = HandOver.sign(SERVER, HOST, NEXT_HOST.public)

    async def main(world: Trusting, network: Network) -> None:
        plain = {"insecure_plain_tcp": False}
        first = world.client(0, **world_tls(world, 0))
        async with world.server(context=world.host(), **plain) as server, first:
            await server.wait_for_clients(1)
            both = world.host(NEXT_HOST, [(HOST, pem(HOST))])
            told = certificate_notice(pem(NEXT_HOST), statement)
            server.renew(members=world.registry.members, context=both, notices=[told])
            await world.diaries[0].has("server certificate adopted")
            assert not world.diaries[0].facts("disconnected")
            async with world.client(1, **world_tls(world, 1)):  # it still pins the old one
                await world.diaries[1].has("server certificate adopted")
            async with world.client(2, context=world.tls(2, NEXT_HOST), **plain):
                await world.diaries[2].has("connected")
            server.renew(members=world.registry.members, context=world.host(NEXT_HOST))
            network.lines[0].cut()
            await world.diaries[0].has("reconnected")

    world = play(Trusting(), main)
    assert not world.diaries[2].facts("server certificate adopted")


def test_the_owner_of_a_client_can_pin_another_certificate() -> None:
    async def main(world: Trusting, network: Network) -> None:
        host = {"context": world.host(NEXT_HOST), "insecure_plain_tcp": False}
        async with world.server(**host), world.client(3, **world_tls(world, 3)) as client:
            await world.diaries[3].has("unreachable")
            with pytest.raises(CertificateError):
                client.pin_server(b"garbage")
            client.pin_server(pem(NEXT_HOST))
            await world.diaries[3].has("connected")

    play(Trusting(), main)


def test_events_about_keys_reach_the_log() -> None:
    diary = Diary()
    log = EventLog(diary)

    async def main(world: Trusting, network: Network) -> None:
        async with world.server() as server, world.client(3, on_event=log):
            server.post(Notice(Topic.REGISTRY, b"garbage"))
            await diary.has("keys refused")
            assert server.connected == (3,)

    play(Trusting(), main)
