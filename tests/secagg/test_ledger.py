"""A client's ledger on disk: what it holds, who may open it, and that nothing in it changes unnoticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secagg.client_budget import Budget, Spend
from secagg.errors import (
    DamagedLedger,
    ForeignLedger,
    LedgerError,
    MissingLedger,
    NewerLedger,
    ParameterError,
    RepeatedQuery,
    SessionLive,
)
from secagg.hashing import digest
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.ledger.chained_rows import START, text_of
from secagg.ledger.rollback_seal import seal_path
from tests.secagg.ledgers import NOISY, QUERY, SESSION, answer, flipped, reopened

FREE = Budget()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def fill(ledger: ClientLedger) -> None:
    ledger.remember_registry(3, b"d" * 32)
    ledger.remember_session(SESSION)
    ledger.remember_answer(answer(1, charge=5, spec=NOISY), FREE)
    ledger.note_confirmed(SESSION, 1, 7)
    ledger.remember_answer(answer(2, charge=None), FREE)


def filled(path: Path) -> Spend:
    with ClientLedger.create(path, member=5) as ledger:
        fill(ledger)
        return ledger.spend


def execute(path: Path, *statements: str) -> None:
    """As somebody who knows SQLite and not what a ledger is."""
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


# --- what it holds ---------------------------------------------------------------------------------


def test_a_ledger_survives_its_process(path: Path) -> None:
    before = filled(path)
    assert before == Spend(charge=5, noised=1, unnoised=1)
    with reopened(path) as ledger:
        assert ledger.spend == before
        assert ledger.knows_session(SESSION)
        assert ledger.knows_query((1).to_bytes(32, "big"))
        assert ledger.last_round("g") == 2
        assert ledger.charge_of("g") == ledger.spend.charge
        assert ledger.registry == (3, b"d" * 32)
        ledger.remember_answer(answer(3), FREE)
    assert read_ledger(path).spend == Spend(charge=10, noised=2, unnoised=1)


def test_a_reader_finds_all_that_happened(path: Path) -> None:
    filled(path)
    reading = read_ledger(path)
    kinds = [row.body["entry"] for row in reading.rows]
    assert kinds == ["created", "registry", "session", "answer", "confirmed", "answer"]
    assert [row.number for row in reading.rows] == list(range(6))
    assert str(reading.owner) == "client 5"
    noisy, confirmed, plain = (row.body for row in reading.rows[3:])
    assert noisy["charge"] == noisy["charge so far"] == 5
    assert (noisy["group"], noisy["adjacency"]) == ("g", "zero-out")
    assert noisy["round"] == 1
    assert noisy["sum"] == {
        "session": SESSION.hex(),
        "sum index": 1,
        "kind": "vector",
        "query": QUERY.hex(),
        "spec": NOISY.digest.hex(),
        "cohort": 9,
        "roster": 8,
        "bytes": NOISY.packed_bytes,
        "parts": [
            {
                "name": "loss",
                "size": 4,
                "bits": 20,
                "bound": {"type": "Count", "limit": 1, "total": 1},
                "noise": {"scale": 8.0, "variance": "900"},
            },
            {
                "name": "update",
                "size": 5,
                "bits": 24,
                "bound": {"type": "L2", "limit": 1.5},
                "noise": {"scale": 16.0, "variance": "5001/2"},
            },
        ],
        "promise": {"clients": 10, "dropouts": 2, "colluders": 1, "removable": True},
    }
    assert confirmed["session"] == SESSION.hex()
    assert (confirmed["sum index"], confirmed["contributors"]) == (1, 7)
    assert (plain["charge"], plain["charge so far"], plain["unnoised so far"]) == (None, 5, 1)
    assert plain["sum"]["promise"] is None
    part = {
        "name": "parity",
        "size": 2,
        "bits": 3,
        "bound": {"type": "Residue", "limit": None},
        "noise": None,
    }
    assert plain["sum"]["parts"] == [part]


def test_every_row_is_hashed_with_all_rows_before_it(path: Path) -> None:
    filled(path)
    hashed = bytes(32)
    for row in read_ledger(path).rows:
        hashed = digest("ledger row", hashed, row.number.to_bytes(8, "big"), text_of(row.body))
    with reopened(path) as ledger:
        assert (ledger.head.rows, ledger.head.hash) == (6, hashed)
    assert read_ledger(path).head.hash == hashed


def test_a_head_tells_a_ledger_from_its_older_copy(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        first = ledger.head
        ledger.remember_session(SESSION)
        second = ledger.head
    assert (first.rows, second.rows) == (1, 2)
    assert START.hash != first.hash != second.hash


def test_it_is_a_write_ahead_log_that_is_synced_at_every_entry(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        connection = ledger._file._live
        assert connection.execute("PRAGMA journal_mode").fetchone() == (b"wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_the_file_alone_has_every_entry_that_was_acted_on(path: Path, tmp_path: Path) -> None:
    """SQLite takes a damaged log for a short one: nothing that matters may be in the log only."""
    copy = tmp_path / "copy"
    with ClientLedger.create(path, member=5) as ledger:
        fill(ledger)
        subprocess.run(["/bin/cp", path, copy], check=True)  # this process must not open the file
        assert Path(f"{path}-wal").stat().st_size == 0
        before = ledger.head
    with reopened(copy) as ledger:
        assert ledger.head == before


def test_an_old_registry_version_is_not_written_again(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        ledger.remember_registry(3, b"d" * 32)
        before = ledger.head
        ledger.remember_registry(3, b"e" * 32)
        ledger.remember_registry(1, b"d" * 32)
        assert ledger.head == before


def test_only_the_owner_may_read_it(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        fill(ledger)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["ledger", "ledger-seal", "ledger-shm", "ledger-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_closed_ledger_is_one_file_and_its_seal(path: Path) -> None:
    filled(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger", "ledger-seal"]


def test_a_query_is_answered_once_ever(path: Path) -> None:
    filled(path)
    with reopened(path) as ledger:
        before = ledger.head
        with pytest.raises(RepeatedQuery, match="server: this query was answered before"):
            ledger.remember_answer(answer(2), FREE)
        assert ledger.head == before


# --- who may open it -------------------------------------------------------------------------------


def test_a_missing_ledger_is_not_created_by_the_way(path: Path) -> None:
    why = "ledger does not exist; restore it, or create it for a new identity"
    for attempt in (lambda: reopened(path), lambda: read_ledger(path)):
        with pytest.raises(MissingLedger, match=why):
            attempt()
    assert list(path.parent.iterdir()) == []


def test_an_empty_log_is_no_sign_of_a_ledger(path: Path) -> None:
    """A reader that outlives the owner leaves one, with its index."""
    path.with_name("ledger-wal").touch()
    path.with_name("ledger-shm").write_bytes(b"of an older log")
    assert filled(path) == read_ledger(path).spend


@pytest.mark.parametrize("left", ["ledger", "ledger-seal", "ledger-wal"])
def test_an_existing_ledger_is_not_created_anew(path: Path, left: str) -> None:
    """Nor where a file beside it shows that there was one: its spend would be forgotten."""
    filled(path)
    kept = path.with_name(left)
    if left == "ledger-wal":
        seal_path(path).unlink()
    if left != "ledger":
        path.rename(kept)
    data = kept.read_bytes()
    with pytest.raises(LedgerError, match=f"{left} exists already; open the ledger, or restore it, instead"):
        ClientLedger.create(path, member=5)
    assert kept.read_bytes() == data


def test_a_ledger_appears_when_it_is_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", crash)
        with pytest.raises(LedgerError, match="ledger cannot be created: No space left on device"):
            ClientLedger.create(path, member=5)
    assert list(path.parent.iterdir()) == []
    ClientLedger.create(path, member=5).close()


def test_a_ledger_that_came_first_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else created it after we looked."""
    filled(path)
    before = read_ledger(path).head
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(LedgerError, match="ledger cannot be created: File exists"):
        ClientLedger.create(path, member=5)
    monkeypatch.undo()
    assert read_ledger(path).head == before


def test_what_cannot_be_written_says_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerError, match="cannot be created: No such file or directory"):
        ClientLedger.create(path / "below" / "nothing", member=5)
    monkeypatch.setattr("secagg.ledger.file.APPLICATION", "no number")
    with pytest.raises(LedgerError, match="cannot be created: near"):
        ClientLedger.create(path, member=5)
    assert list(path.parent.iterdir()) == []


def test_a_directory_is_no_ledger(path: Path) -> None:
    path.mkdir()
    for attempt in (lambda: reopened(path), lambda: read_ledger(path)):
        with pytest.raises(LedgerError, match="ledger is a directory, not a ledger"):
            attempt()
    with pytest.raises(LedgerError, match="null is a special file, not a ledger"):
        read_ledger("/dev/null")


def test_a_ledger_that_may_not_be_used_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    refused = {os.R_OK | os.W_OK}
    monkeypatch.setattr(os, "access", lambda _, wanted: wanted not in refused)
    assert read_ledger(path).spend.noised == 1
    with pytest.raises(LedgerError, match="ledger may not be written by this user"):
        reopened(path)
    refused.add(os.R_OK)
    with pytest.raises(LedgerError, match="ledger may not be read by this user"):
        read_ledger(path)


def test_a_ledger_tells_what_it_is(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        ledger.remember_session(SESSION)
        assert repr(ledger) == f"ClientLedger(path='{path}', rows=2)"
    assert repr(ledger) == f"ClientLedger(path='{path}', rows=2, closed)"
    with ServerLedger.create(f"{path}-of-server") as server:
        assert repr(server) == f"ServerLedger(path='{path}-of-server', rows=1)"


@pytest.mark.parametrize("member", ["5", 5.0, True, -1, 1 << 32, None])
def test_a_member_is_a_whole_number(path: Path, member: Any) -> None:
    with pytest.raises(ParameterError, match="member must be a whole number from 0 to 4294967295"):
        ClientLedger.create(path, member=member)


@pytest.mark.parametrize("identity", [b"k" * 31, b"k" * 33, "k" * 32, Identity.generate(), None])
def test_an_identity_is_a_public_key(path: Path, identity: Any) -> None:
    why = "identity must be the 32 bytes of a public key, or empty: give identity.public"
    with pytest.raises(ParameterError, match=why):
        ClientLedger.create(path, member=5, identity=identity)
    with pytest.raises(ParameterError, match=why):
        ServerLedger.create(path, identity=identity)


@pytest.mark.parametrize(
    ("member", "identity", "owner"),
    [(6, b"", "client 6"), (5, b"k" * 32, "client 5 with key 6b6b6b6b6b6b6b6b...")],
)
def test_the_ledger_of_somebody_else_is_refused(path: Path, member: int, identity: bytes, owner: str) -> None:
    filled(path)
    with pytest.raises(ForeignLedger, match=f"belongs to client 5, not to {owner}"):
        ClientLedger.open(path, member=member, identity=identity)


def test_roles_are_not_mixed_up(path: Path, tmp_path: Path) -> None:
    filled(path)
    with pytest.raises(ForeignLedger, match="belongs to client 5, not to the server"):
        ServerLedger.open(path)
    ServerLedger.create(tmp_path / "other", identity=b"\xab" * 32).close()
    with pytest.raises(ForeignLedger, match="belongs to the server with key abababababababab"):
        reopened(tmp_path / "other")


def test_a_ledger_of_a_newer_version_is_left_alone(path: Path) -> None:
    filled(path)
    execute(path, "PRAGMA user_version = 2")
    for attempt in (lambda: reopened(path), lambda: read_ledger(path)):
        with pytest.raises(NewerLedger, match="ledger has format 2; this version of secagg reads 1"):
            attempt()


def test_an_entry_of_an_unknown_kind_is_not_guessed_at(path: Path) -> None:
    why = "ledger is of a kind that this version does not know"
    ledger = ClientLedger.create(path, member=5)
    with pytest.raises(NewerLedger, match=why):
        ledger._file.append(lambda: {"entry": "refund"})
    ledger.close()
    with pytest.raises(NewerLedger, match=why):
        reopened(path)


# --- damage ----------------------------------------------------------------------------------------


DAMAGED = "ledger is damaged; restore it, do not delete it"


@pytest.mark.parametrize("data", [b"", b"something else entirely", b"SQLite format 3\0" + bytes(2000)])
def test_another_file_is_not_a_ledger(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(DamagedLedger, match="restore it, do not delete it"):
        reopened(path)
    assert path.read_bytes() == data
    assert not seal_path(path).exists()


def test_a_database_of_something_else_is_not_a_ledger(path: Path) -> None:
    execute(path, "CREATE TABLE entries (number, body, hash)")
    with pytest.raises(DamagedLedger, match="ledger is not a ledger, or is damaged"):
        reopened(path)


ALTERED = {
    "a charge": "UPDATE entries SET body = replace(body, '\"charge\":5', '\"charge\":4') WHERE number = 3",
    "a hash": "UPDATE entries SET hash = zeroblob(32) WHERE number = 2",
    "another text": "UPDATE entries SET body = 7 WHERE number = 2",
    "no text": "ALTER TABLE entries RENAME TO old; "
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, body, hash); "
    "INSERT INTO entries SELECT * FROM old; UPDATE entries SET body = 7 WHERE number = 2",
    "a row gone": "DELETE FROM entries WHERE number = 3",
    "the last row gone": "DELETE FROM entries WHERE number = 5",
    "all rows gone": "DELETE FROM entries",
    "a row too many": "INSERT INTO entries VALUES (6, '{}', zeroblob(32))",
    "rows swapped": "UPDATE entries SET number = number - 3 WHERE number IN (1, 2); "
    "UPDATE entries SET number = -number WHERE number < 0",
    "another head": "UPDATE head SET hash = zeroblob(32)",
    "another length": "UPDATE head SET rows = 5",
    "two heads": "INSERT INTO head SELECT * FROM head",
    "no head": "DELETE FROM head",
    "no table": "DROP TABLE head",
    "more room": "CREATE TABLE harmless (number)",
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("what", ALTERED)
def test_what_was_altered_is_noticed(path: Path, what: str, sealed: bool) -> None:
    filled(path)
    execute(path, *ALTERED[what].split("; "))
    if not sealed:
        seal_path(path).unlink()
    if what == "more room" and not sealed:  # which no row knows anything about
        reopened(path).close()
        return
    for attempt in (lambda: reopened(path), lambda: read_ledger(path)):
        with pytest.raises(DamagedLedger, match=r"damaged|rows"):
            attempt()


def altered_opens(path: Path, data: bytes, seal: bytes | None) -> Spend | None:
    """The spend of a ledger with these bytes; None where it does not open."""
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    path.write_bytes(data)
    if seal is not None:
        seal_path(path).write_bytes(seal)
    try:
        return read_ledger(path).spend
    except (DamagedLedger, NewerLedger):
        assert path.read_bytes() == data
        return None


def test_every_altered_byte_of_a_sealed_ledger_is_noticed(path: Path, tmp_path: Path) -> None:
    """One bit in every seventh byte; all of them in the slow test."""
    filled(path)
    data, seal = path.read_bytes(), seal_path(path).read_bytes()
    copy = tmp_path / "copy"
    assert altered_opens(copy, data, seal) is not None
    for position in range(0, len(data), 7):
        assert altered_opens(copy, flipped(data, position, position % 8), seal) is None


@pytest.mark.slow
def test_every_altered_bit_is_noticed_or_harmless(path: Path, tmp_path: Path) -> None:
    """Without its seal, a ledger does not notice what changes in room that no row uses."""
    before = filled(path)
    data, seal = path.read_bytes(), seal_path(path).read_bytes()
    copy = tmp_path / "copy"
    for position in range(len(data)):
        changed = flipped(data, position, position * 5 % 8)
        assert altered_opens(copy, changed, seal) is None
        assert altered_opens(copy, changed, None) in (None, before)


def test_an_altered_seal_is_noticed(path: Path) -> None:
    filled(path)
    seal = seal_path(path).read_bytes()
    for position in range(len(seal)):
        seal_path(path).write_bytes(flipped(seal, position, position % 8))
        with pytest.raises(DamagedLedger, match="ledger-seal is damaged; restore it or"):
            reopened(path)
    seal_path(path).write_bytes(seal + b"!")
    with pytest.raises(DamagedLedger, match="ledger-seal is damaged"):
        reopened(path)


@pytest.mark.parametrize("seal", [None, b"", bytes(104)])
def test_a_ledger_without_a_seal_opens_and_gets_one(path: Path, seal: bytes | None) -> None:
    """A backup may be without; and a seal that was never written back is zeros."""
    before = filled(path)
    expected = seal_path(path).read_bytes()
    seal_path(path).unlink()
    if seal is not None:
        seal_path(path).write_bytes(seal)
    with reopened(path) as ledger:
        assert ledger.spend == before
    assert seal_path(path).read_bytes() == expected


def test_a_seal_that_cannot_be_used_says_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    seal_path(path).unlink()
    seal_path(path).mkdir()
    with pytest.raises(LedgerError, match="ledger-seal cannot be read: Is a directory"):
        reopened(path)
    monkeypatch.setattr("secagg.ledger.file.read_seal", lambda _: None)
    with pytest.raises(LedgerError, match="ledger-seal cannot be opened: Is a directory"):
        reopened(path)


def test_an_older_copy_is_noticed_beside_a_newer_seal(path: Path, tmp_path: Path) -> None:
    filled(path)
    shutil.copy(path, tmp_path / "backup")
    with reopened(path) as ledger:
        ledger.remember_answer(answer(3), FREE)
    shutil.copy(tmp_path / "backup", path)
    why = "ledger has 6 rows, but had 7 when it was sealed; restore the newest copy"
    with pytest.raises(DamagedLedger, match=why):
        reopened(path)


def test_a_seal_may_be_behind(path: Path) -> None:
    """A process was killed after it wrote an entry and before it wrote the seal."""
    filled(path)
    old = seal_path(path).read_bytes()
    with reopened(path) as ledger:
        ledger.remember_answer(answer(3), FREE)
    new = seal_path(path).read_bytes()
    seal_path(path).write_bytes(old)
    with reopened(path) as ledger:
        assert ledger.spend == Spend(charge=10, noised=2, unnoised=1)
    assert seal_path(path).read_bytes() == new


def test_a_large_ledger_is_hashed_as_a_whole_when_it_rests(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.ledger.file._SMALL", 0)
    with ClientLedger.create(path, member=5) as ledger:
        fill(ledger)
        live = seal_path(path).read_bytes()
        assert live[40:72] == bytes(32)
        head = ledger.head
    assert int.from_bytes(live[:8], "big") == head.rows
    assert seal_path(path).read_bytes()[40:72] != bytes(32)
    seal_path(path).write_bytes(live)
    assert read_ledger(path).head == head
    seal_path(path).write_bytes(flipped(live, 30, 1))
    with pytest.raises(DamagedLedger):
        read_ledger(path)


def test_damage_while_it_is_open_is_noticed_before_the_next_charge(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        fill(ledger)
        alter = (
            "import sqlite3,sys; c = sqlite3.connect(sys.argv[1]); c.execute('DELETE FROM head'); c.commit()"
        )
        subprocess.run([sys.executable, "-c", alter, path], check=True)
        for attempt in (lambda: ledger.spend, lambda: ledger.remember_answer(answer(3), FREE)):
            with pytest.raises(DamagedLedger, match=DAMAGED):
                attempt()
        ledger.note_confirmed(SESSION, 2, 7)  # for the record only, and so it may get lost
    with pytest.raises(DamagedLedger):
        reopened(path)


# --- writes that fail ------------------------------------------------------------------------------

WRITES: dict[str, Callable[[ClientLedger], None]] = {
    "session": lambda ledger: ledger.remember_session(b"x" * 32),
    "answer": lambda ledger: ledger.remember_answer(answer(99), FREE),
    "registry": lambda ledger: ledger.remember_registry(99, b"x" * 32),
}


def test_a_full_disk_leaves_everything_as_it_was(path: Path) -> None:
    filled(path)
    with reopened(path) as ledger:
        before, spent = ledger.head, ledger.spend
        connection = ledger._file._live
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        large = answer(3, group="g" * 20_000)
        with pytest.raises(LedgerError, match="ledger cannot be used: database or disk is full"):
            ledger.remember_answer(large, FREE)
        assert (ledger.head, ledger.spend) == (before, spent)
        connection.execute("PRAGMA max_page_count = 1000000")
        ledger.remember_answer(large, FREE)  # the disk is well again, and the chain goes on
        after = ledger.head
    assert read_ledger(path).head == after != before


@pytest.mark.parametrize("write", WRITES)
def test_a_ledger_that_stays_locked_says_so(path: Path, write: str) -> None:
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as other:
        other._file._live.execute("BEGIN IMMEDIATE")
        ledger._file._live.execute("PRAGMA busy_timeout = 0")
        before = ledger.spend
        with pytest.raises(LedgerError, match="ledger cannot be used: database is locked"):
            WRITES[write](ledger)
        ledger.note_confirmed(SESSION, 1, 7)
        assert ledger.spend == before
        other._file._live.execute("ROLLBACK")
        WRITES[write](ledger)
    assert len(read_ledger(path).rows) == 2


def test_a_seal_that_cannot_be_written_stops_the_answer_and_not_the_charge(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with ClientLedger.create(path, member=5) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fails)
            with pytest.raises(LedgerError, match="ledger-seal could not be written: Input/output error"):
                ledger.remember_answer(answer(1), FREE)
        assert ledger.spend == Spend(charge=5, noised=1)
    assert read_ledger(path).spend == Spend(charge=5, noised=1)


@pytest.mark.parametrize("write", WRITES)
def test_a_closed_ledger_remembers_nothing_more(path: Path, write: str) -> None:
    ledger = ClientLedger.create(path, member=5)
    ledger.open_session()
    ledger.close()
    ledger.close()
    ledger.close_session()  # a machine that stops does this, whatever became of its ledger
    with pytest.raises(LedgerError, match="ledger was closed; open it again"):
        WRITES[write](ledger)
    with pytest.raises(LedgerError, match="was closed"):
        ledger.open_session()
    with pytest.raises(LedgerError, match="was closed; open it again, or look at it with read_ledger"):
        _ = ledger.spend
    assert len(read_ledger(path).rows) == 1


def test_a_refused_opening_leaves_no_file_open(path: Path) -> None:
    filled(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(ForeignLedger):
            reopened(path, member=6)
    assert len(os.listdir("/proc/self/fd")) == before


# --- sessions --------------------------------------------------------------------------------------


def test_a_live_session_ends_with_its_ledger(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as other:
        ledger.open_session()
        with pytest.raises(SessionLive):
            other.open_session()
        ledger.close()
        other.open_session()
