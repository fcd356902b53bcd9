"""Self-signed certificates of identities, and TLS contexts that pin them.

There is no certification authority for TLS here. Every identity signs its own certificate. Its peers hold
this certificate and trust no other. Therefore all certificates have the same form:

* The subject and the issuer are the public key in hexadecimal, so no two keys have the same subject.
* It is not a CA certificate. Otherwise peers would trust all further certificates that its owner signs.
* It may be used at both ends of TLS, for signatures only.

Ed25519 signatures have no randomness and the serial number is a hash of the key and the dates. Hence the same
identity, time and number of days give the same bytes.

One key signs three kinds of strings: our own messages (`Identity.sign`), the handshakes of TLS, and its own
certificate. A signature of one kind is never valid for another, because the signed strings differ in their
first byte. Ed25519 signs each string itself, not its hash, so hash collisions do not matter:

* `framed` begins with the length of a short label in 8 bytes: 0x00;
* TLS 1.3 (RFC 8446, 4.4.3) begins with 64 spaces: 0x20, whichever end signs;
* a certificate is a DER sequence: 0x30.

This needs TLS 1.3. In TLS 1.2, a server signs a string that begins with 32 bytes of the client's choice.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secagg.errors import CertificateError, LocalError, ParameterError
from secagg.hashing import digest
from secagg.identity_registry import Registry
from secagg.keys import Identity

DEFAULT_DAYS: Final = 3650
MAX_DAYS: Final = 36500
_SKEW: Final = timedelta(days=1)  # by how much a verifier's clock may be behind
_SERIAL_BYTES: Final = 16  # X.509 allows at most 20
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s[^-]*-----END CERTIFICATE-----", re.DOTALL)
_IDENTIFIER_BYTES: Final = 20
_FEW: Final = 5  # members that an error lists

# Exceptions of the package cryptography for bytes that are not a valid certificate.
_MALFORMED: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def make_certificate(identity: Identity, *, now: int, days: int = DEFAULT_DAYS) -> bytes:
    """Return a certificate of `identity` as PEM, valid until `days` days after `now`, in Unix seconds.

    It is valid from one day before `now` on, for peers whose clock is late.
    """
    if not 1 <= days <= MAX_DAYS:
        raise ParameterError(f"a certificate is valid for 1 to {MAX_DAYS} days")
    key = Ed25519PrivateKey.from_private_bytes(identity.secret())
    start = datetime.fromtimestamp(now, UTC)
    first, last = start - _SKEW, start + timedelta(days=days)
    builder = x509.CertificateBuilder(_name(identity.public), _name(identity.public), key.public_key())
    builder = builder.serial_number(_serial(identity.public, first, last))
    builder = builder.not_valid_before(first).not_valid_after(last)
    for extension in _extensions(identity.public):
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def certificate_key(certificate: bytes) -> bytes:
    """Return the public key, 32 bytes, in a certificate that is PEM or DER.

    Raises `CertificateError` unless this key signed it and it has the form that `make_certificate` gives it.
    """
    return _checked_key(_load(certificate))


def certificate_pem(certificate: bytes) -> bytes:
    """Return a certificate, PEM or DER, as PEM without other text. Raises as `certificate_key` does."""
    loaded = _load(certificate)
    _checked_key(loaded)
    return loaded.public_bytes(Encoding.PEM)


def check_dates(certificate: bytes, *, now: int) -> None:
    """Raise `CertificateError` unless the certificate is valid at `now`, in seconds of Unix time."""
    loaded, moment = _load(certificate), datetime.fromtimestamp(now, UTC)
    begin, end = loaded.not_valid_before_utc, loaded.not_valid_after_utc
    if moment < begin:
        raise CertificateError(f"a certificate that is not valid before {begin:%Y-%m-%d %H:%M} UTC")
    if moment >= end:
        raise CertificateError(f"a certificate that expired at {end:%Y-%m-%d %H:%M} UTC")


def expiry(certificate: bytes) -> int:
    """Return the end of the certificate's validity, in seconds of Unix time."""
    return int(_load(certificate).not_valid_after_utc.timestamp())


# --- the certificates of all members ---------------------------------------------------------------


def bundle_for(registry: Registry, certificates: Iterable[bytes]) -> dict[int, bytes]:
    """Return the certificates of all members as PEM, by member id in ascending order.

    Raises `CertificateError` unless `certificates` has exactly one for every member, and no other.
    """
    members = {key: member for member, key in registry.members.items()}
    found: dict[int, bytes] = {}
    for certificate in certificates:
        loaded = _load(certificate)
        key = _checked_key(loaded)
        member = members.get(key)
        if member is None:
            raise CertificateError(f"it has a certificate of no member (public key {key.hex()})")
        if member in found:
            raise CertificateError(f"it has two certificates of member {member}")
        found[member] = loaded.public_bytes(Encoding.PEM)
    missing = sorted(registry.members.keys() - found.keys())
    if missing:
        listed = ", ".join(map(str, missing[:_FEW])) + (", ..." if len(missing) > _FEW else "")
        raise CertificateError(f"it lacks certificates of {len(missing)} members ({listed})")
    return {member: found[member] for member in sorted(found)}


def split_bundle(data: bytes) -> list[bytes]:
    """Return the certificates in the contents of a PEM file, each as PEM. Ignore the text between them."""
    return _BLOCK.findall(data)


# --- the form of certificates ----------------------------------------------------------------------


def _load(certificate: bytes) -> x509.Certificate:
    try:
        if certificate.startswith(b"\x30"):
            return x509.load_der_x509_certificate(certificate)
        (loaded,) = x509.load_pem_x509_certificates(certificate)
    except _MALFORMED:
        raise CertificateError("not a certificate") from None
    return loaded


def _checked_key(certificate: x509.Certificate) -> bytes:
    with suppress(*_MALFORMED):
        key = certificate.public_key()
        if isinstance(key, Ed25519PublicKey) and _is_regular(certificate, key.public_bytes_raw()):
            _check_signature(certificate)
            return key.public_bytes_raw()
    raise CertificateError("not a self-signed Ed25519 certificate as secagg keygen makes them")


def _is_regular(certificate: x509.Certificate, key: bytes) -> bool:
    names = [certificate.subject, certificate.issuer]
    return names == [_name(key)] * 2 and list(certificate.extensions) == _extensions(key)


def _check_signature(certificate: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature:
        raise CertificateError("a certificate that its own key did not sign") from None


def _name(key: bytes) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, key.hex())])


def _serial(key: bytes, first: datetime, last: datetime) -> int:
    """Return the serial number: a positive number, derived by a hash from the key and the dates."""
    dates = [int(date.timestamp()).to_bytes(8, "big", signed=True) for date in (first, last)]
    return int.from_bytes(digest("certificate serial", key, *dates)[:_SERIAL_BYTES], "big") | 1


def _extensions(key: bytes) -> list[x509.Extension[x509.ExtensionType]]:
    usage = x509.KeyUsage(True, *[False] * 8)  # digital_signature, and none of the other uses
    ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    values: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage, True),
        (ends, False),
        (x509.SubjectKeyIdentifier(digest("certificate key", key)[:_IDENTIFIER_BYTES]), False),
    ]
    return [x509.Extension(value.oid, critical, value) for value, critical in values]


def private_pem(identity: Identity) -> bytes:
    """Return the private key of `identity` as PEM, for a key file or for OpenSSL. Keep it secret."""
    key = Ed25519PrivateKey.from_private_bytes(identity.secret())
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


# PARTIAL_CHAIN makes OpenSSL trust a pinned certificate although it is not that of a CA. STRICT refuses
# certificates that break the rules of RFC 5280. Newer versions of Python set both by default.
_FLAGS: Final = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT

_DESCRIPTORS: Final = "/dev/fd"


def server_context(identity: Identity, certificate: bytes, clients: Sequence[bytes]) -> ssl.SSLContext:
    """Return the TLS context for `open_server`. The server accepts only the certificates in `clients` (PEM).

    `certificate` is that of `identity`. Raises `CertificateError` if a certificate does not have the right
    form, and `ParameterError` if `certificate` belongs to another identity or `clients` is empty.

    >>> import time
    >>> from secagg.net.tls import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> server_context(server, pem[server], [pem[client]]).minimum_version.name
    'TLSv1_3'
    """
    if not clients:
        raise ParameterError("a server without clients' certificates would refuse every client")
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, certificate, clients)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    return context


def client_context(identity: Identity, certificate: bytes, server: bytes) -> ssl.SSLContext:
    """Return the TLS context for `open_client`. The client accepts only the certificate `server` (PEM).

    `certificate` is that of `identity`. Raises `CertificateError` if a certificate does not have the right
    form, and `ParameterError` if `certificate` belongs to another identity.

    >>> import time
    >>> from secagg.net.tls import make_certificate
    >>> server, client = Identity.generate(), Identity.generate()
    >>> pem = {each: make_certificate(each, now=int(time.time())) for each in (server, client)}
    >>> client_context(client, pem[client], pem[server]).minimum_version.name
    'TLSv1_3'
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, certificate, [server])


def peer_key(stream: trio.SSLStream[Any]) -> bytes:
    """Return the peer's public key. Call this after the handshake: it proves that the peer has the key."""
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
    """Load the certificate and the private key of `identity` into `context`, through pipes.

    Python loads a private key only from a path. A temporary file would put the key on a disk, and a file in
    memory exists only on Linux. A pipe has a path on every POSIX system, and its data can be read once.
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
    """Yield a path from which this process can read `data` once."""
    reader, writer = os.pipe()
    try:
        try:
            os.write(writer, data)  # far less than the smallest capacity of a pipe
        finally:
            os.close(writer)
        yield f"{_DESCRIPTORS}/{reader}"
    finally:
        os.close(reader)
