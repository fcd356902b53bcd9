"""Key files: what is written is read, and whatever else somebody points us to is named for what it is."""

from __future__ import annotations

import base64
import stat
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, x25519

from secagg.errors import KeyFileError
from secagg.hand_over import HandOver
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.net.certificates import make_certificate, private_pem
from secagg.net.identity_and_registry_files import (
    create_hand_over,
    hand_over_path,
    old_path,
    older_path,
    read_all_hand_overs,
    read_certificate,
    read_hand_overs,
    read_key,
    write_certificate,
    write_hand_overs,
    write_key,
)

NOW = 1_800_000_000
ALICE = seeded_identity(b"keyfiles", 0)
SECRET = private_pem(ALICE)
CERTIFICATE = make_certificate(ALICE, now=NOW)

PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
PUBLIC_FORMAT = serialization.PublicFormat.SubjectPublicKeyInfo
PLAIN = serialization.NoEncryption()
ED25519 = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
P256 = ec.derive_private_key(5, ec.SECP256R1())


def key_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def damaged(pem: bytes) -> bytes:
    return pem.replace(b"MC4CAQ", b"MC4CAA")


NO_KEYS = {
    "empty": (b"", "is not a private key: there is no PEM in it"),
    "text": (b"hello", "is not a private key: there is no PEM in it"),
    "bytes": (bytes(range(256)), "is not a private key: there is no PEM in it"),
    "certificate": (CERTIFICATE, "is a certificate, not the private key that belongs to it"),
    "public": (
        ALICE._key.public_key().public_bytes(PEM, PUBLIC_FORMAT),
        "is a public key, not the private key",
    ),
    "encrypted": (
        ED25519.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"password")),
        "is encrypted, and only an unencrypted key can be used",
    ),
    "encrypted the old way": (
        SECRET.replace(b"KEY-----\n", b"KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n", 1),
        "is damaged, or of another kind than Ed25519",
    ),
    "two keys": (SECRET + SECRET, "holds 2 blocks of PEM, and a key file holds one"),
    "key and certificate": (SECRET + CERTIFICATE, "holds 2 blocks of PEM"),
    "elliptic": (P256.private_bytes(PEM, PKCS8, PLAIN), "holds another kind of key than Ed25519"),
    "elliptic, older": (
        P256.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN),
        "holds another kind of key than Ed25519",
    ),
    "agreement": (
        x25519.X25519PrivateKey.from_private_bytes(bytes(32)).private_bytes(PEM, PKCS8, PLAIN),
        "holds another kind of key than Ed25519",
    ),
    "longer": (
        ed448.Ed448PrivateKey.generate().private_bytes(PEM, PKCS8, PLAIN),
        "holds another kind of key",
    ),
    "ssh": (
        ED25519.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN),
        "holds another kind of key than Ed25519",
    ),
    "damaged": (damaged(SECRET), "is damaged, or of another kind than Ed25519"),
    "cut": (SECRET[:60], "is damaged, or of another kind than Ed25519"),
}


def test_a_key_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_key(tmp_path / "alice.key", ALICE)
    read = read_key(tmp_path / "alice.key")
    assert (read.public, read.secret()) == (ALICE.public, ALICE.secret())
    assert stat.S_IMODE((tmp_path / "alice.key").stat().st_mode) == 0o600


def test_a_key_file_is_what_openssl_makes(tmp_path: Path) -> None:
    """RFC 8410, section 10.3: the example of a private key."""
    example = (
        b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n"
        b"-----END PRIVATE KEY-----\n"
    )
    identity = read_key(key_file(tmp_path / "a.key", example))
    assert identity.public.hex() == "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1"
    assert private_pem(identity) == example


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    write_key(tmp_path / "alice.key", ALICE)
    with pytest.raises(KeyFileError, match=r"alice\.key exists already"):
        write_key(tmp_path / "alice.key", Identity.generate())
    with pytest.raises(KeyFileError, match=r"alice\.key exists already"):
        write_certificate(tmp_path / "alice.key", CERTIFICATE)
    assert read_key(tmp_path / "alice.key").public == ALICE.public


@pytest.mark.parametrize("name", NO_KEYS)
def test_something_else_is_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    data, why = NO_KEYS[name]
    with pytest.raises(KeyFileError, match=rf"bad\.key {why}.*; make one with secagg keygen"):
        read_key(key_file(tmp_path / "bad.key", data))


@pytest.mark.parametrize("name", NO_KEYS)
def test_no_error_shows_what_is_in_the_file(tmp_path: Path, name: str) -> None:
    data, _ = NO_KEYS[name]
    with pytest.raises(KeyFileError) as caught:
        read_key(key_file(tmp_path / "bad.key", data))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    secrets = [ALICE.secret(), ED25519.private_bytes_raw(), *data.splitlines()[1:-1]]
    for secret in filter(None, secrets):
        for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]):
            assert form not in shown


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "alice.key", ALICE)
    (tmp_path / "alice.key").chmod(0o640)
    with pytest.raises(KeyFileError, match=r"alice\.key is open to other users .* run chmod 600"):
        read_key(tmp_path / "alice.key")


@pytest.mark.parametrize("name", ["certificate", "public", "text"])
def test_a_file_that_need_not_be_secret_is_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    """And nobody is told to run chmod on a certificate."""
    data, why = NO_KEYS[name]
    key_file(tmp_path / "bad.key", data).chmod(0o644)
    with pytest.raises(KeyFileError, match=rf"bad\.key {why}"):
        read_key(tmp_path / "bad.key")


@pytest.mark.parametrize("name", ["encrypted", "elliptic, older", "key and certificate"])
def test_a_secret_of_another_kind_must_not_be_open_either(tmp_path: Path, name: str) -> None:
    key_file(tmp_path / "bad.key", NO_KEYS[name][0]).chmod(0o644)
    with pytest.raises(KeyFileError, match=r"bad\.key is open to other users"):
        read_key(tmp_path / "bad.key")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"alice\.key does not exist; make one with secagg keygen"):
        read_key(tmp_path / "alice.key")


# --- certificates ------------------------------------------------------------------------------------


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_certificate(tmp_path / "alice.pem", CERTIFICATE)
    assert read_certificate(tmp_path / "alice.pem") == CERTIFICATE
    assert (tmp_path / "alice.pem").stat().st_mode & 0o600 == 0o600


def test_words_around_a_certificate_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "alice.pem").write_bytes("Für Alice\n".encode() + CERTIFICATE + b"the end\n")
    assert read_certificate(tmp_path / "alice.pem") == CERTIFICATE


@pytest.mark.parametrize("data", [b"", b"hello", CERTIFICATE[:100], CERTIFICATE * 2, NO_KEYS["public"][0]])
def test_something_else_is_not_a_certificate(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.pem").write_bytes(data)
    with pytest.raises(KeyFileError, match=r"bad\.pem is not a certificate; make one with secagg keygen"):
        read_certificate(tmp_path / "bad.pem")


@pytest.mark.parametrize("data", [SECRET, SECRET + CERTIFICATE, NO_KEYS["encrypted"][0]])
def test_a_private_key_in_place_of_a_certificate_is_a_warning(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.pem").write_bytes(data)
    with pytest.raises(KeyFileError, match=r"bad\.pem is a private key, which must stay secret"):
        read_certificate(tmp_path / "bad.pem")


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"alice\.pem does not exist; make one with secagg keygen"):
        read_certificate(tmp_path / "alice.pem")


# --- hand-overs ---------------------------------------------------------------------------------------


def test_hand_overs_come_back_from_their_file(tmp_path: Path) -> None:
    one, two, three = (Identity.generate() for _ in range(3))
    statements = (HandOver.sign(7, one, two.public), HandOver.sign(7, two, three.public))
    path = hand_over_path(tmp_path / "client.key")
    assert path == tmp_path / "client.handover"
    assert read_hand_overs(path, 7) == ()
    write_hand_overs(path, statements)
    assert read_hand_overs(path, 7) == read_all_hand_overs(path) == statements
    with pytest.raises(KeyFileError, match=r"of member 7, not of the server; .* --renew client --server$"):
        read_hand_overs(path, "server")
    with pytest.raises(KeyFileError, match=r"delete client\.handover, .* --renew client --member 8$"):
        read_hand_overs(path, 8)


@pytest.mark.parametrize("data", [b"no hex\n", b"00\n", b"\xff", b"\n"])
def test_another_file_is_no_file_of_hand_overs(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(KeyFileError, match="not a file of hand-overs"):
        read_all_hand_overs(path)


def test_a_new_hand_over_overwrites_nothing(tmp_path: Path) -> None:
    one, two, three = (Identity.generate() for _ in range(3))
    path, statement = tmp_path / "hand-over", HandOver.sign(7, one, two.public)
    create_hand_over(path, statement)
    create_hand_over(path, statement)
    with pytest.raises(KeyFileError, match="exists already"):
        create_hand_over(path, HandOver.sign(7, one, three.public))
    assert read_all_hand_overs(path) == (statement,)


def test_the_old_pair_lies_beside_the_new_one() -> None:
    assert old_path(Path("a/client-3.key")) == Path("a/client-3.old.key")
    assert old_path(Path("client-3.pem")) == Path("client-3.old.pem")
    assert older_path(Path("a/b.key"), bytes(range(32))) == Path("a/b.old-0001020304050607.key")
