"""Versions: two sides use the highest one that both speak, or both say who must be upgraded.

What a client or server of transport version 2 sends is written out here byte by byte, as is what it accepts.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from unittest import mock

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import SERVER, MalformedMessage, ParameterError, WrongVersion
from secagg.hashing import VERSION
from secagg.net import packets
from secagg.net.event_log import EventLog
from secagg.net.events import (
    ClientIncompatible,
    ClientNetworkEvent,
    ClientVersionsDiffer,
    ServerConnected,
    ServerIncompatible,
    ServerIsOlder,
    ServerNetworkEvent,
    ServerUnreachable,
)
from secagg.net.handshake import ClientAuthenticator, GreetingUnanswered, ServerConnector
from secagg.net.packets import PacketKind
from secagg.net.settings import Address, Capacity, Patience
from secagg.net.versions import (
    NEWEST,
    OWN_VERSIONS,
    AgreedVersions,
    NoCommonVersion,
    Side,
    SpokenVersions,
    VersionRange,
)
from tests.secagg.net.rig import LINK, Diary, Knocker, Line, Network, World, on_network, run

PATIENCE = Patience(handshake=10, silence=60)
PLACE = Address("host", 1)


def speaking(transport: tuple[int, int], protocol: tuple[int, int] = (2, 2)) -> SpokenVersions:
    return SpokenVersions(VersionRange(*transport), VersionRange(*protocol))


# --- ranges ----------------------------------------------------------------------------------------------


numbers = st.integers(1, 255)
ranges = st.tuples(numbers, numbers).map(lambda pair: VersionRange(*sorted(pair)))


@given(ranges, ranges)
def test_the_highest_common_version_is_the_highest_of_all_common_ones(
    one: VersionRange, other: VersionRange
) -> None:
    common = [version for version in range(1, 256) if version in one and version in other]
    assert one.highest_common(other) == other.highest_common(one) == max(common, default=None)


@pytest.mark.parametrize(("lowest", "highest"), [(0, 3), (3, 2), (3, 256), (-1, -1)])
def test_a_range_is_one(lowest: int, highest: int) -> None:
    with pytest.raises(ParameterError, match="range from 1 to 255"):
        VersionRange(lowest, highest)


def test_both_numbers_need_a_common_version() -> None:
    own = speaking((3, 5), (2, 4))
    assert own.agree(speaking((4, 9), (1, 3))) == AgreedVersions(4 + 1, 3)
    assert own.agree(speaking((6, 9), (1, 3))) is None
    assert own.agree(speaking((4, 9), (5, 6))) is None
    assert own.agree(SpokenVersions(VersionRange(3, 3), None)) is None
    assert SpokenVersions(VersionRange(3, 3), None).agree(own) is None


def test_what_was_offered_includes_only_that() -> None:
    own = speaking((3, 5), (2, 4))
    for transport, protocol in product(range(1, 8), range(1, 8)):
        inside = 3 <= transport <= 5 and 2 <= protocol <= 4
        assert own.includes(AgreedVersions(transport, protocol)) is inside
    assert not SpokenVersions(VersionRange(3, 5), None).includes(AgreedVersions(3, 2))


@pytest.mark.parametrize(
    ("own", "theirs", "is_peer"),
    [
        (speaking((3, 3)), SpokenVersions(VersionRange(2, 2), None), True),
        (speaking((3, 3)), speaking((4, 6)), False),
        (speaking((4, 6)), speaking((3, 3)), True),
        (speaking((3, 3), (2, 2)), speaking((3, 4), (3, 4)), False),
        (speaking((3, 4), (3, 4)), speaking((3, 3), (2, 2)), True),
    ],
)
def test_the_older_side_must_be_upgraded(own: SpokenVersions, theirs: SpokenVersions, is_peer: bool) -> None:
    at_server = NoCommonVersion(7, own=own, theirs=theirs)
    assert at_server.outdated is (Side.CLIENT if is_peer else Side.SERVER)
    at_client = NoCommonVersion(SERVER, own=own, theirs=theirs)
    assert at_client.outdated is (Side.SERVER if is_peer else Side.CLIENT)
    for error in (at_server, at_client):
        assert str(own) in error.why
        assert str(theirs) in error.why
        assert error.why.endswith(f"upgrade the {error.outdated.value}")


# --- a server ----------------------------------------------------------------------------------------------


def greet(
    data: bytes, *, spoken: SpokenVersions = OWN_VERSIONS
) -> tuple[AgreedVersions | None, bytes, list[ServerNetworkEvent]]:
    """Send `data` to a server that speaks `spoken` and knows client 2. Return the versions that they agreed
    on, the answer of the server, and its events."""
    seen: list[ServerNetworkEvent] = []
    line = Line()

    async def main() -> AgreedVersions | None:
        door = ClientAuthenticator(
            {2: bytes(32)},
            context=None,
            patience=PATIENCE,
            capacity=Capacity(),
            on_event=seen.append,
            spoken=spoken,
        )
        await line.near.send_all(data)
        client = await door.authenticate(line.far, host="there")
        assert line.far.closed is (client is None)
        return None if client is None else client.versions

    return run(main), bytes(line.down.log), seen


OLD_HELLO = b"\x01\x00\x00\x00\x23" + b"secagg\x02" + b"\x00\x00\x00\x02" + LINK + bytes(8)
# The only last packet that a client of version 2 takes for a refusal: one byte, from 1 to 4.
OLD_REFUSAL = b"\x07\x00\x00\x00\x01\x04"


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_client_is_refused_in_its_own_language_and_named(version: int) -> None:
    data = OLD_HELLO.replace(b"secagg\x02", b"secagg" + bytes([version]))
    agreed, answer, seen = greet(data)
    assert agreed is None
    assert answer == OLD_REFUSAL
    (event,) = seen
    assert isinstance(event, ClientIncompatible)
    assert event.host == "there"
    assert event.error.peer == 2
    assert event.error.theirs == SpokenVersions(VersionRange(version, version), None)
    assert event.error.outdated is Side.CLIENT


def test_only_a_member_is_named_as_an_old_client() -> None:
    _agreed, answer, seen = greet(OLD_HELLO.replace(b"\x00\x00\x00\x02", b"\x00\x00\x00\x09"))
    assert answer == OLD_REFUSAL
    assert not any(isinstance(event, ClientIncompatible) for event in seen)


@pytest.mark.parametrize(
    ("offered", "outdated"),
    [(speaking((4, 7)), Side.SERVER), (speaking((3, 3), (1, 1)), Side.CLIENT)],
)
def test_a_client_without_a_common_version_is_told_what_the_server_speaks(
    offered: SpokenVersions, outdated: Side
) -> None:
    agreed, answer, seen = greet(packets.hello(2, LINK, 0, offered=offered))
    assert agreed is None
    assert answer == packets.bye_versions(OWN_VERSIONS)
    (event,) = seen
    assert isinstance(event, ClientIncompatible)
    assert (event.error.own, event.error.theirs) == (OWN_VERSIONS, offered)
    assert event.error.outdated is outdated


def test_a_server_chooses_the_highest_common_version_and_says_if_ranges_differ() -> None:
    assert greet(packets.hello(2, LINK, 0)) == (NEWEST, b"", [])
    offered, own = speaking((3, 6), (1, 4)), speaking((3, 5), (2, 9))
    agreed, _answer, seen = greet(packets.hello(2, LINK, 0, offered=offered), spoken=own)
    assert agreed == AgreedVersions(5, 4)
    assert seen == [ClientVersionsDiffer(2, offered, own, AgreedVersions(5, 4))]


def test_no_greeting_surprises_a_server() -> None:
    """Greetings with random changes: each is agreed on, refused with a typed event, or not finished."""
    chance = random.Random(7)
    good = packets.hello(2, LINK, 0)
    numbers = (11, *range(len(good) - 4, len(good)))  # where the versions are
    outcomes = set()
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.choice((chance.choice(numbers), chance.randrange(len(data))))
            data[at] = chance.choice((0, 1, 2, 3, 4, 255, chance.randrange(256)))
        end = len(data) if chance.random() < 0.8 else chance.randrange(len(data))
        agreed, answer, seen = greet(bytes(data[:end]))
        assert agreed in (None, NEWEST)
        assert answer in (b"", packets.bye_versions(OWN_VERSIONS), OLD_REFUSAL)
        assert len(seen) == 1 or agreed is not None
        outcomes.add((agreed, answer))
    assert len(outcomes) == 4


# --- a client ----------------------------------------------------------------------------------------------


def dial(answer: bytes | None, *, offered: SpokenVersions = OWN_VERSIONS) -> tuple[object, bytes]:
    """Connect to a server that gives `answer`, or closes the connection if it is None. Return the welcome or
    the error, and what the client sent."""
    line = Line()

    async def main() -> object:
        connector = ServerConnector(PLACE, member=2, context=None, patience=PATIENCE, offered=offered)
        with mock.patch.object(trio, "open_tcp_stream", mock.AsyncMock(return_value=line.near)):
            if answer is None:
                line.down.end()
            else:
                await line.far.send_all(answer)
            try:
                return (await connector.connect(LINK, 0))[1]
            except Exception as error:
                assert line.near.closed
                return error

    return run(main), bytes(line.up.log)


def test_an_old_server_recognises_a_greeting_of_another_version() -> None:
    """It reads 5 and 35 bytes, compares the first six of the body, and then the version."""
    _welcome, sent = dial(packets.welcome(resumed=False, received=0))
    assert sent[:5] == OLD_HELLO[:5]
    assert sent[5:11] == b"secagg"
    assert sent[11] == 3
    assert sent[12:40] == OLD_HELLO[12:40]


def test_a_client_whose_greeting_is_not_answered_hears_that_the_server_may_be_old() -> None:
    error, _sent = dial(None)
    assert isinstance(error, GreetingUnanswered)
    assert str(OWN_VERSIONS) in str(error)
    assert "upgrade the server" in str(error)


@pytest.mark.parametrize(
    ("theirs", "outdated"),
    [
        (speaking((4, 5)), Side.CLIENT),
        (speaking((1, 2)), Side.SERVER),
        (speaking((3, 3), (1, 1)), Side.SERVER),
    ],
)
def test_a_client_that_is_refused_knows_who_must_be_upgraded(theirs: SpokenVersions, outdated: Side) -> None:
    error, _sent = dial(packets.bye_versions(theirs))
    assert isinstance(error, NoCommonVersion)
    assert (error.own, error.theirs, error.outdated) == (OWN_VERSIONS, theirs, outdated)


def test_a_refusal_of_versions_that_fit_is_a_lie() -> None:
    error, _sent = dial(packets.bye_versions(OWN_VERSIONS))
    assert type(error) is MalformedMessage


@pytest.mark.parametrize(("transport", "protocol"), [(2, 2), (6, 2), (3, 1), (3, 4), (0, 2), (3, 0)])
def test_a_server_cannot_choose_what_was_not_offered(transport: int, protocol: int) -> None:
    chosen = AgreedVersions(transport, protocol)
    answer = packets.welcome(resumed=False, received=0, versions=chosen)
    error, _sent = dial(answer, offered=speaking((3, 5), (2, 3)))
    assert type(error) is WrongVersion


def test_a_server_may_choose_any_offered_version() -> None:
    for transport, protocol in product((3, 4, 5), (2, 3)):
        chosen = AgreedVersions(transport, protocol)
        answer = packets.welcome(resumed=False, received=0, versions=chosen)
        assert dial(answer, offered=speaking((3, 5), (2, 3)))[0] == packets.Welcome(False, 0, chosen)


# --- whole clients -----------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(
    world: World, network: Network, answer: bytes | None
) -> AsyncIterator[list[ClientNetworkEvent]]:
    """Client 0 of `world`, whose first greeting is answered with `answer`; None closes the connection."""
    (listener,) = await network.open_tcp_listeners(7443, host="127.0.0.1", backlog=1)
    seen: list[ClientNetworkEvent] = []
    log = EventLog(world.diaries[0])

    def on_event(event: ClientNetworkEvent) -> None:
        seen.append(event)
        log(event)

    async with world.client(0, on_event=on_event):
        server = Knocker(await listener.accept())
        await server.next(PacketKind.HELLO)
        if answer is None:
            await server.stream.aclose()
        else:
            await server.send(answer)
        await trio.sleep(1)
        yield seen


@pytest.mark.parametrize("how", ["refused", "unanswered"])
def test_a_client_that_no_version_connects_says_so_and_tries_again(how: str) -> None:
    theirs = speaking((4, 5))

    async def main(network: Network) -> None:
        answer = packets.bye_versions(theirs) if how == "refused" else None
        async with answering(world, network, answer) as seen:
            (event,) = seen
            if how == "refused":
                assert isinstance(event, ServerIncompatible)
                assert event.error.theirs == theirs
            else:
                assert isinstance(event, ServerUnreachable)
                assert isinstance(event.error, GreetingUnanswered)
            again = Knocker(await network.listeners[7443].accept())
            await again.next(PacketKind.HELLO)

    world = World()
    on_network(main)
    expected = "incompatible" if how == "refused" else "unreachable"
    assert [event for event, _facts in world.diaries[0]] == [expected]
    assert "upgrade the" in str(world.diaries[0].reasons(expected))


def test_a_client_says_if_its_server_uses_older_versions() -> None:
    agreed = AgreedVersions(3, VERSION)
    offered = speaking((3, 4), (VERSION, VERSION))

    async def main(network: Network) -> None:
        with mock.patch("secagg.net.open_client_and_server.ServerConnector", connector):
            answer = packets.welcome(resumed=False, received=0, versions=agreed)
            async with answering(world, network, answer) as seen:
                assert [type(event) for event in seen] == [ServerConnected, ServerIsOlder]
                assert seen[1] == ServerIsOlder(Address("127.0.0.1", 7443), offered, agreed)

    def connector(address: Address, **settings: object) -> ServerConnector:
        return ServerConnector(address, offered=offered, **settings)  # type: ignore[arg-type]

    world = World()
    on_network(main)
    assert "upgrade the server" in str(world.diaries[0].reasons("versions"))


def test_a_server_writes_the_sentences_once_for_each_client() -> None:
    diary = Diary()
    log = EventLog(diary)
    theirs = SpokenVersions(VersionRange(2, 2), None)
    for member in (5, 6, 5, 5):
        log(ClientIncompatible("there", NoCommonVersion(member, own=OWN_VERSIONS, theirs=theirs)))
    log(ClientVersionsDiffer(7, speaking((3, 4)), OWN_VERSIONS, NEWEST))
    assert diary.members("incompatible") == [5, 6]
    assert diary.members("versions") == [7]
    assert all("upgrade the client" in str(reason) for reason in diary.reasons("incompatible"))
