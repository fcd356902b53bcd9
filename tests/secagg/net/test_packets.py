"""Packets: what is well-formed comes back as it was, everything else is refused by its header."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import SERVER, MalformedMessage
from secagg.net import packets
from secagg.net.packets import HEADER, LINK_BYTES, MAX_BODY, PacketKind, Reason
from secagg.net.versions import AgreedVersions, SpokenVersions, VersionRange

versions = st.integers(1, 255)
ranges = st.tuples(versions, versions).map(lambda pair: VersionRange(*sorted(pair)))
spoken = st.builds(SpokenVersions, ranges, ranges)
counts = st.integers(0, (1 << 64) - 1)
links = st.binary(min_size=LINK_BYTES, max_size=LINK_BYTES)

# The only sizes that a body may have.
SIZES = {
    PacketKind.HELLO: {6 + 1 + 4 + LINK_BYTES + 8},
    PacketKind.WELCOME: {11},
    PacketKind.BEGIN: {12},
    PacketKind.PIECE: range(1, MAX_BODY + 1),
    PacketKind.ACK: {8},
    PacketKind.ALIVE: {0},
    PacketKind.BYE: {1, 5},
    PacketKind.VERSIONS: {4},
}


def parts(packet: bytes) -> tuple[PacketKind, bytes]:
    kind, size = packets.parse_header(packet[: HEADER.size], sender=3)
    body = packet[HEADER.size :]
    assert len(body) == size
    return kind, body


def greeting_parts(greeting: bytes) -> tuple[bytes, bytes]:
    """The bodies of both packets of a greeting."""
    split = HEADER.size + packets.HELLO_BYTES
    (first, hello), (second, offer) = parts(greeting[:split]), parts(greeting[split:])
    assert (first, second) == (PacketKind.HELLO, PacketKind.VERSIONS)
    return hello, offer


@given(st.integers(0, (1 << 32) - 1), links, counts, spoken)
def test_a_greeting_comes_back(member: int, link: bytes, received: int, offered: SpokenVersions) -> None:
    hello, offer = greeting_parts(packets.hello(member, link, received, offered=offered))
    highest = offered.transport.highest
    assert packets.parse_hello(hello, sender=3) == packets.Hello(member, link, received, highest)
    assert packets.parse_versions(offer, sender=3) == offered


@given(st.booleans(), counts, versions, versions)
def test_a_welcome_comes_back(resumed: bool, received: int, transport: int, protocol: int) -> None:
    agreed = AgreedVersions(transport, protocol)
    kind, body = parts(packets.welcome(resumed=resumed, received=received, versions=agreed))
    assert kind is PacketKind.WELCOME
    assert packets.parse_welcome(body, sender=SERVER) == packets.Welcome(resumed, received, agreed)


@given(st.integers(0, (1 << 32) - 1), counts)
def test_an_announcement_comes_back(size: int, seen: int) -> None:
    kind, body = parts(packets.begin(size, seen))
    assert kind is PacketKind.BEGIN
    assert packets.parse_begin(body) == packets.Begin(size, seen)


@given(counts)
def test_an_acknowledgement_comes_back(received: int) -> None:
    kind, body = parts(packets.ack(received))
    assert kind is PacketKind.ACK
    assert packets.parse_count(body) == received


@pytest.mark.parametrize("reason", set(Reason) - {Reason.VERSIONS})
def test_a_reason_comes_back(reason: Reason) -> None:
    kind, body = parts(packets.bye(reason))
    assert kind is PacketKind.BYE
    assert packets.parse_bye(body, sender=SERVER) == packets.Bye(reason, None)


@given(spoken)
def test_a_refusal_of_versions_comes_back(own: SpokenVersions) -> None:
    kind, body = parts(packets.bye_versions(own))
    assert kind is PacketKind.BYE
    assert packets.parse_bye(body, sender=SERVER) == packets.Bye(Reason.VERSIONS, own)


def test_a_sign_of_life_has_no_body() -> None:
    assert parts(packets.packet(PacketKind.ALIVE)) == (PacketKind.ALIVE, b"")


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_a_header_is_one_of_few_or_refused(header: bytes) -> None:
    code, size = struct.unpack(">BI", header)
    if code in list(PacketKind) and size in SIZES[PacketKind(code)]:
        assert packets.parse_header(header, sender=3) == (PacketKind(code), size)
    else:
        with pytest.raises(MalformedMessage):
            packets.parse_header(header, sender=3)


@pytest.mark.parametrize("kind", PacketKind)
def test_every_kind_has_its_sizes_and_no_other(kind: PacketKind) -> None:
    edges = {0, 1, 2, MAX_BODY - 1, MAX_BODY} if kind is PacketKind.PIECE else {0, *SIZES[kind]}
    for size in {*edges, *(size + 1 for size in edges), (1 << 32) - 1}:
        header = HEADER.pack(kind, size)
        if size in SIZES[kind]:
            assert packets.parse_header(header, sender=3) == (kind, size)
            continue
        with pytest.raises(MalformedMessage) as caught:
            packets.parse_header(header, sender=3)
        assert caught.value.peer == 3


@pytest.mark.parametrize("code", [0, 9, 71, 255])
def test_an_unknown_kind_is_refused(code: int) -> None:
    for size in (0, 1, 9):
        with pytest.raises(MalformedMessage):
            packets.parse_header(HEADER.pack(code, size), sender=3)


def test_a_hello_of_another_protocol_is_refused() -> None:
    body = greeting_parts(packets.hello(1, bytes(LINK_BYTES), 0))[0]
    for at in range(6):
        spoiled = bytearray(body)
        spoiled[at] ^= 0x20
        with pytest.raises(MalformedMessage):
            packets.parse_hello(bytes(spoiled), sender=3)


def test_there_is_no_version_0() -> None:
    body = bytearray(greeting_parts(packets.hello(1, bytes(LINK_BYTES), 0))[0])
    body[6] = 0
    with pytest.raises(MalformedMessage):
        packets.parse_hello(bytes(body), sender=3)


@given(st.binary(min_size=4, max_size=4))
def test_versions_are_two_ranges_or_refused(body: bytes) -> None:
    low, high, low_protocol, high_protocol = body
    if 1 <= low <= high and 1 <= low_protocol <= high_protocol:
        found = SpokenVersions(VersionRange(low, high), VersionRange(low_protocol, high_protocol))
        assert packets.parse_versions(body, sender=3) == found
        assert packets.parse_bye(b"\x05" + body, sender=SERVER).versions == found
        return
    with pytest.raises(MalformedMessage, match="not a range") as caught:
        packets.parse_versions(body, sender=3)
    assert caught.value.peer == 3
    with pytest.raises(MalformedMessage, match="not a range"):
        packets.parse_bye(b"\x05" + body, sender=SERVER)


@pytest.mark.parametrize("body", [b"\x05", *(bytes([code, 3, 3, 2, 2]) for code in (1, 2, 3, 4))])
def test_versions_and_their_reason_come_together(body: bytes) -> None:
    with pytest.raises(MalformedMessage, match="versions without their reason"):
        packets.parse_bye(body, sender=SERVER)


@pytest.mark.parametrize("answer", [2, 128, 255])
def test_a_welcome_says_yes_or_no(answer: int) -> None:
    with pytest.raises(MalformedMessage, match="neither yes nor no"):
        packets.parse_welcome(bytes([3, 2, answer]) + bytes(8), sender=SERVER)


@pytest.mark.parametrize("code", sorted(set(range(256)) - set(Reason))[::50])
def test_an_unknown_reason_is_refused(code: int) -> None:
    with pytest.raises(MalformedMessage, match="unknown reason"):
        packets.parse_bye(bytes([code]), sender=SERVER)
