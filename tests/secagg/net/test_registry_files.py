"""The registry's two files: signed, current, and fitting each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg.errors import ExpiredRegistry, ForeignRegistry, KeyFileError, RegistryError
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_identity
from secagg.net import identity_and_registry_files
from secagg.net.atomic_files import FileKind
from secagg.net.certificates import make_certificate
from secagg.net.identity_and_registry_files import (
    bundle_path,
    read_bundle,
    read_registry,
    read_signed,
    write_certificate,
    write_registry,
)

NOW = 1_800_000_000
AUTHORITY = seeded_identity(b"registry file", 99)
IDENTITIES = {k: seeded_identity(b"registry file", k) for k in range(3)}
CERTIFICATES = {k: make_certificate(identity, now=NOW) for k, identity in IDENTITIES.items()}


def registry(*members: int, version: int = 1, expires: int = 0) -> Registry:
    return Registry(version, {k: IDENTITIES[k].public for k in members}, expires)


class Place:
    """A folder with a registry of members 0 and 1."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "registry.secagg"
        self.authority = folder / "authority.pem"
        write_certificate(self.authority, make_certificate(AUTHORITY, now=NOW))
        self.write(registry(0, 1))

    def write(self, new: Registry) -> None:
        write_registry(self.path, new, AUTHORITY, {k: CERTIFICATES[k] for k in new.members})

    def read(self, now: int = NOW) -> Registry:
        return read_registry(self.path, self.authority, now)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_written_is_read(place: Place) -> None:
    assert place.read() == registry(0, 1)
    assert read_bundle(place.path, place.read()) == {0: CERTIFICATES[0], 1: CERTIFICATES[1]}
    assert bundle_path(place.path).read_bytes() == CERTIFICATES[0] + CERTIFICATES[1]


def test_a_registry_without_members_is_one(place: Place) -> None:
    place.write(registry(version=2))
    assert read_bundle(place.path, place.read()) == {}


def test_a_missing_registry(place: Place) -> None:
    place.path.unlink()
    with pytest.raises(RegistryError, match=r"registry\.secagg does not exist; get it from the authority"):
        place.read()


@pytest.mark.parametrize("data", [b"", b"hello", CERTIFICATES[0], bytes(200)])
def test_something_else_in_its_place(place: Place, data: bytes) -> None:
    place.path.write_bytes(data)
    with pytest.raises(
        RegistryError, match=r"registry\.secagg is not a registry, or is damaged; get it from"
    ):
        place.read()


def test_a_directory_in_its_place(place: Place) -> None:
    with pytest.raises(RegistryError, match="is a directory, not a registry"):
        read_registry(place.path.parent, place.authority, NOW)


def test_a_foreign_registry(place: Place) -> None:
    place.path.write_bytes(registry(0, 1).sign(IDENTITIES[2]))
    why = rf"registry\.secagg is foreign: this authority \(key {AUTHORITY.public.hex()}\) did not sign it"
    with pytest.raises(ForeignRegistry, match=why):
        place.read()


def test_a_changed_registry_is_foreign(place: Place) -> None:
    data = bytearray(place.path.read_bytes())
    data[10] ^= 1  # in the first key
    place.path.write_bytes(bytes(data))
    with pytest.raises(ForeignRegistry, match="or it was changed since"):
        place.read()


def test_an_expired_registry(place: Place) -> None:
    place.write(registry(0, 1, expires=NOW))
    assert place.read(NOW - 1).expires == NOW
    with pytest.raises(ExpiredRegistry, match=r"registry\.secagg: registry 1 expired at .*; get a newer one"):
        place.read(NOW)
    assert read_signed(place.path, authority=AUTHORITY.public).expires == NOW


def test_the_authoritys_certificate_is_needed(place: Place) -> None:
    place.authority.unlink()
    with pytest.raises(KeyFileError, match=r"authority\.pem does not exist"):
        place.read()


# --- the certificates --------------------------------------------------------------------------------


def test_missing_certificates(place: Place) -> None:
    bundle_path(place.path).unlink()
    with pytest.raises(RegistryError, match=r"registry\.pem does not exist; get it from the authority"):
        read_bundle(place.path, registry(0, 1))


@pytest.mark.parametrize(
    ("members", "why"),
    [((0, 1, 2), r"lacks certificates of 1 members \(2\)"), ((0,), "has a certificate of no member")],
)
def test_certificates_of_other_members(place: Place, members: tuple[int, ...], why: str) -> None:
    with pytest.raises(RegistryError, match=rf"registry\.pem does not fit registry 1: it {why}.*; have the"):
        read_bundle(place.path, registry(*members))


def test_the_certificates_have_a_name_of_their_own(tmp_path: Path) -> None:
    assert bundle_path(tmp_path / "clients") == tmp_path / "clients.pem"
    for path in (tmp_path / "registry.pem", Path()):
        with pytest.raises(RegistryError, match="cannot be a registry"):
            bundle_path(path)


# --- a crash between the two files -------------------------------------------------------------------


@pytest.mark.parametrize("members", [(0, 1, 2), (0,), (0, 2)])
def test_after_a_crash_the_old_registry_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch, members: tuple[int, ...]
) -> None:
    def crash(_self: FileKind, path: Path, *_args: object, **_options: object) -> None:
        if path == place.path:
            raise KeyboardInterrupt
        FileKind.create(identity_and_registry_files.BUNDLE, path.with_suffix(".new"), b"", mode=0o644)
        path.write_bytes(b"".join(CERTIFICATES[k] for k in members))

    with monkeypatch.context() as patched:
        patched.setattr(FileKind, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            place.write(registry(*members, version=2))
    assert place.read() == registry(0, 1)
    with pytest.raises(RegistryError, match="does not fit registry 1"):
        read_bundle(place.path, place.read())

    place.write(registry(*members, version=2))
    assert list(read_bundle(place.path, place.read())) == list(members)


def test_nothing_is_written_that_does_not_fit(place: Place) -> None:
    before = place.path.read_bytes(), bundle_path(place.path).read_bytes()
    with pytest.raises(Exception, match="lacks certificates"):
        write_registry(place.path, registry(0, 1, 2, version=2), AUTHORITY, {0: CERTIFICATES[0]})
    assert (place.path.read_bytes(), bundle_path(place.path).read_bytes()) == before
