"""``secagg keygen`` and ``secagg enrol``: what they write, and what they refuse in one sentence."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import RegistryError
from secagg.identity_registry import MAX_ID, Registry
from secagg.keys import Identity
from secagg.net.atomic_files import FileKind
from secagg.net.certificates import certificate_key, check_dates, expiry, make_certificate
from secagg.net.identity_and_registry_files import read_bundle, read_certificate, read_key, read_registry
from sims.cli import main, options

DAY = 86400


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in a folder of their own, by the defaults for the names of files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def secagg(*args: str) -> None:
    assert main(args) == 0


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one sentence of a command that fails, without its name."""
    capsys.readouterr()
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"secagg {args[0]}: ")
    return err.removeprefix(f"secagg {args[0]}: ").rstrip()


def identities(*names: str) -> None:
    for name in names:
        secagg("keygen", name)


def registry() -> Registry:
    return read_registry(Path("registry.secagg"), Path("authority.pem"), int(time.time()))


def key(name: str) -> bytes:
    return certificate_key(read_certificate(Path(f"{name}.pem")))


def files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


# --- keygen ------------------------------------------------------------------------------------------


def test_a_key_and_its_certificate_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    secagg("keygen", "alice")

    identity, certificate = read_key(Path("alice.key")), read_certificate(Path("alice.pem"))
    assert certificate_key(certificate) == identity.public
    assert stat.S_IMODE(Path("alice.key").stat().st_mode) == 0o600
    assert sorted(files()) == ["alice.key", "alice.pem"]
    assert capsys.readouterr().out.splitlines() == [
        "private key  alice.key (keep it secret)",
        "certificate  alice.pem",
        f"public key   {identity.public.hex()}",
    ]


def test_the_secret_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    secagg("keygen", "alice")
    out, err = capsys.readouterr()
    pem = Path("alice.key").read_text().splitlines()[1]
    assert read_key(Path("alice.key")).secret().hex() not in out + err
    assert pem not in out + err


def test_two_keys_differ() -> None:
    identities("alice", "bob")
    assert key("alice") != key("bob")


@pytest.mark.parametrize(("arguments", "days"), [((), 3650), (("--days", "7"), 7)])
def test_a_certificate_is_valid_for_as_long_as_told(arguments: tuple[str, ...], days: int) -> None:
    before = int(time.time())
    secagg("keygen", "alice", *arguments)
    certificate = read_certificate(Path("alice.pem"))
    assert before + days * DAY <= expiry(certificate) <= int(time.time()) + days * DAY
    check_dates(certificate, now=before)


def test_another_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "keys").mkdir()
    secagg("keygen", "alice", "--directory", "keys")
    assert read_key(folder / "keys" / "alice.key").public.hex() in capsys.readouterr().out


@pytest.mark.parametrize("existing", ["alice.key", "alice.pem"])
def test_nothing_is_overwritten_and_nothing_is_left_behind(
    existing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(existing).write_text("old")
    said = refused(capsys, "keygen", "alice")
    assert said == f"{existing} exists already, and is never overwritten; choose another name"
    assert files() == {existing: b"old"}


def test_a_directory_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "keygen", "alice", "--directory", "nowhere")
    assert said == "the directory nowhere does not exist; create it, or name another"


def test_a_directory_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def denied(path: Any, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", denied)
    assert refused(capsys, "keygen", "alice") == "alice.key cannot be written: Permission denied"


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b", "-x", "ü"])
def test_names_that_are_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "keygen", "--", name)
    assert files() == {}


@pytest.mark.parametrize("days", ["0", "36501", "many"])
def test_days_out_of_range(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a whole number from 1 to 36500" in refused(capsys, "keygen", "a", "--days", days)


# --- enrol -------------------------------------------------------------------------------------------


def test_a_registry_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice", "bob")
    capsys.readouterr()
    secagg("enrol", "--member", "7=alice.pem", "--member", "2=bob.pem")

    made = registry()
    assert made == Registry(1, {7: key("alice"), 2: key("bob")})
    bundle = read_bundle(Path("registry.secagg"), made)
    assert bundle == {2: Path("bob.pem").read_bytes(), 7: Path("alice.pem").read_bytes()}
    assert capsys.readouterr().out.splitlines() == [
        "registry      registry.secagg, version 1",
        "certificates  registry.pem",
        "members       2 clients",
        "expires       never",
        f"digest        {made.digest.hex()}",
    ]


def test_every_change_is_a_version() -> None:
    identities("authority", "alice", "bob")
    secagg("enrol", "--member", "0=alice.pem")
    secagg("enrol", "--member", "1=bob.pem")
    assert registry() == Registry(2, {0: key("alice"), 1: key("bob")})
    secagg("enrol", "--remove", "0")
    assert registry() == Registry(3, {1: key("bob")})
    secagg("enrol", "--remove", "1", "--member", "0=bob.pem")
    assert registry() == Registry(4, {0: key("bob")})
    secagg("enrol", "--member", "0=alice.pem")
    assert registry() == Registry(5, {0: key("alice")})
    bundle = read_bundle(Path("registry.secagg"), registry())
    assert bundle == {0: read_certificate(Path("alice.pem"))}


def test_nothing_new_is_no_version(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice")
    secagg("enrol", "--member", "0=alice.pem")
    before = files()
    secagg("enrol", "--member", "0=alice.pem")
    secagg("enrol", "--expires", "never")
    secagg("enrol")
    assert files() == before
    assert "registry.secagg, version 1 (unchanged)" in capsys.readouterr().out


def test_a_new_certificate_of_the_same_key_leaves_the_registry_as_it_is() -> None:
    identities("authority", "alice")
    secagg("enrol", "--member", "0=alice.pem")
    before = Path("registry.secagg").read_bytes()
    renewed = make_certificate(read_key(Path("alice.key")), now=int(time.time()), days=5)
    Path("alice.pem").write_bytes(renewed)
    secagg("enrol", "--member", "0=alice.pem")
    assert Path("registry.secagg").read_bytes() == before
    assert read_bundle(Path("registry.secagg"), registry()) == {0: renewed}


def test_an_expiry_is_set_kept_and_taken_back() -> None:
    identities("authority", "alice", "bob")
    secagg("enrol", "--member", "0=alice.pem", "--expires", "2200-01-02")
    assert registry().expires == 7258204800
    secagg("enrol", "--member", "1=bob.pem")
    assert (registry().version, registry().expires) == (2, 7258204800)
    secagg("enrol", "--expires", "never")
    assert (registry().version, registry().expires) == (3, 0)


def test_other_names_of_files(folder: Path) -> None:
    (folder / "there").mkdir()
    identities("root", "alice")
    secagg("enrol", "--authority", "root.key", "--registry", "there/clients", "--member", "0=alice.pem")
    made = read_registry(folder / "there" / "clients", folder / "root.pem", int(time.time()))
    assert list(read_bundle(folder / "there" / "clients", made)) == [0]
    assert sorted(path.name for path in (folder / "there").iterdir()) == ["clients", "clients.pem"]


# --- what is shown -----------------------------------------------------------------------------------


def enrolled(capsys: pytest.CaptureFixture[str], *more: str) -> None:
    """A registry in which Alice is 0 and Bob is 10."""
    identities("authority", "alice", "bob")
    secagg("enrol", "--member", "0=alice.pem", "--member", "10=bob.pem", *more)
    capsys.readouterr()


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority")
    secagg("keygen", "alice", "--days", "3")
    capsys.readouterr()
    secagg("enrol", "--member", "5=alice.pem", "--expires", "2200-01-02", "--json")
    day = time.strftime("%Y-%m-%d", time.gmtime(expiry(read_certificate(Path("alice.pem")))))
    assert json.loads(capsys.readouterr().out) == {
        "registry": "registry.secagg",
        "certificates": "registry.pem",
        "version": 1,
        "digest": registry().digest.hex(),
        "expires": "2200-01-02",
        "changed": True,
        "new_keys": {},
        "members": [{"id": 5, "key": key("alice").hex(), "certificate_expires": day}],
    }
    secagg("enrol", "--show", "--json")
    assert json.loads(capsys.readouterr().out)["changed"] is False


@pytest.mark.parametrize("authority", ["authority.key", "authority.pem"])
def test_members_are_listed_and_nothing_changes(authority: str, capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    before = files()
    secagg("enrol", "--show", "--authority", authority)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "registry      registry.secagg, version 1"
    assert [line.split(",")[0] for line in lines[5:]] == [
        f"0             {key('alice').hex()}",
        f"10            {key('bob').hex()}",
    ]
    assert files() == before


def test_a_client_lists_members_without_their_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    Path("registry.pem").unlink()
    secagg("enrol", "--show", "--authority", "authority.pem")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "certificates  not here"
    assert lines[5:] == [f"0             {key('alice').hex()}", f"10            {key('bob').hex()}"]
    secagg("enrol", "--show", "--authority", "authority.pem", "--json")
    about = json.loads(capsys.readouterr().out)
    assert about["certificates"] is None
    assert [row["certificate_expires"] for row in about["members"]] == [None, None]


@pytest.mark.parametrize("change", [("--member", "1=bob.pem"), ("--remove", "0"), ("--expires", "never")])
def test_show_changes_nothing(change: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "enrol", "--show", *change).startswith("--show changes nothing")


def test_an_expired_registry_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    old = Registry(1, registry().members, expires=5)
    Path("registry.secagg").write_bytes(old.sign(read_key(Path("authority.key"))))
    secagg("enrol", "--show")
    assert "expires       1970-01-01" in capsys.readouterr().out


# --- what is refused ---------------------------------------------------------------------------------


def assert_refused_without_a_trace(
    capsys: pytest.CaptureFixture[str], sentence: str, *args: str, show: bool = False
) -> None:
    before = files()
    assert refused(capsys, "enrol", *args, *(["--show"] if show else [])) == sentence
    assert files() == before


def test_the_authority_is_no_member(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority")
    assert_refused_without_a_trace(
        capsys,
        "authority.pem is the authority's own: it must be neither a client nor the server",
        *("--member", "0=authority.pem"),
    )


def test_a_key_has_one_id(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    assert_refused_without_a_trace(
        capsys, "members 3 and 10 would have the same key: enrol it once", "--member", "3=bob.pem"
    )
    identities("carol")
    both = ("--member", "3=carol.pem", "--member", "4=carol.pem")
    assert_refused_without_a_trace(capsys, "members 3 and 4 would have the same key: enrol it once", *both)


@pytest.mark.parametrize(
    "text", ["alice.pem", "=alice.pem", "1=", "x=alice.pem", "-1=alice.pem", f"{MAX_ID + 1}=a"]
)
def test_members_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --member: " in refused(capsys, "enrol", f"--member={text}")


def test_the_ids_of_a_registry_are_those_of_the_command() -> None:
    assert options.MAX_ID == MAX_ID
    identities("authority", "alice")
    secagg("enrol", "--member", f"{MAX_ID}=alice.pem")
    assert list(registry().members) == [MAX_ID]


def test_one_certificate_for_each_id(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    twice = ("--member", "3=alice.pem", "--member", "3=bob.pem")
    assert_refused_without_a_trace(capsys, "--member gives two certificates for one ID", *twice)
    both = ("--member", "0=bob.pem", "--remove", "0")
    assert_refused_without_a_trace(capsys, "member 0 cannot be enrolled and removed at once", *both)


def test_whoever_is_not_there_cannot_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    assert_refused_without_a_trace(
        capsys, "member 4 cannot be removed: there is no such member", "--remove", "4"
    )


def test_certificates_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    Path("text.pem").write_text("hello")
    remedy = "make one with secagg keygen, or correct the path"
    for name, why in {
        "nowhere.pem": f"nowhere.pem does not exist; {remedy}",
        "text.pem": f"text.pem is not a certificate; {remedy}",
        "alice.key": "alice.key is a private key, which must stay secret; give its certificate instead",
    }.items():
        assert_refused_without_a_trace(capsys, why, "--member", f"3={name}")


def test_an_expired_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    Path("old.pem").write_bytes(make_certificate(Identity.generate(), now=0, days=1))
    why = "old.pem is a certificate that expired at 1970-01-02 00:00 UTC; ask its owner for a current one"
    assert_refused_without_a_trace(capsys, why, "--member", "3=old.pem")


def test_a_certificate_that_is_not_valid_yet(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    later = int(time.time()) + 10 * DAY
    Path("new.pem").write_bytes(make_certificate(Identity.generate(), now=later, days=1))
    said = refused(capsys, "enrol", "--member", "3=new.pem")
    assert said.startswith("new.pem is a certificate that is not valid before")
    assert said.endswith("UTC; is the clock right?")


def test_somebody_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    why = "no member would be left: enrol one in the same command, or give an end with --expires"
    assert_refused_without_a_trace(capsys, why, "--remove", "0", "--remove", "10")


def test_a_foreign_registry(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    identities("other")
    for show in (True, False):
        before = files()
        said = refused(capsys, "enrol", "--authority", "other.key", *(["--show"] if show else []))
        assert said.startswith("registry.secagg is foreign: this authority")
        assert show or said.endswith("; name the key that signed it with --authority, or another --registry")
        assert files() == before


def test_a_file_that_is_no_registry(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    Path("registry.secagg").write_text("hello")
    assert refused(capsys, "enrol", "--remove", "0").startswith("registry.secagg is not a registry")


@pytest.mark.parametrize("show", [True, False])
def test_keys_of_the_authority_that_are_none(show: bool, capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    options = ("--show",) if show else ()
    remedy = "make one with secagg keygen, or correct the path"
    said = refused(capsys, "enrol", "--authority", "nobody.key", *options)
    assert said == f"nobody.key does not exist; {remedy}"
    Path("authority.key").chmod(0o644)
    assert "is open to other users (mode 0644); run chmod 600" in refused(capsys, "enrol", *options)


def test_the_authoritys_certificate_cannot_sign(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    said = refused(capsys, "enrol", "--authority", "authority.pem", "--remove", "0")
    assert said.startswith("authority.pem is a certificate, not the private key that belongs to it")


def test_a_registry_begins_with_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority")
    why = "registry.secagg does not exist; give its first members, or correct the path"
    assert_refused_without_a_trace(capsys, why, "--expires", "never")
    assert refused(capsys, "enrol", "--show").startswith("registry.secagg does not exist; get it from")


@pytest.mark.parametrize("day", ["2020-13-01", "tomorrow", "1970-01-01", "1901-01-01", "10000-01-01"])
def test_days_that_are_none(day: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --expires: " in refused(capsys, "enrol", "--expires", day)


def test_no_registry_is_made_that_has_expired(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    why = "the registry would have expired already: give a later day with --expires, or never"
    assert_refused_without_a_trace(capsys, why, "--expires", "2020-01-01")
    old = Registry(1, registry().members, expires=5)
    Path("registry.secagg").write_bytes(old.sign(read_key(Path("authority.key"))))
    assert_refused_without_a_trace(capsys, why, "--remove", "0")
    secagg("enrol", "--remove", "0", "--expires", "2200-01-01")
    assert (registry().version, list(registry().members)) == (2, [10])


@pytest.mark.parametrize(
    ("members", "why"),
    [(116_500, "registry.pem has no certificate of member 0"), (116_510, "the registry would be too long")],
)
def test_no_registry_is_made_that_clients_would_refuse(
    members: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The smaller one is not too long. It is refused for another reason, which is looked for later."""
    identities("authority", "bob")
    large = Registry(1, {number: number.to_bytes(32, "big") for number in range(members)})
    Path("registry.secagg").write_bytes(large.sign(read_key(Path("authority.key"))))
    before = files()
    assert refused(capsys, "enrol", "--member", f"{members}=bob.pem").startswith(why)
    assert files() == before


# --- files in the way, or missing ----------------------------------------------------------------------


def test_certificates_of_others_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    """The certificates of a registry `alice.secagg` would go to `alice.pem`."""
    identities("authority", "alice", "bob")
    for name in ("authority", "alice"):
        why = f"{name}.secagg does not exist, but {name}.pem does: restore the one, or move the other away"
        assert_refused_without_a_trace(capsys, why, "--registry", f"{name}.secagg", "--member", "0=bob.pem")
    why = "alice.pem would be overwritten: give the registry another name"
    assert_refused_without_a_trace(capsys, why, "--registry", "alice.secagg", "--member", "0=alice.pem")
    why = "bob.pem cannot be a registry: .pem is for the members' certificates beside it"
    assert_refused_without_a_trace(capsys, why, "--registry", "bob.pem", "--member", "0=alice.pem")


def test_certificates_that_were_lost_are_given_again(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    Path("registry.pem").unlink()
    why = (
        "registry.pem has no certificate of member 0: restore the file, give that certificate again with "
        "--member, or remove the member"
    )
    assert_refused_without_a_trace(capsys, why, "--member", "10=bob.pem")
    secagg("enrol", "--member", "10=bob.pem", "--member", "0=alice.pem")
    assert (registry().version, len(read_bundle(Path("registry.secagg"), registry()))) == (1, 2)


def test_damaged_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    data = Path("registry.pem").read_bytes()
    Path("registry.pem").write_bytes(data.replace(b"MII", b"AII"))
    why = "registry.pem is damaged: it has in it not a certificate; restore it"
    assert_refused_without_a_trace(capsys, why, "--remove", "0")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--member", "3=carol.pem"),
        ("--remove", "0"),
        ("--member", "10=carol.pem"),
        ("--remove", "0", "--member", "10=carol.pem"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_command_that_was_interrupted_is_given_again(
    arguments: tuple[str, ...],
    first: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The certificates are new and the registry is old, or not there yet."""
    enrolled(capsys)
    identities("carol")
    if first:
        Path("registry.secagg").unlink()
        Path("registry.pem").unlink()
        arguments = ("--member", "3=carol.pem", "--member", "0=alice.pem")
    replace = FileKind.replace

    def crash(self: FileKind, path: Path, data: bytes, *, mode: int) -> None:
        if path.suffix != ".pem":
            raise KeyboardInterrupt
        replace(self, path, data, mode=mode)

    with monkeypatch.context() as patched:
        patched.setattr(FileKind, "replace", crash)
        assert main(["enrol", *arguments]) == 130
    if not first:
        assert registry() == Registry(1, {0: key("alice"), 10: key("bob")})
        with pytest.raises(RegistryError, match="does not fit registry 1"):
            read_bundle(Path("registry.secagg"), registry())

    secagg("enrol", *arguments)
    assert registry().version == (1 if first else 2)
    assert list(read_bundle(Path("registry.secagg"), registry())) == sorted(registry().members)


def test_directories_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice")
    for path in ("nowhere/r", "alice.key/r"):
        said = refused(capsys, "enrol", "--registry", path, "--member", "0=alice.pem")
        assert said.startswith(f"the directory {Path(path).parent} cannot be used: ")


def test_a_directory_that_may_not_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(capsys)
    opened = os.open

    def denied(path: Any, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", denied)
    why = "registry.pem cannot be written: Permission denied"
    assert_refused_without_a_trace(capsys, why, "--remove", "0")


def test_one_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enrolled(capsys)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        why = "another process is changing a registry in .; try again"
        assert_refused_without_a_trace(capsys, why, "--remove", "0")
    finally:
        os.close(handle)
    secagg("enrol", "--remove", "0")


def test_a_disk_without_locks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_handle: int, _operation: int) -> None:
        raise OSError(95, "Operation not supported")

    enrolled(capsys)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    why = "the directory . cannot be locked: Operation not supported"
    assert_refused_without_a_trace(capsys, why, "--remove", "0")


# --- both --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keygen", "enrol"])
def test_help_tells_what_the_exit_status_means(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith("The exit status is 2 if something is wrong.")


def test_no_extra_is_needed(folder: Path) -> None:
    """With nothing but the core's dependencies to import, in a process of its own."""
    script = (
        "import sys\n"
        "for name in ('rich', 'scipy', 'matplotlib', 'pydantic', 'dp_accounting', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from sims.cli import main\n"
        "sys.exit(main(['keygen', 'authority']) or main(['keygen', 'alice'])\n"
        "         or main(['enrol', '--member', '0=alice.pem']))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(registry().members) == [0]


def test_names_that_are_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Both the registry itself, and the certificates beside it."""
    identities("authority", "alice")
    for name in ("x" * 260, f"{'x' * 252}.s"):
        enrol = ["enrol", "--member", "0=alice.pem", "--registry", name]
        assert "File name too long" in refused(capsys, *enrol)
    renew = ["keygen", "--renew", "alice", "--server", "--directory", "x" * 260]
    assert "File name too long" in refused(capsys, *renew)
