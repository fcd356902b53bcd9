"""The files of identities in a deployment: private keys, certificates and the registry of members.

A file with a private key is PEM, PKCS #8, Ed25519, unencrypted, with mode 0600, as `openssl pkey` makes and
reads it. It is never overwritten: an identity whose key is lost has to be enrolled again.

`registry.secagg` is the registry: versioned, signed by the authority, read by clients and servers.
`registry.pem` beside it holds one certificate for each member, so that a server can authenticate its clients
in TLS. It is not signed, because every certificate in it is checked against the registry. The certificates
are written first, the registry last. A crash in between leaves the old registry, which clients can still use.
A server refuses the two together if their members differ; repeating the interrupted command repairs this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import errors
from secagg.errors import KeyFileError, Peer, RegistryError
from secagg.hand_over import HandOver
from secagg.identity_registry import Registry, SignedRegistry
from secagg.keys import Identity
from secagg.net.atomic_files import PRIVATE, PUBLIC, FileKind
from secagg.net.certificates import bundle_for, certificate_key, certificate_pem, private_pem, split_bundle

_KEY_REMEDY: Final = "make one with secagg keygen, or correct the path"
KEY: Final = FileKind("a private key", _KEY_REMEDY, KeyFileError)
CERTIFICATE: Final = FileKind("a certificate", _KEY_REMEDY, KeyFileError)

_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_OTHER_KEY: Final = "holds another kind of key than Ed25519"
# Why a file is not a key file, by the label of its only block of PEM.
_NO_KEY: Final = {
    b"CERTIFICATE": "is a certificate, not the private key that belongs to it",
    b"PUBLIC KEY": "is a public key, not the private key that belongs to it",
    b"ENCRYPTED PRIVATE KEY": "is encrypted, and only an unencrypted key can be used",
}


def write_key(path: Path, identity: Identity) -> None:
    """Write the private key of `identity` to a new file. Raise `KeyFileError` if it exists, or on failure."""
    KEY.create(path, private_pem(identity), mode=PRIVATE)


def read_key(path: Path) -> Identity:
    """Return the identity whose private key is in a file. Raises `KeyFileError` if the file cannot be read,
    if it does not hold just one unencrypted Ed25519 key, or if other users can access it."""
    data = KEY.read(path, secret=_holds_private_key)
    labels = _LABEL.findall(data)
    if labels != [b"PRIVATE KEY"]:
        raise KeyFileError(f"{path} {_why_not_a_key(labels)}; {_KEY_REMEDY}")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):  # their texts may quote the file
        raise KeyFileError(f"{path} is damaged, or of another kind than Ed25519; {_KEY_REMEDY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} {_OTHER_KEY}; {_KEY_REMEDY}")
    return Identity(key)


def write_certificate(path: Path, certificate: bytes) -> None:
    """Write a certificate, given as PEM, to a new file. Raise `KeyFileError` if it exists, or on failure."""
    CERTIFICATE.create(path, certificate, mode=PUBLIC)


def read_certificate(path: Path) -> bytes:
    """Return the certificate in the file as PEM, even if it has expired. Raises `KeyFileError` unless the
    certificate has the form that `make_certificate` gives it."""
    data = CERTIFICATE.read(path)
    if _holds_private_key(data):
        raise KeyFileError(f"{path} is a private key, which must stay secret; give its certificate instead")
    try:
        return certificate_pem(data)
    except errors.CertificateError as error:
        raise KeyFileError(f"{path} is {error}; {_KEY_REMEDY}") from None


def _holds_private_key(data: bytes) -> bool:
    """Return whether `data` contains a private key in PEM, of any kind, encrypted or not."""
    return any(label.endswith(b"PRIVATE KEY") for label in _LABEL.findall(data))


def _why_not_a_key(labels: list[bytes]) -> str:
    """Return an error text: why a file whose PEM blocks have these labels is not an identity's key file."""
    if not labels:
        return "is not a private key: there is no PEM in it"
    if len(labels) > 1:
        return f"holds {len(labels)} blocks of PEM, and a key file holds one"
    return _NO_KEY.get(labels[0], _OTHER_KEY)


# --- hand-overs -------------------------------------------------------------------------------------

HAND_OVER: Final = FileKind(
    "a file of hand-overs", "make it with secagg keygen --renew, or correct the path", KeyFileError
)

_NAME_DIGITS: Final = 16  # hexadecimal digits of a key in the name of a file


def hand_over_path(key: Path) -> Path:
    """Return where the statements lie that lead to the key in the file `key`: beside it."""
    return key.with_suffix(".handover")


def old_path(path: Path) -> Path:
    """Return where `secagg keygen --renew` keeps what was in the key or certificate file `path` before."""
    return path.with_suffix(f".old{path.suffix}")


def older_path(path: Path, public: bytes) -> Path:
    """Return where `secagg keygen --renew` keeps what was in `old_path(path)` before, if it belongs to key
    `public`. The name has the first digits of this key, so that no key overwrites another."""
    return path.with_suffix(f".old-{public.hex()[:_NAME_DIGITS]}{path.suffix}")


def read_all_hand_overs(path: Path) -> tuple[HandOver, ...]:
    """Return the statements in a file, one in each line, in hexadecimal; () if there is no file. Raises
    `KeyFileError` if it is not such a file."""
    if not HAND_OVER.exists(path):
        return ()
    try:
        lines = HAND_OVER.read(path).decode("ascii").splitlines()
        return tuple(HandOver.parse(bytes.fromhex(each), sender=errors.SERVER) for each in lines)
    except (ValueError, errors.MalformedMessage):
        raise KeyFileError(f"{path} is not a file of hand-overs, or is damaged; {HAND_OVER.remedy}") from None


def read_hand_overs(path: Path, owner: Peer) -> tuple[HandOver, ...]:
    """Return the statements in a file as `read_all_hand_overs` does. Raises `KeyFileError` also if one is
    about another than `owner`."""
    found = read_all_hand_overs(path)
    others = [each.owner for each in found if each.owner != owner]
    if others:
        raise KeyFileError(
            f"{path} has a hand-over of {_named(others[0])}, not of {_named(owner)}; {_undo(path, owner)}"
        )
    return found


def _undo(path: Path, owner: Peer) -> str:
    """Return what to do about statements at `path` that should be of `owner`, and are of another."""
    name, option = path.stem, "--server" if owner == errors.SERVER else f"--member {owner}"
    return (
        f"name another file, or move {name}.old.key and {name}.old.pem back to {name}.key and {name}.pem, "
        f"delete {path.name}, and run secagg keygen --renew {name} {option}"
    )


def _named(owner: Peer) -> str:
    return "the server" if owner == errors.SERVER else f"member {owner}"


def create_hand_over(path: Path, statement: HandOver) -> None:
    """Write one statement to a new file. Do nothing if it is there already. Raises `KeyFileError` on failure,
    or if there is another file."""
    if read_all_hand_overs(path) != (statement,):
        HAND_OVER.create(path, _lines([statement]), mode=PUBLIC)


def _lines(statements: Iterable[HandOver]) -> bytes:
    return "".join(f"{each.encode().hex()}\n" for each in statements).encode("ascii")


def write_hand_overs(path: Path, statements: Iterable[HandOver]) -> None:
    """Write or replace a file of statements. Raises `KeyFileError` on failure."""
    HAND_OVER.replace(path, _lines(statements), mode=PUBLIC)


# --- registries -------------------------------------------------------------------------------------

_REGISTRY_REMEDY: Final = "get it from the authority, who makes it with secagg enrol, or correct the path"
REGISTRY: Final = FileKind("a registry", _REGISTRY_REMEDY, RegistryError)
BUNDLE: Final = FileKind("a file of certificates", _REGISTRY_REMEDY, RegistryError)


def read_registry(path: Path, authority_certificate: Path, now: int) -> Registry:
    """Return the registry in a file, if the authority signed it and it is valid at `now`, in Unix seconds.

    Raises `KeyFileError` if the authority's certificate cannot be used, `ForeignRegistry` if the authority
    did not sign the file, `ExpiredRegistry` if it has expired, and `RegistryError` if it is not a registry.
    """
    registry = read_signed(path, authority=certificate_key(read_certificate(authority_certificate)))
    try:
        registry.check_current(now)
    except errors.ExpiredRegistry as error:
        raise errors.ExpiredRegistry(f"{path}: {error}") from None
    return registry


def read_signed(path: Path, *, authority: bytes) -> Registry:
    """Return the registry in a file, expired or not. Raises `RegistryError` if it is not a registry, and
    `ForeignRegistry` if the public key `authority` did not sign it."""
    try:
        signed = SignedRegistry.parse(REGISTRY.read(path))
    except errors.WrongRegistry:
        raise RegistryError(f"{path} is not a registry, or is damaged; {_REGISTRY_REMEDY}") from None
    try:
        return signed.verified(authority=authority)
    except errors.WrongRegistry:
        raise errors.ForeignRegistry(
            f"{path} is foreign: this authority (key {authority.hex()}) did not sign it, or it was changed "
            f"since; {_REGISTRY_REMEDY}"
        ) from None


def bundle_path(path: Path) -> Path:
    """Return `path` with suffix .pem, for members' certificates. Raises `RegistryError` if `path` has it."""
    if path.suffix == ".pem" or not path.name:
        raise RegistryError(f"{path} cannot be a registry: .pem is for the members' certificates beside it")
    return path.with_suffix(".pem")


def read_bundle(path: Path, registry: Registry) -> dict[int, bytes]:
    """Return the members' certificates as PEM by member id, from the file beside the registry at `path`.
    Raises `RegistryError` unless the certificates are those of the members of `registry`."""
    beside = bundle_path(path)
    try:
        return bundle_for(registry, split_bundle(BUNDLE.read(beside)))
    except errors.CertificateError as error:
        raise RegistryError(
            f"{beside} does not fit registry {registry.version}: {error}; have the authority run secagg "
            "enrol again, and take both files"
        ) from None


def write_registry(
    path: Path, registry: Registry, authority: Identity, certificates: Mapping[int, bytes]
) -> None:
    """Write `registry`, signed by `authority`, to `path`, and its members' `certificates` (PEM by id) to the
    file beside it; replace old files. Raises `CertificateError` unless each member has one certificate."""
    bundle = bundle_for(registry, certificates.values())
    BUNDLE.replace(bundle_path(path), b"".join(bundle.values()), mode=PUBLIC)
    REGISTRY.replace(path, registry.sign(authority), mode=PUBLIC)
