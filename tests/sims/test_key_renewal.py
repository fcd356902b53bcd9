"""``secagg keygen --renew`` and ``secagg enrol`` with hand-overs: what they write, at every moment of it."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from secagg.client_budget import Budget
from secagg.errors import KeyFileError
from secagg.hand_over import HandOverSigner, chain_of
from secagg.ledger import ClientLedger, read_ledger
from secagg.net.atomic_files import FileKind
from secagg.net.certificates import certificate_key, expiry
from secagg.net.identity_and_registry_files import read_all_hand_overs, read_certificate, read_key
from sims.cli import main
from tests.secagg.ledgers import answer
from tests.sims.test_keygen_enrol import files, folder, identities, key, refused, registry, secagg

__all__ = ["folder"]
INTERRUPTED = 130


def pairs() -> Iterator[bytes]:
    """The keys whose private key and certificate lie together, under the new or an old name."""
    for private in Path().glob("alice*.key"):
        try:
            public = read_key(private).public
            if certificate_key(read_certificate(private.with_suffix(".pem"))) == public:
                yield public
        except KeyFileError:
            pass


def test_a_new_key_keeps_the_old_pair_and_a_hand_over(capsys: pytest.CaptureFixture[str]) -> None:
    identities("alice")
    old, before = key("alice"), files()
    capsys.readouterr()
    secagg("keygen", "--renew", "alice", "--member", "7", "--days", "20")
    new = key("alice")
    assert new != old
    assert read_key(Path("alice.key")).public == new
    assert files()["alice.old.key"] == before["alice.key"]
    assert files()["alice.old.pem"] == before["alice.pem"]
    for name in ("alice.key", "alice.old.key"):
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
    (statement,) = read_all_hand_overs(Path("alice.handover"))
    statement.verify(authority=None)
    assert (statement.owner, statement.old, statement.new) == (7, old, new)
    out = capsys.readouterr().out
    assert new.hex() in out
    assert "alice.handover of member 7" in out
    assert set(files()) == {"alice.key", "alice.pem", "alice.old.key", "alice.old.pem", "alice.handover"}


def test_a_second_renewal_continues_the_chain() -> None:
    identities("alice")
    first = key("alice")
    for _ in range(2):
        secagg("keygen", "--renew", "alice", "--server")
    statements = read_all_hand_overs(Path("alice.handover"))
    assert len(chain_of(statements, "server", old=first, new=key("alice"), authority=None)) == 2


def test_no_renewal_overwrites_an_older_key() -> None:
    """Any of them may be the one that is enrolled."""
    identities("alice")
    pairs_before = []
    for options in (["--member", "7"], ["--member", "7"], ["--same-key"], ["--member", "7"]):
        pairs_before.append((Path("alice.key").read_bytes(), key("alice")))
        secagg("keygen", "--renew", "alice", *options)
    for private, public in pairs_before[:2]:
        kept = Path(f"alice.old-{public.hex()[:16]}.key")
        assert kept.read_bytes() == private
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert certificate_key(read_certificate(kept.with_suffix(".pem"))) == public
    assert Path("alice.old.key").read_bytes() == pairs_before[-1][0]


def test_the_same_key_gets_a_certificate_with_new_dates(capsys: pytest.CaptureFixture[str]) -> None:
    identities("alice")
    old, before = key("alice"), files()
    secagg("keygen", "--renew", "--same-key", "alice", "--days", "30000")
    assert key("alice") == old
    assert files()["alice.key"] == files()["alice.old.key"] == before["alice.key"]
    assert files()["alice.old.pem"] == before["alice.pem"]
    assert expiry(read_certificate(Path("alice.pem"))) > expiry(read_certificate(Path("alice.old.pem")))
    assert not Path("alice.handover").exists()
    secagg("keygen", "--renew", "alice", "--server")
    secagg("keygen", "--renew", "--same-key", "alice")


@pytest.mark.parametrize(("earlier", "writes"), [(0, 5), (1, 7)])
def test_at_every_moment_there_is_a_usable_pair(
    earlier: int, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is killed before each of its writes, and then repeated. After earlier renewals that nobody
    has enrolled yet, the pair of the first key is usable, too."""
    write, seen = FileKind.replace, 0

    def counting(kind: FileKind, path: Path, data: bytes, *, mode: int) -> None:
        nonlocal seen
        seen += 1
        if seen == killed:
            raise KeyboardInterrupt
        write(kind, path, data, mode=mode)

    for killed in range(1, writes + 2):
        for left in Path().iterdir():
            left.unlink()
        seen = 0
        identities("alice")
        first = key("alice")
        for _ in range(earlier):
            secagg("keygen", "--renew", "alice", "--member", "7")
        old = key("alice")
        with monkeypatch.context() as patch:
            patch.setattr(FileKind, "replace", counting)
            if killed <= writes:
                assert main(["keygen", "--renew", "alice", "--member", "7"]) == INTERRUPTED
                assert {first, old} <= set(pairs())
        secagg("keygen", "--renew", "alice", "--member", "7")
        assert {first, old} <= set(pairs())
        new = key("alice")
        assert read_key(Path("alice.key")).public == new != old
        statements = read_all_hand_overs(Path("alice.handover"))
        assert chain_of(statements, 7, old=first, new=new, authority=None)


@pytest.mark.parametrize("name", ["alice.old.key", "alice.old.pem"])
def test_an_unrelated_file_is_not_overwritten(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    identities("alice", "bob")
    shutil.copy(f"bob.{name[-3:]}", name)
    before = files()
    for options in (["--member", "7"], ["--same-key"]):
        assert "belongs to another identity" in refused(capsys, "keygen", "--renew", "alice", *options)
    assert files() == before


def test_mistakes_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "alice.key does not exist" in refused(capsys, "keygen", "--renew", "alice", "--server")
    identities("alice", "bob")
    assert "are for --renew only" in refused(capsys, "keygen", "carol", "--same-key")
    for options in (["--member", "7"], ["--server"]):
        assert "are for --renew only" in refused(capsys, "keygen", "carol", *options)
        same = ["keygen", "--renew", "--same-key", "alice"]
        assert "needs no --member or --server" in refused(capsys, *same, *options)
    shutil.copy("bob.pem", "alice.pem")
    assert "belongs to another key" in refused(capsys, "keygen", "--renew", "alice", "--server")
    Path("bob.handover").write_text("garbage")
    assert "not a file of hand-overs" in refused(capsys, "keygen", "--renew", "bob", "--server")


def test_a_new_key_needs_an_owner(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a client's key would be handed over as the server's, and nobody could use it."""
    identities("alice")
    before = files()
    for options in ([], ["--member", "7", "--server"]):
        said = refused(capsys, "keygen", "--renew", "alice", *options)
        assert "--renew needs --member ID for the key of a client, or --server" in said
    assert files() == before


def test_a_hand_over_of_the_wrong_owner_can_be_undone(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice")
    enrolled(capsys)
    first = key("alice")
    secagg("keygen", "--renew", "alice", "--server")
    remedy = "move alice.old.key and alice.old.pem back to alice.key and alice.pem, delete alice.handover"
    assert remedy in refused(capsys, "enrol", "--member", "7=alice.pem")
    assert "--renew alice --member 7" in refused(capsys, "keygen", "--renew", "alice", "--member", "7")

    for ending in ("key", "pem"):
        shutil.move(f"alice.old.{ending}", f"alice.{ending}")
    Path("alice.handover").unlink()
    assert key("alice") == first
    secagg("keygen", "--renew", "alice", "--member", "7")
    assert enrolled(capsys) == {"7": "handed over by its old key"}


# --- enrol --------------------------------------------------------------------------------------------


def enrolled(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, str]:
    """Enrol the certificate of alice as member 7. Return what is said about new keys."""
    capsys.readouterr()
    secagg("enrol", "--member", "7=alice.pem", "--json", *more)
    found: dict[str, str] = json.loads(capsys.readouterr().out)["new_keys"]
    return found


def test_a_hand_over_beside_the_certificate_is_verified_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice")
    assert enrolled(capsys) == {}
    secagg("keygen", "--renew", "alice", "--member", "7")
    assert enrolled(capsys) == {"7": "handed over by its old key"}
    assert registry().version == 2
    assert enrolled(capsys) == {}


def test_a_wrong_hand_over_beside_the_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice", "thief")
    enrolled(capsys)
    secagg("keygen", "--renew", "thief", "--member", "7")
    for ending in ("pem", "handover"):
        shutil.copy(f"thief.{ending}", f"alice.{ending}")
    before = files()
    assert "no statement hands" in refused(capsys, "enrol", "--member", "7=alice.pem")
    assert files() == before


def test_a_new_key_without_a_hand_over_is_enrolled_and_this_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    identities("authority", "alice")
    enrolled(capsys)
    for ending in ("key", "pem"):
        Path(f"alice.{ending}").unlink()
    identities("alice")
    assert "without a hand-over" in enrolled(capsys)["7"]


def test_the_authority_hands_over_a_lost_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    identities("authority", "alice")
    enrolled(capsys)
    lost = key("alice")
    ClientLedger.create(tmp_path / "ledger", member=7, identity=lost).close()
    for ending in ("key", "pem"):
        Path(f"alice.{ending}").unlink()
    identities("alice")
    assert enrolled(capsys, "--hand-over", "statement") == {"7": "handed over by the authority"}
    (statement,) = read_all_hand_overs(Path("statement"))
    assert statement.signer is HandOverSigner.AUTHORITY
    more = {"hand_overs": [statement], "authority": key("authority")}
    ClientLedger.open(tmp_path / "ledger", member=7, identity=key("alice"), **more).close()  # type: ignore[arg-type]


def test_a_hand_over_by_the_authority_is_for_one_member(capsys: pytest.CaptureFixture[str]) -> None:
    identities("authority", "alice")
    enrolled(capsys)
    assert "give one --member" in refused(capsys, "enrol", "--expires", "2200-01-02", "--hand-over", "file")
    assert "--hand-over" in refused(capsys, "enrol", "--show", "--hand-over", "file")
    identities("bob")
    shutil.copy("bob.pem", "alice.pem")
    Path("file").write_text("precious")
    refused(capsys, "enrol", "--member", "7=alice.pem", "--hand-over", "file")
    assert Path("file").read_text() == "precious"
    assert registry().version == 1


def test_the_authority_hands_over_the_key_of_a_client_that_it_removed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ledger = _spent_ledger_of_a_removed_client(capsys, tmp_path)
    by = enrolled(capsys, "--hand-over", "statement", "--old-certificate", "stolen.pem")
    assert by == {"7": "handed over by the authority"}
    _assert_the_ledger_follows(ledger, Path("statement"))


def test_a_forgotten_hand_over_can_be_made_after_the_new_key_is_enrolled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ledger = _spent_ledger_of_a_removed_client(capsys, tmp_path)
    enrolled(capsys)
    version = registry().version
    enrolled(capsys, "--hand-over", "statement", "--old-certificate", "stolen.pem")
    assert registry().version == version
    _assert_the_ledger_follows(ledger, Path("statement"))


def _spent_ledger_of_a_removed_client(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    """The ledger of member 7, whose stolen key is removed; alice.pem is its new certificate."""
    identities("authority", "bob", "alice")
    secagg("enrol", "--member", "3=bob.pem")
    enrolled(capsys)
    path = tmp_path / "ledger"
    with ClientLedger.create(path, member=7, identity=key("alice")) as ledger:
        ledger.remember_answer(answer(1), Budget())
    for ending in ("key", "pem"):
        Path(f"alice.{ending}").rename(f"stolen.{ending}")
    identities("alice")
    secagg("enrol", "--remove", "7")
    return path


def _assert_the_ledger_follows(path: Path, statement: Path) -> None:
    spend = read_ledger(path).spend
    assert spend.charge > 0
    with ClientLedger.open(
        path,
        member=7,
        identity=key("alice"),
        hand_overs=read_all_hand_overs(statement),
        authority=key("authority"),
    ) as ledger:
        assert ledger.spend == spend


def test_an_old_certificate_that_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _spent_ledger_of_a_removed_client(capsys, tmp_path)
    before = files()
    member, hand_over = ("--member", "7=alice.pem"), ("--hand-over", "statement")
    for owner, certificate in ((7, "alice.pem"), (3, "bob.pem")):
        said = refused(capsys, "enrol", *member, *hand_over, "--old-certificate", certificate)
        assert f"{certificate} has the key with which member {owner} is enrolled" in said
    old = ("--old-certificate", "stolen.pem")
    assert "give --hand-over as well" in refused(capsys, "enrol", *member, *old)
    assert "--old-certificate" in refused(capsys, "enrol", *member, *hand_over)
    assert "give one --member" in refused(capsys, "enrol", *member, "--member", "3=bob.pem", *hand_over, *old)
    assert "--old-certificate" in refused(capsys, "enrol", "--show", *old)
    assert files() == before
