"""The same over real sockets, threads and TLS, on this machine."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import pytest
import trio

from secagg.net.event_log import EventLog
from secagg.net.nursery_and_threads import in_thread
from secagg.net.open_client_and_server import open_server
from secagg.net.settings import Address
from secagg.trust_levels import Trust
from tests.secagg.net.rig import Diary, World, run_live
from tests.secagg.net.tls_contexts import PATIENCE, context_of, host_context


def settings_of(member: int) -> dict[str, Any]:
    return {
        "context": context_of(member),
        "insecure_plain_tcp": False,
        "patience": PATIENCE,
        "work": in_thread,
    }


@pytest.mark.parametrize("trust", Trust)
def test_a_session_over_tls(trust: Trust) -> None:
    async def main() -> None:
        world = World(trust=trust, size=20_000)
        async with (
            open_server(
                "127.0.0.1:0",
                members=world.registry.members,
                context=host_context(world),
                on_event=EventLog(world.diary),
            ) as server,
            trio.open_nursery() as nursery,
        ):
            assert server.address.port > 0
            for member in range(4):
                changes = settings_of(member)
                nursery.start_soon(partial(world.answering, member, address=server.address, **changes))
            async with world.session(server, work=in_thread) as session:
                for _ in range(2):
                    world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()
        assert not world.diary.facts("excluded")

    run_live(main)


def refusal(listening: ssl.SSLContext, dialling: ssl.SSLContext, *, says: int = 0) -> tuple[Diary, Diary]:
    """What both sides write when they do not accept each other."""
    world = World()

    async def main() -> None:
        async with open_server(
            "127.0.0.1:0", members=world.registry.members, context=listening, on_event=EventLog(world.diary)
        ) as server:
            changes = {"context": dialling, "insecure_plain_tcp": False, "address": server.address}
            async with world.client(says, **changes):
                while not (world.diaries[says] and world.diary):
                    await trio.lowlevel.checkpoint()

    run_live(main)
    return world.diary, world.diaries[says]


def test_a_server_whose_certificate_was_not_expected_is_not_spoken_to() -> None:
    there, here = refusal(host_context(World()), context_of(0, host=101))
    assert here.reasons("unreachable") == ["TLS: certificate verify failed"]
    assert "TLS: " in str(there.reasons("refused")[0])


def test_a_client_that_nobody_knows_is_refused_by_tls() -> None:
    there, here = refusal(host_context(World()), context_of(101))
    assert here.facts("unreachable")
    assert there.reasons("refused") == ["TLS: certificate verify failed"]


def test_a_client_with_the_id_of_another_is_refused() -> None:
    there, here = refusal(host_context(World()), context_of(1), says=2)
    assert here.reasons("dismissed") == ["unknown"]
    assert "another client's id" in str(there.reasons("refused")[0])


def test_a_server_on_loopback_without_tls_knows_where_connections_come_from() -> None:
    async def main() -> None:
        world = World()
        async with (
            open_server(
                "127.0.0.1:0",
                members=world.registry.members,
                insecure_plain_tcp=True,
                on_event=EventLog(world.diary),
            ) as server,
            await trio.open_tcp_stream("127.0.0.1", server.address.port) as stream,
        ):
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            assert await stream.receive_some() == b""
        assert world.diary.facts("refused") == [
            {"host": "127.0.0.1", "reason": "not a packet of this transport"}
        ]

    run_live(main)


def test_a_port_on_which_nobody_listens_is_a_server_that_cannot_be_reached() -> None:
    async def main() -> None:
        world = World()
        async with (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] as listener:
            port = listener.socket.getsockname()[1]
        async with world.client(0, address=Address("localhost", port)):
            while not world.diaries[0]:
                await trio.lowlevel.checkpoint()
        assert world.diaries[0].reasons("unreachable") == [
            f"localhost:{port} cannot be reached (Connection refused)"
        ]

    run_live(main)
