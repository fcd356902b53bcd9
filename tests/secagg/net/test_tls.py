"""TLS: who is let in, who is not, and which side says so."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from secagg.errors import CertificateError, LocalError, ParameterError
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.net import tls
from secagg.net.certificates import make_certificate, private_pem
from secagg.net.tls import client_context, peer_key, server_context

NOW = int(time.time())  # OpenSSL compares with the clock
DAY = 86400
SERVER, ALICE, BOB, MALLORY = (seeded_identity(b"tls", k) for k in range(4))
SERVER_PEM, ALICE_PEM, BOB_PEM, MALLORY_PEM = (
    make_certificate(identity, now=NOW) for identity in (SERVER, ALICE, BOB, MALLORY)
)
GREETING = b"hello"
PATIENCE = 20  # seconds: against hanging only


@dataclass
class End:
    """What one end of a connection saw."""

    key: bytes | None = None  # the peer's, once the handshake was over
    received: bytes | None = None
    why: str = ""  # the reason of a failure, as OpenSSL names it
    version: str = ""


def reason(cause: BaseException | None) -> str:
    """trio breaks the connection without an alert, so the other end sees no more than its end."""
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return str(cause.reason)
    return "hung up"


async def talk(stream: trio.SSLStream[Any], end: End, *, server: bool) -> None:
    """The server greets, and the client listens. Whoever fails hangs up."""
    try:
        await stream.do_handshake()
        end.key, end.version = peer_key(stream), stream.version()
        if server:
            await stream.send_all(GREETING)
        end.received = bytes(await stream.receive_some())
    except trio.BrokenResourceError as error:
        end.why = reason(error.__cause__)
    finally:
        await trio.aclose_forcefully(stream)


async def meet(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[End, End]:
    ends = End(), End()
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(talk, trio.SSLStream(ours, server, server_side=True), ends[0], server=True)
            )
            nursery.start_soon(partial(talk, trio.SSLStream(theirs, client), ends[1], server=False))
    return ends


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[End, End]:
    """What the server and the client saw of each other."""
    return trio.run(meet, server, client)


def the_server() -> ssl.SSLContext:
    return server_context(SERVER, SERVER_PEM, [ALICE_PEM, BOB_PEM])


def a_client(identity: Identity = ALICE, certificate: bytes = ALICE_PEM) -> ssl.SSLContext:
    return client_context(identity, certificate, SERVER_PEM)


def with_chain(context: ssl.SSLContext, chain: bytes, identity: Identity, folder: Path) -> ssl.SSLContext:
    """The context with other certificates than ours would take."""
    file = folder / "chain.pem"
    file.write_bytes(private_pem(identity) + chain)
    context.load_cert_chain(file)
    return context


def bare(certificate: bytes) -> ssl.SSLContext:
    """A client of somebody else's making, with no certificate so far, who trusts this one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate.decode())
    return context


# --- who is let in -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("identity", "certificate"), [(ALICE, ALICE_PEM), (BOB, BOB_PEM)])
def test_both_ends_know_each_other_by_their_keys(identity: Identity, certificate: bytes) -> None:
    server, client = met(the_server(), a_client(identity, certificate))
    assert (server.key, client.key) == (identity.public, SERVER.public)
    assert client.received == GREETING
    assert server.version == client.version == "TLSv1.3"


@pytest.mark.parametrize("flags", [0, ssl.VERIFY_X509_STRICT, ssl.VERIFY_X509_PARTIAL_CHAIN])
def test_other_settings_of_openssl_accept_the_certificates_too(flags: int) -> None:
    """Python sets both flags from 3.13 on, and neither before."""
    server, client = the_server(), a_client()
    for context in (server, client):
        context.verify_flags = ssl.VerifyFlags(flags | ssl.VERIFY_X509_TRUSTED_FIRST)
    seen_by_server, seen_by_client = met(server, client)
    assert (seen_by_server.key, seen_by_client.key) == (ALICE.public, SERVER.public)


def test_our_contexts_set_both_flags() -> None:
    both = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    for context in (the_server(), a_client()):
        assert context.verify_flags & both == both
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_3
        assert context.options & ssl.OP_NO_COMPRESSION


def test_der_serves_as_well_as_pem() -> None:
    der = [ssl.PEM_cert_to_DER_cert(pem.decode()) for pem in (SERVER_PEM, ALICE_PEM)]
    server = server_context(SERVER, der[0], [der[1]])
    seen, _ = met(server, client_context(ALICE, der[1], der[0]))
    assert seen.key == ALICE.public


def test_names_of_hosts_are_not_compared() -> None:
    """The key is pinned. A name is sent by a caller who has one, and means nothing."""

    async def main() -> bytes:
        ours, theirs = trio.testing.memory_stream_pair()
        server = trio.SSLStream(ours, the_server(), server_side=True)
        client = trio.SSLStream(theirs, a_client(), server_hostname="example.org")
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.do_handshake)
                nursery.start_soon(client.do_handshake)
        return peer_key(client)

    assert trio.run(main) == SERVER.public


def test_nothing_is_resumed() -> None:
    """A ticket would be in what the server sends first; without one, the client has no session to bring."""

    async def main() -> tuple[Any, bool, Any]:
        ours, theirs = trio.testing.memory_stream_pair()
        server = trio.SSLStream(ours, the_server(), server_side=True)
        client = trio.SSLStream(theirs, a_client())
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.do_handshake)
                nursery.start_soon(client.do_handshake)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, GREETING)
                assert await client.receive_some() == GREETING
        session = client._ssl_object.session
        assert session is not None
        return session.has_ticket, client.session_reused, server.compression()

    assert trio.run(main) == (False, False, None)
    assert the_server().num_tickets == 0


# --- who is refused by the server, and learns it from the first read ------------------------------------


def assert_the_server_refuses(server: End, client: End, why: str) -> None:
    assert server.key is None
    assert server.why == why
    # The client's part of the handshake was over before the server looked.
    assert client.key == SERVER.public
    assert client.received is None
    assert client.why == "hung up"


def test_an_unknown_client_is_refused() -> None:
    server, client = met(the_server(), a_client(MALLORY, MALLORY_PEM))
    assert_the_server_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


def test_a_client_without_a_certificate_is_refused() -> None:
    server, client = met(the_server(), bare(SERVER_PEM))
    assert_the_server_refuses(server, client, "PEER_DID_NOT_RETURN_A_CERTIFICATE")


@pytest.mark.parametrize("made", [NOW - 9 * DAY, NOW + 9 * DAY], ids=["expired", "not yet valid"])
def test_a_client_whose_certificate_is_not_valid_now_is_refused(made: int) -> None:
    other = make_certificate(ALICE, now=made, days=5)
    server = server_context(SERVER, SERVER_PEM, [other])
    seen_by_server, seen_by_client = met(server, a_client(ALICE, other))
    assert_the_server_refuses(seen_by_server, seen_by_client, "CERTIFICATE_VERIFY_FAILED")


def test_another_certificate_of_a_pinned_key_is_refused() -> None:
    """What is pinned is the certificate: one with later dates has to be enrolled."""
    renewed = make_certificate(ALICE, now=NOW + 5)
    server, client = met(the_server(), a_client(ALICE, renewed))
    assert_the_server_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


def issued(by: Identity, *, subject: Identity, key: Identity, like: bytes) -> bytes:
    """A certificate that names `subject`, has the key of `key`, and is signed by `by` in its own name."""
    template = x509.load_pem_x509_certificate(like)
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who.public.hex())]) for who in (by, subject)
    ]
    public = Ed25519PrivateKey.from_private_bytes(key.secret()).public_key()
    now = datetime.fromtimestamp(NOW, UTC)
    builder = x509.CertificateBuilder(names[0], names[1], public, template.serial_number)
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    for extension in template.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signer = Ed25519PrivateKey.from_private_bytes(by.secret())
    return builder.sign(signer, None).public_bytes(Encoding.PEM)


def test_the_right_subject_with_another_key_is_refused(tmp_path: Path) -> None:
    """Mallory signs herself a certificate in Alice's name, down to the serial number."""
    forged = x509.load_pem_x509_certificate(ALICE_PEM)
    builder = x509.CertificateBuilder(
        forged.issuer,
        forged.subject,
        Ed25519PrivateKey.from_private_bytes(MALLORY.secret()).public_key(),
        forged.serial_number,
        forged.not_valid_before_utc,
        forged.not_valid_after_utc,
        list(forged.extensions),
    )
    key = Ed25519PrivateKey.from_private_bytes(MALLORY.secret())
    chain = builder.sign(key, None).public_bytes(Encoding.PEM)
    server, client = met(the_server(), with_chain(bare(SERVER_PEM), chain, MALLORY, tmp_path))
    assert_the_server_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize("whole_chain", [True, False])
def test_a_member_cannot_vouch_for_somebody_else(tmp_path: Path, whole_chain: bool) -> None:
    """Alice signs a certificate of Mallory's key. She is pinned, but no authority."""
    leaf = issued(ALICE, subject=MALLORY, key=MALLORY, like=ALICE_PEM)
    chain = leaf + (ALICE_PEM if whole_chain else b"")
    server, client = met(the_server(), with_chain(bare(SERVER_PEM), chain, MALLORY, tmp_path))
    assert_the_server_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


def test_a_client_of_tls_12_is_refused(tmp_path: Path) -> None:
    old = with_chain(bare(SERVER_PEM), ALICE_PEM, ALICE, tmp_path)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    server, client = met(the_server(), old)
    assert (server.key, client.key) == (None, None)
    assert server.why == "UNSUPPORTED_PROTOCOL"


# --- whom a client refuses ---------------------------------------------------------------------------


def assert_the_client_refuses(server: End, client: End, why: str) -> None:
    assert (client.key, client.received) == (None, None)
    assert client.why == why
    assert server.key is None
    assert server.why == "hung up"


@pytest.mark.parametrize(("identity", "certificate"), [(MALLORY, MALLORY_PEM), (BOB, BOB_PEM)])
def test_another_server_is_refused(identity: Identity, certificate: bytes) -> None:
    """Not even another member of the registry may play the server."""
    server, client = met(server_context(identity, certificate, [ALICE_PEM]), a_client())
    assert_the_client_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize("made", [NOW - 9 * DAY, NOW + 9 * DAY], ids=["expired", "not yet valid"])
def test_a_server_whose_certificate_is_not_valid_now_is_refused(made: int) -> None:
    other = make_certificate(SERVER, now=made, days=5)
    server, client = met(server_context(SERVER, other, [ALICE_PEM]), client_context(ALICE, ALICE_PEM, other))
    assert_the_client_refuses(server, client, "CERTIFICATE_VERIFY_FAILED")


def test_a_server_of_tls_12_is_refused(tmp_path: Path) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    server, client = met(with_chain(old, SERVER_PEM, SERVER, tmp_path), a_client())
    assert (server.key, client.key) == (None, None)
    assert server.why == "UNSUPPORTED_PROTOCOL"


# --- making contexts ---------------------------------------------------------------------------------

MAKERS: list[Callable[[Identity, bytes], ssl.SSLContext]] = [
    lambda identity, certificate: server_context(identity, certificate, [ALICE_PEM]),
    lambda identity, certificate: client_context(identity, certificate, SERVER_PEM),
]


@pytest.mark.parametrize("make", MAKERS)
def test_key_and_certificate_belong_together(make: Callable[[Identity, bytes], ssl.SSLContext]) -> None:
    with pytest.raises(ParameterError, match="belongs to another key than the private key"):
        make(BOB, MALLORY_PEM)


def test_only_certificates_of_our_form_are_trusted() -> None:
    foreign = issued(ALICE, subject=MALLORY, key=MALLORY, like=ALICE_PEM)
    for trusted in (foreign, b"hello", ALICE_PEM + BOB_PEM):
        with pytest.raises(CertificateError):
            server_context(SERVER, SERVER_PEM, [BOB_PEM, trusted])
        with pytest.raises(CertificateError):
            client_context(ALICE, ALICE_PEM, trusted)


def test_a_server_has_clients() -> None:
    with pytest.raises(ParameterError, match="would refuse every client"):
        server_context(SERVER, SERVER_PEM, [])


def test_exactly_the_clients_are_trusted() -> None:
    assert the_server().cert_store_stats()["x509"] == 2
    assert a_client().cert_store_stats()["x509"] == 1


def test_no_descriptor_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        the_server()
        a_client()
    assert len(os.listdir("/dev/fd")) == before
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_names_for_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_DESCRIPTORS", str(tmp_path))
    with pytest.raises(
        LocalError, match=r"OpenSSL cannot read from .*: No such file or directory; is .* mounted"
    ):
        a_client()


def test_there_is_no_peer_before_the_handshake() -> None:
    async def main() -> None:
        ours, _ = trio.testing.memory_stream_pair()
        with pytest.raises(trio.NeedHandshakeError):
            peer_key(trio.SSLStream(ours, the_server(), server_side=True))

    trio.run(main)
