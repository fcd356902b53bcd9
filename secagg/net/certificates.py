"""Self-signed certificates of identities (Ed25519 key pairs): making, checking and bundling them.

All certificates have the same form:

* The subject and the issuer are the public key in hexadecimal, so no two keys have the same subject.
* It is not a CA certificate. Otherwise peers would trust all further certificates that its owner signs.
* It may be used at both ends of TLS, for signatures only.

Ed25519 signatures have no randomness and the serial number is a hash of the key and the dates. Hence the same
identity, time and number of days give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secagg.errors import CertificateError, ParameterError
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
    """Return a certificate of `identity` as PEM, valid until `days` days after `now` (in Unix seconds), and
    from a day before `now` on, for peers whose clock is late. Raises `ParameterError` for invalid `days`."""
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
    """Return the 32-byte public key in a certificate (PEM or DER). Raises `CertificateError` unless the
    certificate is signed with this key, and has the form that `make_certificate` gives it."""
    return _checked_key(_load(certificate))


def certificate_pem(certificate: bytes) -> bytes:
    """Return a certificate (PEM or DER) as PEM without other text. Raises `CertificateError` unless it is
    self-signed, and has the form that `make_certificate` gives it."""
    loaded = _load(certificate)
    _checked_key(loaded)
    return loaded.public_bytes(Encoding.PEM)


def check_dates(certificate: bytes, *, now: int) -> None:
    """Raise `CertificateError` unless the certificate's dates include `now`, in seconds of Unix time."""
    loaded, moment = _load(certificate), datetime.fromtimestamp(now, UTC)
    begin, end = loaded.not_valid_before_utc, loaded.not_valid_after_utc
    if moment < begin:
        raise CertificateError(f"a certificate that is not valid before {begin:%Y-%m-%d %H:%M} UTC")
    if moment >= end:
        raise CertificateError(f"a certificate that expired at {end:%Y-%m-%d %H:%M} UTC")


def expiry(certificate: bytes) -> int:
    """Return the end of a certificate's validity in Unix seconds. Raises `CertificateError` if malformed."""
    return int(_load(certificate).not_valid_after_utc.timestamp())


# --- the certificates of all members ---------------------------------------------------------------


def bundle_for(registry: Registry, certificates: Iterable[bytes]) -> dict[int, bytes]:
    """Return the certificate of each member of `registry` as PEM, by member id in ascending order. Raises
    `CertificateError` unless `certificates` has exactly one for every member's key, and no other."""
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
    """Return a certificate's serial number: a positive number, hashed from the public key and the dates."""
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
    """Return the private key of `identity` as unencrypted PEM, for a key file or OpenSSL. Keep it secret."""
    key = Ed25519PrivateKey.from_private_bytes(identity.secret())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
