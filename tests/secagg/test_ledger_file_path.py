"""Where a ledger is: under one name, as the file that was opened, and in nobody's way when it is read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from secagg.client_budget import Budget, Spend
from secagg.errors import DamagedLedger, LedgerError, SessionLive
from secagg.ledger import ClientLedger, read_ledger, reader
from secagg.ledger.file import READING, READING_AT_REST, LedgerFile
from secagg.ledger.reader import Reading
from secagg.ledger.rollback_seal import seal_path
from tests.secagg.ledgers import SESSION, answer, reopened

FREE = Budget()
ONE = Spend(charge=5, noised=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def filled(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        ledger.remember_answer(answer(1), FREE)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


# --- links -----------------------------------------------------------------------------------------


def test_a_symbolic_link_leads_to_the_same_ledger(path: Path) -> None:
    filled(path)
    link = path.with_name("link")
    link.symlink_to(path.name)
    with reopened(path) as ledger, reopened(link) as other:
        ledger.open_session()
        with pytest.raises(SessionLive):
            other.open_session()
        assert str(path) in repr(other)
    assert read_ledger(link).spend == ONE
    assert names(path) == ["ledger", "ledger-seal", "link"]


def test_an_older_copy_is_noticed_through_a_symbolic_link(path: Path, tmp_path: Path) -> None:
    filled(path)
    link = path.with_name("link")
    link.symlink_to(path)
    shutil.copy(path, tmp_path / "backup")
    with reopened(path) as ledger:
        ledger.remember_session(SESSION)
    shutil.copy(tmp_path / "backup", path)
    for attempt in (lambda: reopened(link), lambda: read_ledger(link)):
        with pytest.raises(DamagedLedger, match="has 2 rows, but had 3 when it was sealed"):
            attempt()


def test_a_ledger_may_be_created_through_a_link(path: Path) -> None:
    """And is not, if there was one where the link leads."""
    link = path.with_name("link")
    link.symlink_to(path)
    ClientLedger.create(link, member=5).close()
    assert names(path) == ["ledger", "ledger-seal", "link"]
    path.unlink()
    with pytest.raises(LedgerError, match="ledger-seal exists already"):
        ClientLedger.create(link, member=5)


def test_a_link_that_leads_to_itself(path: Path) -> None:
    path.symlink_to(path.name)
    for attempt in (lambda: reopened(path), lambda: read_ledger(path)):
        with pytest.raises(LedgerError, match="ledger cannot be found"):
            attempt()


def test_a_name_that_cannot_be_looked_up(path: Path) -> None:
    with pytest.raises(LedgerError, match="n cannot be opened: File name too long"):
        read_ledger(path.with_name("n" * 300))


def test_a_ledger_with_two_names_is_refused(path: Path) -> None:
    filled(path)
    other = path.with_name("other")
    os.link(path, other)
    for name in (path, other):
        with pytest.raises(LedgerError, match=r"has 2 names \(hard links\).*keep one, delete the others"):
            reopened(name)
    assert read_ledger(path).spend == ONE
    other.unlink()
    reopened(path).close()


def test_a_ledger_that_gets_a_second_name_begins_no_session(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as second:
        os.link(path, path.with_name("other"))
        with pytest.raises(LedgerError, match="has 2 names"):
            ledger.open_session()
        path.with_name("other").unlink()
        second.open_session()  # the lock was given back


def test_a_creator_may_be_killed_at_the_last_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft's name is left, and is a second name of the ledger."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(LedgerError, match="has 2 names"):
            ClientLedger.create(path, member=5)
    assert path.stat().st_nlink == 2
    reopened(path).close()
    assert path.stat().st_nlink == 1
    assert names(path) == ["ledger", "ledger-seal"]


def test_a_draft_of_another_ledger_is_left_alone(path: Path) -> None:
    filled(path)
    draft = path.with_name(".ledger.0123456789abcdef")
    draft.write_bytes(b"not this one")
    os.link(path, path.with_name("other"))
    with pytest.raises(LedgerError, match="has 2 names"):
        reopened(path)
    assert draft.exists()


# --- deleted, or replaced --------------------------------------------------------------------------


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


LOSSES: dict[str, Callable[[Path], None]] = {
    "ledger was deleted": lambda path: path.unlink(),
    "ledger was replaced": replace,
    "ledger-seal was deleted": lambda path: seal_path(path).unlink(),
    "ledger-seal was replaced": lambda path: replace(seal_path(path)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_ledger_that_is_not_there_any_more_lets_nothing_through(path: Path, loss: str) -> None:
    why = f"{loss} while it was in use; what is charged now would be lost: restore the newest copy"
    ledger = ClientLedger.create(path, member=5)
    ledger.remember_answer(answer(1), FREE)
    before = seal_path(path).read_bytes()
    LOSSES[loss](path)
    with pytest.raises(LedgerError, match=why):
        ledger.remember_answer(answer(2), FREE)
    with pytest.raises(LedgerError, match=why):
        ledger.open_session()
    assert ledger.spend == ONE
    ledger.close()
    if loss.startswith("ledger was"):  # the seal still says what the restored copy must have
        assert seal_path(path).read_bytes() == before


def test_whoever_lost_a_ledger_does_not_seal_the_one_that_replaced_it(path: Path) -> None:
    ledger = ClientLedger.create(path, member=5)
    ledger.remember_answer(answer(1), FREE)
    replace(path)
    with reopened(path) as other:
        other.remember_session(SESSION)
    before = seal_path(path).read_bytes()
    ledger.close()
    assert seal_path(path).read_bytes() == before


def test_a_ledger_that_is_replaced_during_an_entry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry went into a file that nobody will find: it must not be acted on."""
    ledger = ClientLedger.create(path, member=5)
    settle = ledger._file._settle

    def settle_late(*, resting: bool) -> None:
        path.unlink(missing_ok=True)
        settle(resting=resting)

    monkeypatch.setattr(ledger._file, "_settle", settle_late)
    with pytest.raises(LedgerError, match="ledger was deleted while it was in use"):
        ledger.remember_answer(answer(1), FREE)
    ledger.close()


def test_a_ledger_that_is_replaced_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ClientLedger.create(path, member=5).close()
    settle = LedgerFile._settle

    def settle_late(self: LedgerFile, *, resting: bool) -> None:
        settle(self, resting=resting)
        replace(path)

    monkeypatch.setattr(LedgerFile, "_settle", settle_late)
    with pytest.raises(LedgerError, match="ledger was replaced while it was in use"):
        reopened(path)


def test_a_live_session_ends_when_its_seal_is_gone(path: Path) -> None:
    """The lock went with it, and somebody else may have begun a session."""
    with ClientLedger.create(path, member=5) as ledger:
        ledger.open_session()
        seal_path(path).unlink()
        with reopened(path) as other:
            other.open_session()
            with pytest.raises(LedgerError, match="ledger-seal was replaced while it was in use"):
                ledger.remember_answer(answer(1), FREE)
            other.remember_answer(answer(1), FREE)
    assert read_ledger(path).spend == ONE


# --- reading ---------------------------------------------------------------------------------------


def test_a_ledger_that_rests_is_read_without_a_trace(path: Path) -> None:
    filled(path)
    before = path.stat().st_mtime_ns
    assert read_ledger(path).spend == ONE
    assert names(path) == ["ledger", "ledger-seal"]
    assert path.stat().st_mtime_ns == before


def test_the_log_of_a_killed_process_is_read_too(path: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as reader:
        reader._file._live.execute("BEGIN")
        assert reader._file._live.execute("SELECT rows FROM head").fetchone() == (1,)
        ledger.remember_answer(answer(1), FREE)
        files = [path, seal_path(path), path.with_name("ledger-wal")]
        subprocess.run(["/bin/cp", *files, copies], check=True)  # this process must not open the file
        reader._file._live.execute("COMMIT")
    assert read_ledger(copies / "ledger").spend == ONE


@pytest.mark.parametrize("torn", [False, True])
def test_a_ledger_that_is_opened_while_it_is_read_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """It rested when the reader looked, so the reader took no lock; what it saw may be half of an entry."""
    filled(path)
    read, accesses = reader._read, []

    def read_late(path: Path, access: str) -> Reading:
        accesses.append(access)
        found = read(path, access)
        if access == READING_AT_REST:
            with reopened(path) as ledger:
                ledger.remember_answer(answer(2), FREE)
            if torn:
                raise DamagedLedger("half of an entry")
        return found

    monkeypatch.setattr(reader, "_read", read_late)
    assert read_ledger(path).spend == Spend(charge=10, noised=2)
    assert accesses == [READING_AT_REST, READING]
