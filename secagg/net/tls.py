"""TLS 1.3 contexts that accept only given self-signed certificates.

There is no certification authority for TLS here. Every identity signs its own certificate. Its peers hold
this certificate and trust no other.

One key signs three kinds of strings: our own messages (`Identity.sign`), the handshakes of TLS, and its own
certificate. A signature of one kind is never valid for another, because the signed strings differ in their
first byte. Ed25519 signs each string itself, not its hash, so hash collisions do not matter:

* our own messages begin with the length of a short label, as 8 big-endian bytes: 0x00;
* TLS 1.3 (RFC 8446, 4.4.3) begins with 64 spaces: 0x20, whichever end signs;
* a certificate is a DER sequence: 0x30.

This needs TLS 1.3: in TLS 1.2, a server signs a string that begins with 32 bytes of the client's choice.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from secagg.errors import LocalError, ParameterError
from secagg.hashing import digest
from secagg.keys import Identity
from secagg.net.certificates import certificate_key, certificate_pem, private_pem

# PARTIAL_CHAIN makes OpenSSL trust a pinned certificate although it is not that of a CA. STRICT refuses
# certificates that break the rules of RFC 5280. Newer versions of Python set both by default.
_FLAGS: Final = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT

_DESCRIPTORS: Final = "/dev/fd"
_NAME_BYTES: Final = 16


def server_context(
    identity: Identity,
    certificate: bytes,
    clients: Sequence[bytes],
    *,
    previous: Sequence[tuple[Identity, bytes]] = (),
) -> ssl.SSLContext:
    """Return the TLS context for `open_server`. The server accepts only the certificates in `clients` (PEM).
    `certificate` is the server's own, made for `identity`. `previous` has earlier identities of the server,
    with their certificates: a client that still pins one of these gets it. Raises `CertificateError` if a
    certificate does not have the form that `make_certificate` gives it, and `ParameterError` if a certificate
    belongs to another identity or `clients` is empty.

    >>> import time
    >>> from secagg.net.certificates import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> server_context(server, pem[server], [pem[client]]).minimum_version.name
    'TLSv1_3'
    """
    if not clients:
        raise ParameterError("a server without clients' certificates would refuse every client")
    context = _server_context(identity, certificate, clients)
    others = {server_name(pem): _server_context(key, pem, clients) for key, pem in previous}

    def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name in others:
            connection.context = others[name]

    context.sni_callback = choose
    return context


def _server_context(identity: Identity, certificate: bytes, clients: Sequence[bytes]) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, certificate, clients)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    return context


def server_name(certificate: bytes) -> str:
    """Return the name by which a client that pins `certificate` asks for it (TLS server name indication)."""
    return digest("server name", certificate_pem(certificate))[:_NAME_BYTES].hex() + ".secagg"


def client_context(identity: Identity, certificate: bytes, server: bytes) -> ssl.SSLContext:
    """Return the TLS context for `open_client`. The client accepts only the certificate `server` (PEM).
    `certificate` is the client's own, made for `identity`. Raises `CertificateError` if one does not have the
    form that `make_certificate` gives it, and `ParameterError` if `certificate` is of another identity.

    >>> import time
    >>> from secagg.net.certificates import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> client_context(client, pem[client], pem[server]).minimum_version.name
    'TLSv1_3'
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, certificate, [server])


@dataclass(frozen=True)
class ClientTls:
    """A client's own identity and certificate (PEM), and the server's certificate that it pins. If this is
    given to `open_client` in place of a context, the client can take up another server certificate, or a key
    of its own, while it runs. Raises as `client_context` does.

    >>> import time
    >>> from secagg.net.certificates import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> ClientTls(client, pem[client], pem[server]).server_name.endswith(".secagg")
    True
    """

    identity: Identity
    certificate: bytes
    server: bytes
    context: ssl.SSLContext = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        context = client_context(self.identity, self.certificate, self.server)
        object.__setattr__(self, "context", context)

    @property
    def server_name(self) -> str:
        return server_name(self.server)


def peer_key(stream: trio.SSLStream[Any]) -> bytes:
    """Return the peer's public key. Call this after the handshake, which proves possession of the key."""
    return certificate_key(stream.getpeercert(binary_form=True))


def _context(
    protocol: int, identity: Identity, certificate: bytes, trusted: Sequence[bytes]
) -> ssl.SSLContext:
    if certificate_key(certificate) != identity.public:
        raise ParameterError("the certificate belongs to another key than the private key")
    # `certificate_pem` refuses other forms, such as a CA, which could sign further certificates.
    pinned = b"".join(map(certificate_pem, trusted)).decode("ascii")
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.verify_flags |= _FLAGS
    context.load_verify_locations(cadata=pinned)
    _load_identity(context, identity, certificate)
    return context


def _load_identity(context: ssl.SSLContext, identity: Identity, certificate: bytes) -> None:
    """Load `certificate` and the private key of `identity` into `context`, through pipes. Python loads a
    private key only from a path. A temporary file would put it on a disk, and a file in memory exists only on
    Linux. A pipe has a path on every POSIX system. Raises `LocalError` if OpenSSL cannot read the pipe."""
    with _piped(certificate_pem(certificate)) as chain, _piped(private_pem(identity)) as key:
        try:
            context.load_cert_chain(chain, key)
        except OSError as error:
            raise LocalError(
                f"OpenSSL cannot read from {key}: {error.strerror}; is {_DESCRIPTORS} mounted?"
            ) from None


@contextmanager
def _piped(data: bytes) -> Iterator[str]:
    """Context manager: yield the path of a pipe, from which this process can read `data` once."""
    reader, writer = os.pipe()
    try:
        try:
            os.write(writer, data)  # far less than the smallest capacity of a pipe
        finally:
            os.close(writer)
        yield f"{_DESCRIPTORS}/{reader}"
    finally:
        os.close(reader)
