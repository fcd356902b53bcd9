"""Strangers at the server's door: whoever can reach its port, and has no certificate that it knows.

In every test a session goes on meanwhile, whose totals are exact. A stranger leaves one line in the log
for each thing that it did, however often it did it.
"""

from __future__ import annotations

import random
import ssl
from contextlib import suppress

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from secagg.keys import Identity
from secagg.net import event_log, packets
from secagg.net.certificates import make_certificate
from secagg.net.packets import Reason
from secagg.net.settings import Capacity
from secagg.net.tls import client_context
from tests.attacks.network import Intruder, Scene, Site, crowd, endure

HOST = "127.0.0.1"
FEW = Capacity(strangers=8)


def assert_refused(site: Site, *reasons: str) -> None:
    """These lines and no other, apart from how often they were repeated."""
    said = [str(facts["reason"]) for facts in site.diary.of("refused")]
    assert sorted(said) == sorted(reasons)
    assert all(facts["host"] == HOST for facts in site.diary.of("refused"))
    assert not site.diary.of("excluded")


# --- who says nothing, or takes its time --------------------------------------------------------------


async def hold(streams: list[trio.SocketStream]) -> None:
    """Until the server has closed all of them."""
    for stream in streams:
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass


def test_silent_connections_make_room_for_others_and_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: `ClientAuthenticator._limit_pending`. Without it, all of them are there at the same time."""
    site = Site(hostile=0, capacity=FEW)
    seen = crowd(monkeypatch)

    async def attack(place: Scene) -> None:
        await hold([await place.tcp() for _ in range(200)])

    endure(site, attack)
    # One more is in its task for a moment, because who has to go has not gone yet.
    assert max(seen) <= FEW.strangers + 2
    assert_refused(site, "did not authenticate in time")


def test_strangers_that_come_all_at_once_do_not_slip_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: whoever has to go counts no more at once. Else several come for one that goes."""
    site = Site(hostile=0, capacity=FEW)
    seen = crowd(monkeypatch)

    async def attack(place: Scene) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one, place)

    async def one(place: Scene) -> None:
        await hold([await place.tcp()])

    endure(site, attack)
    assert max(seen) <= FEW.strangers + 4


@pytest.mark.parametrize("sent", [0, 1, 100])
def test_a_silent_connection_is_closed_in_time(sent: int) -> None:
    """Nothing, or a part of a handshake. The guard: the deadline in `ClientAuthenticator.authenticate`."""
    site = Site(hostile=0)

    async def attack(place: Scene) -> None:
        stream = await place.tcp()
        await stream.send_all(client_hello(site)[:sent] if sent else b"")
        await hold([stream])

    endure(site, attack)
    assert_refused(site, "did not authenticate in time")


def client_hello(site: Site) -> bytes:
    """The first bytes of a client with a valid certificate."""
    outgoing = ssl.MemoryBIO()
    tls = site.context(0).wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_handshake_byte_by_byte_ends_in_time() -> None:
    """The guard: `handshake` is for all of it, not for each byte. Else bytes may come for ever."""
    site = Site(hostile=0)
    sent: list[int] = []

    async def attack(place: Scene) -> None:
        stream = await place.tcp()
        with suppress(trio.BrokenResourceError):
            for byte in client_hello(site):
                await stream.send_all(bytes([byte]))
                sent.append(byte)
                await trio.sleep(4)

    endure(site, attack)
    assert len(sent) <= site.patience.handshake / 4 + 2
    assert_refused(site, "did not authenticate in time")


@pytest.mark.parametrize("said", [b"", packets.hello(4, bytes(16), 0)[:20]])
def test_a_client_that_does_not_introduce_itself_is_closed_in_time(said: bytes) -> None:
    """After TLS, with a certificate that is known. The guard is the same."""
    site = Site()

    async def attack(place: Scene) -> None:
        intruder = await place.intrude(site.insider)
        if said:
            await intruder.send(said)
        await intruder.until_closed()

    endure(site, attack, expected=site.honest)
    assert_refused(site, "did not authenticate in time")


def test_handshakes_begun_and_abandoned() -> None:
    """Hundreds of connections that are closed in the midst of it. The guard: `EventLog._write_once`."""
    site = Site(hostile=0, capacity=FEW)

    async def attack(place: Scene) -> None:
        for _ in range(200):
            stream = await place.tcp()
            await stream.send_all(client_hello_once)
            await stream.aclose()

    client_hello_once = client_hello(site)
    endure(site, attack)
    reasons = site.diary.reasons("refused")
    assert len(reasons) == len(set(reasons))
    assert set(reasons) <= {
        "TLS: unexpected eof while reading",
        "the connection broke",
        "did not authenticate in time",
    }


# --- garbage ------------------------------------------------------------------------------------------


def garbage_before_tls(connections: int) -> None:
    site = Site(hostile=0, capacity=FEW)
    chance = random.Random(1)

    async def attack(place: Scene) -> None:
        for _ in range(connections):
            stream = await place.tcp()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(chance.randbytes(chance.randrange(1, 600)))
            await stream.aclose()

    endure(site, attack)
    reasons = {str(reason) for reason in site.diary.reasons("refused")}
    assert len(site.diary.of("refused")) == len(reasons) <= 12
    assert all(reason.startswith(("TLS: ", "the connection ", "did not intro")) for reason in reasons)
    assert not site.diary.of("excluded")


def test_garbage_before_tls() -> None:
    """The guard: `EventLog._write_once`. Without it there is a line for every connection."""
    garbage_before_tls(1000)


@pytest.mark.slow
def test_a_hundred_thousand_connections_with_garbage_before_tls() -> None:
    garbage_before_tls(100_000)


def test_words_of_another_protocol() -> None:
    site = Site(hostile=0)

    async def attack(place: Scene) -> None:
        for _ in range(20):
            stream = await place.tcp()
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
            await hold([stream])

    endure(site, attack)
    assert_refused(site, "TLS: http request")


def test_nothing_that_a_stranger_wrote_is_in_the_log() -> None:
    site = Site(hostile=0)
    words = b"excluded member=0 reason=lies\n" * 20

    async def attack(place: Scene) -> None:
        stream = await place.tcp()
        await stream.send_all(words)
        await hold([stream])

    endure(site, attack)
    assert "lies" not in repr(site.diary)
    assert len(site.diary.of("refused")) == 1


# --- wrong certificates -------------------------------------------------------------------------------


def foreign_context(site: Site) -> ssl.SSLContext:
    """Somebody's key and certificate, of the right form, which nobody has enrolled."""
    stranger = Identity.generate()
    return client_context(stranger, make_certificate(stranger, now=0), site.server_certificate)


def copied_context(site: Site, path: str) -> ssl.SSLContext:
    """A certificate like that of client 0 in everything, but for the key in it and its signature."""
    model = x509.load_pem_x509_certificate(site.certificates[0])
    key = Ed25519PrivateKey.generate()
    builder = x509.CertificateBuilder(model.issuer, model.subject, key.public_key(), model.serial_number)
    builder = builder.not_valid_before(model.not_valid_before_utc).not_valid_after(model.not_valid_after_utc)
    for extension in model.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    pem = builder.sign(key, None).public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with open(path, "wb") as file:
        file.write(pem + secret)
    context = site.context(0)
    context.load_cert_chain(path)
    return context


def bare_context(site: Site) -> ssl.SSLContext:
    """No certificate at all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=site.server_certificate.decode())
    return context


@pytest.mark.parametrize("kind", ["foreign", "copied", "bare"])
def test_a_wrong_certificate(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The guard: the server trusts the enrolled certificates alone (`server_context`), and wants one."""
    site = Site(hostile=0)
    path = str(tmp_path_factory.mktemp("copy") / "copy.pem")
    if kind == "copied":
        context = copied_context(site, path)
    else:
        context = foreign_context(site) if kind == "foreign" else bare_context(site)

    async def attack(place: Scene) -> None:
        for _ in range(10):
            intruder = Intruder(await place.tls(context))
            with suppress(Exception):  # the server may have hung up already
                await intruder.hello(0)
            await intruder.until_closed()

    endure(site, attack)
    reasons = {
        "foreign": "TLS: certificate verify failed",
        "copied": "TLS: certificate verify failed",
        "bare": "TLS: peer did not return a certificate",
    }
    assert_refused(site, reasons[kind])
    assert len(site.diary.of("connected", member=0)) == 1
    assert not site.diary.of("disconnected")


def test_a_certificate_that_is_trusted_for_tls_but_of_no_member() -> None:
    """The guard: `ClientAuthenticator._identify` compares the id with the key that TLS has proven."""
    site = Site(hostile=1)
    site.registry = type(site.registry)(0, {k: site.identities[k].public for k in range(site.honest)})

    async def attack(place: Scene) -> None:
        for member in (site.insider, 0, 1 << 31):
            intruder = await place.intrude(site.insider)
            await intruder.hello(member)
            assert await intruder.dismissal() is Reason.UNKNOWN
            await intruder.until_closed()

    endure(site, attack, expected=site.honest)
    assert_refused(site, "is not a client of this server, or uses another client's id")
    assert not site.diary.of("disconnected")


# --- come and go --------------------------------------------------------------------------------------


def test_connections_that_are_closed_at_once() -> None:
    """The guard: `EventLog._write_once`."""
    site = Site(hostile=0)

    async def attack(place: Scene) -> None:
        for _ in range(500):
            await (await place.tcp()).aclose()

    endure(site, attack)
    assert len(site.diary.of("refused")) == 1


def test_strangers_who_fill_the_journal_do_not_hide_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who come from many hosts fill what it remembers. The guard: milestones are written regardless."""
    site = Site(hostile=0)
    monkeypatch.setattr(event_log, "_REMEMBERED", site.honest)

    async def attack(place: Scene) -> None:
        await (await place.tcp()).aclose()

    endure(site, attack)
    assert len(site.diary.of("session")) == 1
    assert len(site.diary.of("released")) == site.sums
    assert not site.diary.of("refused")
