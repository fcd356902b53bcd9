"""TLS contexts: version 1.3 only, both ends show a certificate, and each end has pinned the other's.

A context trusts exactly the certificates that it is given. Names in them are not compared with names of
hosts: whoever can answer the handshake has a key that was expected, wherever it runs. Nothing is resumed, so
that every connection proves its keys afresh.

In TLS 1.3, a client is done with the handshake before the server has looked at its certificate. A client that
the server refuses therefore learns so from its first read.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from secagg.errors import LocalError, ParameterError
from secagg.keys import Identity
from secagg.net.certificates import certificate_key, certificate_pem
from secagg.net.keyfiles import private_pem

# With PARTIAL_CHAIN, a certificate is trusted by being pinned, not by having signed itself. STRICT refuses
# certificates that break the rules of RFC 5280; newer versions of Python set both of their own accord.
_FLAGS: Final = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT

_DESCRIPTORS: Final = "/dev/fd"


def server_context(identity: Identity, certificate: bytes, clients: Sequence[bytes]) -> ssl.SSLContext:
    """A server with this identity, for clients that have one of these certificates (PEM) and its key.

    The context is for `open_server`. Raises `CertificateError` for what is no certificate, and
    `ParameterError` for that of another identity, or no clients at all.

    >>> import time
    >>> from secagg.net.certificates import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> server_context(server, pem[server], [pem[client]]).minimum_version.name
    'TLSv1_3'
    """
    if not clients:
        raise ParameterError("a server without clients' certificates would refuse everybody")
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, certificate, clients)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    return context


def client_context(identity: Identity, certificate: bytes, server: bytes) -> ssl.SSLContext:
    """A client with this identity, for the one server that has the certificate `server` (PEM) and its key.

    The context is for `open_client`. Raises `CertificateError` for what is no certificate, and
    `ParameterError` for that of another identity.

    >>> import time
    >>> from secagg.net.certificates import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> client_context(client, pem[client], pem[server]).minimum_version.name
    'TLSv1_3'
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, certificate, [server])


def peer_key(stream: trio.SSLStream[Any]) -> bytes:
    """The public key that the peer has proven to have. The handshake must be over."""
    return certificate_key(stream.getpeercert(binary_form=True))


def _context(
    protocol: int, identity: Identity, certificate: bytes, trusted: Sequence[bytes]
) -> ssl.SSLContext:
    if certificate_key(certificate) != identity.public:
        raise ParameterError("the certificate belongs to another key than the private key")
    # Nothing of another form may be trusted: it could vouch for others.
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
    """Python takes a private key from a named file only. It gets the name of a pipe, so there is no file.

    A temporary file would put the key on a disk, or need a password of its own and somebody to delete it; a
    file in memory exists on Linux alone. A pipe is on every POSIX system, and gone when it has been read.
    """
    with _piped(certificate_pem(certificate)) as chain, _piped(private_pem(identity)) as key:
        try:
            context.load_cert_chain(chain, key)
        except OSError as error:
            raise LocalError(
                f"OpenSSL cannot read from {key}: {error.strerror}; is {_DESCRIPTORS} mounted?"
            ) from None


@contextmanager
def _piped(data: bytes) -> Iterator[str]:
    """A name under which this process can read `data` once."""
    reader, writer = os.pipe()
    try:
        try:
            os.write(writer, data)  # far less than the least that a pipe holds
        finally:
            os.close(writer)
        yield f"{_DESCRIPTORS}/{reader}"
    finally:
        os.close(reader)
