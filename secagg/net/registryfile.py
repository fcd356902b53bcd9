"""The registry's two files: who is a member, signed by the authority, and the members' certificates.

`registry.secagg` is what counts: versioned, signed, read by clients and servers. `registry.pem` beside it is
what a server needs in addition, in order to know its clients in TLS: one certificate for each member. It is
not signed, and need not be, because every certificate in it is checked against the registry.

The certificates are written first, the registry last. A crash in between leaves the old registry, which is
still good for clients; a server refuses the two together if their members differ, and the command that was
interrupted puts it right when it is given once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from secagg.errors import CertificateError, ExpiredRegistry, ForeignRegistry, RegistryError, WrongRegistry
from secagg.keys import Identity
from secagg.net.certificates import bundle_for, certificate_key, split_bundle
from secagg.net.files import PUBLIC, Kind
from secagg.net.keyfiles import read_certificate
from secagg.registry import Registry, SignedRegistry

_REMEDY: Final = "get it from the authority, who makes it with secagg enrol, or correct the path"
REGISTRY: Final = Kind("a registry", _REMEDY, RegistryError)
BUNDLE: Final = Kind("a file of certificates", _REMEDY, RegistryError)


def read_registry(path: Path, authority_certificate: Path, now: int) -> Registry:
    """The registry in a file, which the authority signed and which has not expired at `now`.

    Raises `KeyFileError` if the authority's certificate cannot be used, `ForeignRegistry`, `ExpiredRegistry`,
    or `RegistryError` for everything else that is wrong with the file.
    """
    registry = read_signed(path, authority=certificate_key(read_certificate(authority_certificate)))
    try:
        registry.check_current(now)
    except ExpiredRegistry as error:
        raise ExpiredRegistry(f"{path}: {error}") from None
    return registry


def read_signed(path: Path, *, authority: bytes) -> Registry:
    """The registry in a file, expired or not, signed by the key `authority`."""
    try:
        signed = SignedRegistry.parse(REGISTRY.read(path))
    except WrongRegistry:
        raise RegistryError(f"{path} is not a registry, or is damaged; {_REMEDY}") from None
    try:
        return signed.verified(authority=authority)
    except WrongRegistry:
        raise ForeignRegistry(
            f"{path} is foreign: this authority (key {authority.hex()}) did not sign it, or it was changed "
            f"since; {_REMEDY}"
        ) from None


def bundle_path(path: Path) -> Path:
    """Where the certificates of the members of the registry at `path` are."""
    if path.suffix == ".pem" or not path.name:
        raise RegistryError(f"{path} cannot be a registry: .pem is for the members' certificates beside it")
    return path.with_suffix(".pem")


def read_bundle(path: Path, registry: Registry) -> dict[int, bytes]:
    """Member -> certificate, from the file beside the registry's at `path`; raises `RegistryError`."""
    beside = bundle_path(path)
    try:
        return bundle_for(registry, split_bundle(BUNDLE.read(beside)))
    except CertificateError as error:
        raise RegistryError(
            f"{beside} does not fit registry {registry.version}: {error}; have the authority run secagg "
            "enrol again, and take both files"
        ) from None


def write_registry(
    path: Path, registry: Registry, authority: Identity, certificates: Mapping[int, bytes]
) -> None:
    """Replace both files, in the order that the top of this module explains."""
    bundle = bundle_for(registry, certificates.values())
    BUNDLE.replace(bundle_path(path), b"".join(bundle.values()), mode=PUBLIC)
    REGISTRY.replace(path, registry.sign(authority), mode=PUBLIC)
