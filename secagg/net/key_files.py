"""Files of a deployment: private keys, certificates and the registry.

After a crash while a file is written, either the old or the new file exists, and it is complete. An error is
one sentence that names the file and says what to do. No error quotes the contents of the file.

A file with a private key is PEM, PKCS #8, Ed25519, unencrypted, with mode 0600, as `openssl pkey` makes and
reads it. It is never overwritten: an identity whose key is lost has to be enrolled again.

`registry.secagg` is the registry: versioned, signed by the authority, read by clients and servers.
`registry.pem` beside it holds one certificate for each member, so that a server can authenticate its clients
in TLS. It is not signed, because every certificate in it is checked against the registry. The certificates
are written first, the registry last. A crash in between leaves the old registry, which clients can still use.
A server refuses the two together if their members differ; repeating the interrupted command repairs this.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import errors
from secagg.errors import KeyFileError, LocalError, RegistryError
from secagg.identity_registry import Registry, SignedRegistry
from secagg.keys import Identity
from secagg.net.tls import bundle_for, certificate_key, certificate_pem, private_pem, split_bundle

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644
_OTHERS: Final = 0o077


@dataclass(frozen=True)
class FileKind:
    """One kind of file, and how to read and write it.

    `name` (with an article) and `remedy` (what to do without such a file) are for errors of type `error`.
    """

    name: str
    remedy: str
    error: type[LocalError]

    def read(self, path: Path, *, secret: Callable[[bytes], bool] = lambda _: False) -> bytes:
        """Return the contents. Raise `error` if `secret(contents)` is true and others can access the file."""
        with self._readable_errors(path, "read"):
            # Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                mode = os.fstat(handle).st_mode
                if not stat.S_ISREG(mode):
                    found = "a directory" if stat.S_ISDIR(mode) else "a special file"
                    raise self.error(f"{path} is {found}, not {self.name}")
                with open(handle, "rb", closefd=False) as file:
                    data = file.read()
                # A file without a secret is a wrong file: the advice to change its mode would not help.
                if secret(data):
                    self._check_private(path, mode)
                return data
            finally:
                os.close(handle)

    def create(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a new file, and return when it is on disk. Raise `error` if `path` exists already."""
        with self._readable_errors(path, "written"), _draft(path, data, mode) as draft:
            os.link(draft, path)  # unlike a rename, this fails if the name is taken

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a file, or replace it atomically: readers see either all old data or all new data."""
        with self._readable_errors(path, "written"), _draft(path, data, mode) as draft:
            draft.replace(path)

    def _check_private(self, path: Path, mode: int) -> None:
        if mode & _OTHERS:
            raise self.error(
                f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}); run chmod 600 on it, and "
                "make another key if this one may have been copied"
            )

    @contextmanager
    def _readable_errors(self, path: Path, done: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise self.error(
                f"{path} exists already, and is never overwritten; choose another name"
            ) from None
        except IsADirectoryError:
            raise self.error(f"{path} is a directory, not {self.name}") from None
        except FileNotFoundError:
            if path.parent.exists():  # some directories, such as /proc, accept no new files
                what = f"does not exist; {self.remedy}" if done == "read" else f"cannot be {done} there"
                raise self.error(f"{path} {what}") from None
            raise self.error(
                f"the directory {path.parent} does not exist; create it, or name another"
            ) from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise self.error(f"{path} cannot be {done}: {why}") from None


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write `data` to a temporary file beside `path`, and yield its path. The block renames or links it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        yield draft
    finally:
        with suppress(FileNotFoundError):  # the block has renamed it
            draft.unlink()
    _sync(path.parent)


def _sync(directory: Path) -> None:
    """Write a directory to disk, so that the names of its new files survive a crash."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """Write the private key of `identity`. Raise `KeyFileError` if `path` exists already."""
    KEY.create(path, private_pem(identity), mode=PRIVATE)


def read_key(path: Path) -> Identity:
    """Return the identity whose private key is in the file. Raise `KeyFileError` if there is no such key."""
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
    """Write a certificate, given as PEM. Raise `KeyFileError` if `path` exists already."""
    CERTIFICATE.create(path, certificate, mode=PUBLIC)


def read_certificate(path: Path) -> bytes:
    """Return the certificate in the file, as PEM. It may have expired: `check_dates` checks this.

    Raises `KeyFileError` unless the certificate has the form that `make_certificate` gives it.
    """
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
    """Return, for an error, why a file with these labels of PEM blocks is not an identity's key file."""
    if not labels:
        return "is not a private key: there is no PEM in it"
    if len(labels) > 1:
        return f"holds {len(labels)} blocks of PEM, and a key file holds one"
    return _NO_KEY.get(labels[0], _OTHER_KEY)


_REGISTRY_REMEDY: Final = "get it from the authority, who makes it with secagg enrol, or correct the path"
REGISTRY: Final = FileKind("a registry", _REGISTRY_REMEDY, RegistryError)
BUNDLE: Final = FileKind("a file of certificates", _REGISTRY_REMEDY, RegistryError)


def read_registry(path: Path, authority_certificate: Path, now: int) -> Registry:
    """Return the registry in a file. It is signed by the authority and valid at `now`, in Unix seconds.

    Raises `KeyFileError` if the authority's certificate cannot be used, `ForeignRegistry` if the authority
    did not sign the file, `ExpiredRegistry`, or `RegistryError` if the file is not a registry.
    """
    registry = read_signed(path, authority=certificate_key(read_certificate(authority_certificate)))
    try:
        registry.check_current(now)
    except errors.ExpiredRegistry as error:
        raise errors.ExpiredRegistry(f"{path}: {error}") from None
    return registry


def read_signed(path: Path, *, authority: bytes) -> Registry:
    """Return the registry in a file, expired or not. Raise if the public key `authority` did not sign it."""
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
    """Return the path of the file with the members' certificates, which is beside the registry at `path`."""
    if path.suffix == ".pem" or not path.name:
        raise RegistryError(f"{path} cannot be a registry: .pem is for the members' certificates beside it")
    return path.with_suffix(".pem")


def read_bundle(path: Path, registry: Registry) -> dict[int, bytes]:
    """Return the members' certificates as PEM by member id, from the file beside the registry at `path`.

    Raises `RegistryError` unless the certificates are those of the members of `registry`.
    """
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
    """Sign `registry` as `authority`; replace the file at `path`, and the certificates (by id) beside it."""
    bundle = bundle_for(registry, certificates.values())
    BUNDLE.replace(bundle_path(path), b"".join(bundle.values()), mode=PUBLIC)
    REGISTRY.replace(path, registry.sign(authority), mode=PUBLIC)
