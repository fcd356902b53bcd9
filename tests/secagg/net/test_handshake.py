"""Unauthenticated connections are few and short, and only members are accepted."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from contextlib import suppress

import pytest
import trio

from secagg.insecure_seeds import seeded_identity
from secagg.net import packets
from secagg.net.certificates import make_certificate
from secagg.net.connection import ConnectionLost
from secagg.net.event_log import EventLog
from secagg.net.handshake import AuthenticatedClient, ClientAuthenticator
from secagg.net.packets import HEADER, Hello, PacketKind, Reason
from secagg.net.settings import Capacity, Patience
from secagg.net.tls import client_context, server_context
from tests.secagg.net.rig import LINK, SEED, Diary, Knocker, Line, run, run_live

NOW = int(time.time())  # TLS compares certificates with the real clock
MEMBERS = {member: seeded_identity(SEED, member).public for member in range(3)}
PATIENCE = Patience(handshake=10, silence=100)


def make_door(
    diary: Diary,
    *,
    members: Mapping[int, bytes] = MEMBERS,
    context: ssl.SSLContext | None = None,
    strangers: int = 128,
) -> ClientAuthenticator:
    return ClientAuthenticator(
        members,
        context=context,
        patience=PATIENCE,
        capacity=Capacity(strangers=strangers),
        on_event=EventLog(diary),
    )


class Visit:
    """Somebody at a door, until it is decided whether it comes in."""

    def __init__(self, door: ClientAuthenticator, host: str = "there") -> None:
        self.line = Line()
        self.knocker = Knocker(self.line.near)
        self.client: AuthenticatedClient | None = None
        self.decided = trio.Event()
        self._authenticator = door
        self._host = host

    async def run(self) -> None:
        self.client = await self._authenticator.authenticate(self.line.far, host=self._host)
        self.decided.set()


def visit(
    *data: bytes, door: ClientAuthenticator | None = None, diary: Diary | None = None
) -> tuple[Visit, Diary]:
    """Send `data` and nothing more."""
    diary = Diary() if diary is None else diary

    async def main() -> Visit:
        visitor = Visit(door or make_door(diary))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await visitor.knocker.send(*data)
        return visitor

    return run(main), diary


def refused_for(diary: Diary, reason: str) -> None:
    """Once, with a reason and no word of what was sent."""
    assert [(event, facts["host"]) for event, facts in diary] == [("refused", "there")]
    assert reason in str(diary.reasons("refused"))


HELLO = packets.hello(2, LINK, 0)[: HEADER.size + packets.HELLO_BYTES]


def test_a_member_comes_in() -> None:
    visitor, diary = visit(packets.hello(2, LINK, 5))
    assert visitor.client is not None
    assert visitor.client.hello == Hello(2, LINK, 5)
    assert visitor.client.connection.peer == 2
    assert visitor.client.connection.silence == PATIENCE.silence
    assert not visitor.line.far.closed
    assert diary == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a packet of this transport"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "not a packet of this transport"),
        (HEADER.pack(PacketKind.HELLO, 1 << 20), "not a packet of this transport"),
        (packets.packet(PacketKind.ALIVE), "did not say hello"),
        (packets.packet(PacketKind.PIECE, b"secret words"), "did not say hello"),
        (packets.hello(2, LINK, 0).replace(b"secagg", b"SECAGG"), "not a packet of this transport"),
        (packets.hello(2, LINK, 0).replace(b"secagg\x03", b"secagg\x00"), "not a packet of this transport"),
        (packets.hello(2, LINK, 0).replace(b"secagg\x03", b"secagg\x04"), "other versions than its hello"),
        (HELLO + packets.packet(PacketKind.ALIVE), "did not say which versions it speaks"),
        (HELLO + packets.packet(PacketKind.VERSIONS, bytes([4, 3, 2, 2])), "versions that are not a range"),
    ],
)
def test_whoever_says_something_else_is_refused_at_once(data: bytes, reason: str) -> None:
    async def main() -> None:
        began = trio.current_time()
        visitor = Visit(make_door(diary))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await visitor.knocker.send(data)
            assert await visitor.knocker.gone()
        assert visitor.client is None
        assert trio.current_time() == began

    diary = Diary()
    run(main)
    refused_for(diary, reason)
    assert "secret" not in str(diary)


def test_somebody_unknown_is_told_so() -> None:
    async def main() -> None:
        visitor = Visit(make_door(diary))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await visitor.knocker.send(packets.hello(3, LINK, 0))
            assert await visitor.knocker.dismissal() is Reason.UNKNOWN
            assert await visitor.knocker.gone()
        assert visitor.client is None

    diary = Diary()
    run(main)
    refused_for(diary, "not a client of this server")


@pytest.mark.parametrize("data", [b"", packets.hello(2, LINK, 0)[:-1]])
def test_whoever_does_not_introduce_itself_in_time_has_to_go(data: bytes) -> None:
    async def main() -> None:
        began = trio.current_time()
        visitor = Visit(make_door(diary))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await visitor.knocker.send(data)
            assert await visitor.knocker.gone()
        assert visitor.client is None
        assert trio.current_time() == pytest.approx(began + PATIENCE.handshake)

    diary = Diary()
    run(main)
    refused_for(diary, "did not authenticate in time")


def test_a_slow_trickle_gains_no_time() -> None:
    async def main() -> None:
        visitor = Visit(make_door(diary))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            with suppress(ConnectionLost):
                for byte in packets.hello(2, LINK, 0):
                    await visitor.knocker.send(bytes([byte]))
                    await trio.sleep(1)
        assert visitor.client is None

    diary = Diary()
    run(main)
    refused_for(diary, "did not authenticate in time")


def test_somebody_unknown_who_does_not_listen_is_not_waited_for() -> None:
    async def main() -> None:
        visitor = Visit(make_door(diary))
        visitor.line.down.capacity = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await visitor.knocker.send(packets.hello(9, LINK, 0))
        assert visitor.client is None
        assert visitor.line.far.closed

    diary = Diary()
    run(main)
    assert len(diary) == 1


def test_whoever_hangs_up_is_not_waited_for() -> None:
    async def main() -> None:
        for closing in (True, False):
            visitor = Visit(make_door(diary))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(visitor.run)
                await trio.sleep(1)
                if closing:
                    await visitor.line.near.aclose()
                else:
                    visitor.line.cut()
            assert visitor.client is None
            assert visitor.line.far.closed

    diary = Diary()
    run(main)
    assert diary.reasons("refused") == ["the connection was closed", "the connection broke"]


def test_the_oldest_stranger_makes_room_for_the_next() -> None:
    async def main() -> None:
        door = make_door(diary, strangers=2)
        visitors = [Visit(door) for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for number, visitor in enumerate(visitors):
                nursery.start_soon(visitor.run)
                await trio.sleep(1)
                waiting = [k for k in range(number + 1) if not visitors[k].decided.is_set()]
                assert waiting == list(range(max(0, number - 1), number + 1))
            await visitors[3].knocker.send(packets.hello(1, LINK, 0))
            await visitors[3].decided.wait()
            assert visitors[3].client is not None
            # Whoever has come in is no stranger: there is room for one more.
            nursery.start_soon(visitors[0].run)
            await trio.sleep(1)
            assert not visitors[2].decided.is_set()

    diary = Diary()
    run(main)


def test_of_many_who_come_at_once_only_so_many_stay() -> None:
    async def main() -> None:
        door = make_door(diary, strangers=3)
        visitors = [Visit(door) for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for visitor in visitors:
                nursery.start_soon(visitor.run)
            await trio.sleep(1)
            assert sum(not visitor.decided.is_set() for visitor in visitors) == 3
            assert sum(not visitor.line.far.closed for visitor in visitors) == 3

    diary = Diary()
    run(main)
    assert len(diary) == 1


def test_the_same_reason_is_written_once_for_a_host() -> None:
    diary = Diary()
    door = make_door(diary)
    for _ in range(50):
        visit(b"nonsense", door=door, diary=diary)
    assert len(diary) == 1
    visit(packets.hello(9, LINK, 0), door=door, diary=diary)
    assert len(diary) == 2


# --- with TLS ------------------------------------------------------------------------------------------


HOST = seeded_identity(SEED, 100)
HOST_CERTIFICATE = make_certificate(HOST, now=NOW)
OUTSIDER = 101


def context_of(member: int) -> ssl.SSLContext:
    identity = seeded_identity(SEED, member)
    return client_context(identity, make_certificate(identity, now=NOW), HOST_CERTIFICATE)


def guarded_door(diary: Diary) -> ClientAuthenticator:
    certificates = [make_certificate(seeded_identity(SEED, member), now=NOW) for member in MEMBERS]
    return make_door(diary, context=server_context(HOST, HOST_CERTIFICATE, certificates))


def tls_visit(member: int, *, says: int) -> tuple[AuthenticatedClient | None, Diary, bytes]:
    """The client with the key of `member` says that it is `says`."""
    diary = Diary()

    async def main() -> tuple[AuthenticatedClient | None, bytes]:
        visitor = Visit(guarded_door(diary))
        answer = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            stream = trio.SSLStream(visitor.line.near, context_of(member), https_compatible=True)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(packets.hello(says, LINK, 0))
                await visitor.decided.wait()
                if visitor.client is None:
                    answer = bytes(await stream.receive_some())
        return visitor.client, answer

    client, answer = run_live(main)
    return client, diary, answer


def test_a_member_with_its_own_key_comes_in() -> None:
    client, diary, _answer = tls_visit(1, says=1)
    assert client is not None
    assert client.hello.member == 1
    assert diary == []


def test_a_member_with_the_key_of_another_does_not() -> None:
    client, diary, answer = tls_visit(1, says=2)
    assert client is None
    refused_for(diary, "another client's id")
    assert answer == packets.bye(Reason.UNKNOWN)


def test_a_key_that_no_member_has_ends_the_handshake() -> None:
    client, diary, _answer = tls_visit(OUTSIDER, says=1)
    assert client is None
    refused_for(diary, "TLS: ")


def test_whoever_speaks_no_tls_is_refused_by_it() -> None:
    diary = Diary()
    visitor, _ = visit(packets.hello(1, LINK, 0), door=guarded_door(diary))
    assert visitor.client is None
    assert visitor.line.far.closed
    refused_for(diary, "TLS: ")


def test_half_a_handshake_is_not_waited_for() -> None:
    diary = Diary()
    visitor, _ = visit(b"\x16\x03\x01", door=guarded_door(diary))
    assert visitor.client is None
    assert visitor.line.far.closed
    refused_for(diary, "did not authenticate in time")
