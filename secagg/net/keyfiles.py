"""Key files: an identity's private key, and the certificate that it gives to others.

A private key is PEM, PKCS #8, Ed25519, unencrypted, and open to its owner alone (mode 0600), so that `openssl
pkey` can make and read it as well. It is never overwritten: who loses it has to be enrolled again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.errors import CertificateError, KeyFileError
from secagg.keys import Identity
from secagg.net.certificates import certificate_pem
from secagg.net.files import PRIVATE, PUBLIC, Kind

_REMEDY: Final = "make one with secagg keygen, or correct the path"
KEY: Final = Kind("a private key", _REMEDY, KeyFileError)
CERTIFICATE: Final = Kind("a certificate", _REMEDY, KeyFileError)

_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_OTHER_KEY: Final = "holds another kind of key than Ed25519"
# By the label of the one block of PEM in the file.
_NO_KEY: Final = {
    b"CERTIFICATE": "is a certificate, not the private key that belongs to it",
    b"PUBLIC KEY": "is a public key, not the private key that belongs to it",
    b"ENCRYPTED PRIVATE KEY": "is encrypted, and nobody is there to type the password",
}


def private_pem(identity: Identity) -> bytes:
    """The private key of `identity`, for a key file or for OpenSSL. Nobody else may see it."""
    key = Ed25519PrivateKey.from_private_bytes(identity.secret())
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


def write_key(path: Path, identity: Identity) -> None:
    """Raises `KeyFileError` if there is such a file already, whatever it is."""
    KEY.create(path, private_pem(identity), mode=PRIVATE)


def read_key(path: Path) -> Identity:
    """The identity whose private key is in the file; raises `KeyFileError` if there is none."""
    data = KEY.read(path, secret=_holds_private_key)
    labels = _LABEL.findall(data)
    if labels != [b"PRIVATE KEY"]:
        raise KeyFileError(f"{path} {_what_instead(labels)}; {_REMEDY}")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):  # their texts may quote the file
        raise KeyFileError(f"{path} is damaged, or {_OTHER_KEY.replace('holds', 'of')}; {_REMEDY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} {_OTHER_KEY}; {_REMEDY}")
    return Identity(key)


def write_certificate(path: Path, certificate: bytes) -> None:
    """Raises `KeyFileError` if there is such a file already, whatever it is."""
    CERTIFICATE.create(path, certificate, mode=PUBLIC)


def read_certificate(path: Path) -> bytes:
    """The certificate in the file, as PEM; raises `KeyFileError` unless it is as `make_certificate` makes it.

    Whether it has expired is for `check_dates` to say.
    """
    data = CERTIFICATE.read(path)
    if _holds_private_key(data):
        raise KeyFileError(
            f"{path} is a private key, which nobody else may see; give its certificate instead"
        )
    try:
        return certificate_pem(data)
    except CertificateError as error:
        raise KeyFileError(f"{path} is {error}; {_REMEDY}") from None


def _holds_private_key(data: bytes) -> bool:
    """Of any kind, encrypted or not."""
    return any(label.endswith(b"PRIVATE KEY") for label in _LABEL.findall(data))


def _what_instead(labels: list[bytes]) -> str:
    """Why a file with these blocks of PEM is not the key file of an identity."""
    if not labels:
        return "is not a private key: there is no PEM in it"
    if len(labels) > 1:
        return f"holds {len(labels)} blocks of PEM, and a key file holds one"
    return _NO_KEY.get(labels[0], _OTHER_KEY)
