"""The SQLite file of a ledger. Rows are verified when they are read, and are on disk before `append` returns.

There are two tables. `entries` has the rows, and `head` has their number and the last hash, so that a missing
last row is detected. A caller passes a function, which is called with every row once and in order, including
the rows that other processes append. Threads may share an open ledger; a mutex serialises them.

**When an entry is safe.** A commit writes to SQLite's write-ahead log and syncs it. SQLite does not report
damage to this log; it treats the damaged place as the end. So `append` moves the log into the database file
before it returns. This is impossible while another process reads an older state, and `append` waits only
briefly for such a reader. If the entry stays in the log, `append` syncs the seal too (`rollback_seal`). The
seal has the number of rows, so rows lost from a damaged log are detected.

**POSIX locks.** No code here opens the file except through SQLite: closing another handle would release the
locks that SQLite holds on the file for this process.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any, Final

from secagg.errors import DamagedLedger, LedgerError, NewerLedger
from secagg.hashing import digest
from secagg.ledger.chained_rows import START, Body, Head, Row, body_of, text_of
from secagg.ledger.file_location import Place, check_one_name, check_usable, draft_path, index_path, log_path
from secagg.ledger.file_lock import check_file_locks, lock_file
from secagg.ledger.rollback_seal import Seal, Sealed, read_seal, seal_path

VERSION: Final = 1
APPLICATION: Final = 0x73614C67  # "saLg"
_SMALL: Final = 1 << 20  # bytes; a larger file is hashed only when it is opened or closed
_PATIENCE: Final = 20_000  # milliseconds to wait for another process that writes
_MOMENT: Final = 200  # milliseconds to wait for others that read, so that the log can be emptied
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB)
_TABLES: Final = """
    CREATE TABLE entries (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash BLOB NOT NULL);
    CREATE TABLE head (rows INTEGER NOT NULL, hash BLOB NOT NULL);
"""
_SYNCED: Final = "PRAGMA synchronous = FULL"
_NEW_ROWS: Final = "SELECT number, body, hash FROM entries WHERE number >= ? ORDER BY number"

# How a file is opened. A ledger at rest (not in use) is read without locks and without its log.
WRITING: Final = "mode=rw"
READING: Final = "mode=ro"
READING_AT_REST: Final = "mode=ro&immutable=1"

Apply = Callable[[Row], None]

_AFTER_FORK: Final = "open ledgers after the fork only, or start processes by spawning them"


class _Forks:
    """Tracks which ledgers this process has open, and which ledgers its parents had open when they forked. A
    child must neither use nor reopen the ledgers of its parents: SQLite would mix up the locks of both."""

    def __init__(self) -> None:
        self.number = 0  # number of forks from the process that imported this module to this process
        self.connections: list[sqlite3.Connection | None] = []  # opened by parent processes; never closed
        self._opened: Counter[Place] = Counter()
        self._inherited: set[Place] = set()

    def note_open(self, place: Place) -> None:
        """Record that this process opens a ledger. Raise `LedgerError` if a parent had it open at a fork."""
        if place in self._inherited:
            raise LedgerError(f"{place.path} was opened before this process was forked; {_AFTER_FORK}")
        self._opened[place] += 1

    def note_closed(self, place: Place) -> None:
        self._opened[place] -= 1

    def count(self) -> None:
        self.number += 1
        self._inherited |= set(+self._opened)
        self._opened.clear()


_forks: Final = _Forks()
_at_fork: Final = getattr(os, "register_at_fork", lambda **_: None)  # not every operating system can fork
_at_fork(after_in_child=_forks.count)


def create_file(path: Path, body: Body) -> None:
    """Create a ledger atomically. Its first row is `body` and the time. Raises `LedgerError` if this fails,
    or if there is a ledger, or the seal or log of an earlier one, at `path`."""
    check_file_locks()
    try:
        with _directory(path.parent) as handle:
            _check_unused(path)
            _create(path, body)
            os.fsync(handle)  # a new file is safe only when its directory entry is on disk
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error.strerror}") from None
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be created: {error}") from None


@contextmanager
def _directory(directory: Path) -> Iterator[int]:
    """Lock `directory`, so that only one process at a time creates a ledger in it. Yield its handle."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_file(handle)
        yield handle
    finally:
        os.close(handle)


def _check_unused(path: Path) -> None:
    """Raise `LedgerError` if `path` has a ledger, seal or non-empty log. Delete an empty log and index."""
    log = log_path(path)
    for left in (path, seal_path(path), log):
        if left.exists() and not (left == log and log.stat().st_size == 0):
            raise LedgerError(
                f"{left} exists already; open the ledger, or restore it, instead of beginning a new one"
            )
    log.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)


def _create(path: Path, body: Body) -> None:
    draft = draft_path(path)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _fill(draft, body)
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # another process that opened the ledger may have deleted it


def _fill(draft: Path, body: Body) -> None:
    text = text_of({**body, "created": datetime.now(UTC).isoformat(timespec="seconds")})
    head = START.after(text)
    with closing(_connect(draft, WRITING)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(_SYNCED)
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        _insert(connection, START, text, head)
        connection.execute("INSERT INTO head VALUES (?, ?)", (head.rows, head.hash))
        connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, before: Head, text: bytes, after: Head) -> None:
    row = (before.rows, text.decode("ascii"), after.hash)
    connection.execute("INSERT INTO entries VALUES (?, ?, ?)", row)


def _connect(path: Path, access: str) -> sqlite3.Connection:
    """Return an SQLite connection that begins no transactions by itself, and returns texts as bytes."""
    uri = f"{path.as_uri()}?{access}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_PATIENCE / 1000, check_same_thread=False
    )
    connection.text_factory = bytes
    return connection


class LedgerFile:
    """An open ledger file. It calls `apply` with each row in order: first with all old rows, then with each
    new one. `path` is from `one_path`. `access` is `WRITING`, `READING` or `READING_AT_REST`."""

    def __init__(self, path: Path, apply: Apply, *, access: str = WRITING) -> None:
        self._path = path
        self._apply = apply
        self._connection: sqlite3.Connection | None = None
        self._seal: Seal | None = None
        self.mutex = RLock()
        self._fork = _forks.number
        self.head = START
        if access == WRITING:
            check_file_locks()
        check_usable(path, writing=access == WRITING)
        self._place = Place.of(path)
        _forks.note_open(self._place)
        try:
            self._open(access)
        except BaseException:
            self.close()
            raise

    # --- opening ---

    def _open(self, access: str) -> None:
        with self._clear_errors(opening=True):
            if access == WRITING:
                check_one_name(self._path)
            sealed = read_seal(self._path)  # read first: the ledger then has at least the rows of the seal
            self._connection = _connect(self._path, access)
            self._connection.execute(_SYNCED)
            with self._transaction("BEGIN"):
                self._check_format()
                self._take_new()
                self._check_seal(sealed)
            if access == WRITING:
                self._seal = Seal(self._path)
                self._settle(resting=True)
                self._check_place()

    def _check_format(self) -> None:
        application, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if application != APPLICATION:
            raise DamagedLedger(f"{self._path} is not a ledger, or is damaged; restore it, do not delete it")
        if version != VERSION:
            raise NewerLedger(f"{self._path} has format {version}; this version of secagg reads {VERSION}")

    def _check_seal(self, sealed: Sealed | None) -> None:
        if sealed is None or sealed.head.rows < self.head.rows:
            return
        if sealed.head.rows > self.head.rows:
            raise DamagedLedger(
                f"{self._path} has {self.head.rows} rows, but had {sealed.head.rows} when it was sealed; "
                "restore the newest copy"
            )
        if sealed not in (Sealed(self.head), Sealed(self.head, self._pages())):
            raise self._damaged()

    def _check_place(self) -> None:
        """Raise `LedgerError` if the ledger or its seal was moved or deleted: new rows would be lost."""
        self._place.check()
        self._open_seal.place.check()

    def _pages(self) -> bytes:
        """Return a hash of the whole database, including SQLite's log, as the current transaction sees it."""
        return digest("ledger pages", self._live.serialize())

    # --- reading ---

    def catch_up(self) -> None:
        """Verify other processes' new rows, and call `apply` with each. Raises `LedgerError` if damaged."""
        self.check_process()
        with self.mutex:
            if self._connection is None:
                raise LedgerError(f"{self._path} was closed; open it again, or look at it with read_ledger")
            with self._clear_errors(), self._transaction("BEGIN"):
                self._take_new()

    def _take_new(self) -> None:
        for number, text, stored in self._live.execute(_NEW_ROWS, (self.head.rows,)):
            if not isinstance(text, bytes):
                raise self._damaged()
            after = self.head.after(text)
            if (number, stored) != (self.head.rows, after.hash):
                raise self._damaged()
            self._advance(text, after)
        if self._live.execute("SELECT rows, hash FROM head").fetchall() != [(self.head.rows, self.head.hash)]:
            raise self._damaged()

    def _advance(self, text: bytes, after: Head) -> None:
        self._apply(Row(self.head.rows, body_of(text)))
        self.head = after

    def _value(self, statement: str) -> Any:
        return self._live.execute(statement).fetchone()[0]

    # --- writing ---

    def append(self, make: Callable[[], Body]) -> None:
        """Append the row that `make` returns, or raise `LedgerError`. `make` is called after all earlier rows
        have been applied, and no other process can append in between. If it raises, nothing is appended."""
        self.check_process()
        with self.mutex, self._clear_errors():
            with self._transaction("BEGIN IMMEDIATE"):
                self._take_new()
                self._check_place()
                text = text_of(make())
                after = self.head.after(text)
                _insert(self._live, self.head, text, after)
                self._live.execute("UPDATE head SET rows = ?, hash = ?", (after.rows, after.hash))
            self._advance(text, after)
            self._settle(resting=False)
            self._check_place()

    def check_writable(self) -> None:
        """Raise `LedgerError` if another process keeps the file locked, or it was moved, deleted or damaged.
        Nothing is written, so this does not tell whether the disk has room for another row."""
        self.check_process()
        with self.mutex, self._clear_errors(), self._transaction("BEGIN IMMEDIATE"):
            self._take_new()
            self._check_place()

    def _settle(self, *, resting: bool) -> None:
        """Move SQLite's log into the file if no other process reads it, and write the seal. The seal gets a
        hash of the file only if the file is small or this is its opening or closing (`resting`)."""
        emptied = self._empty_log()
        with self._transaction("BEGIN"):
            self._take_new()
            size = self._value("PRAGMA page_count") * self._value("PRAGMA page_size")
            sealed = Sealed(self.head, self._pages() if resting or size <= _SMALL else b"")
        self._open_seal.write(sealed, sync=not emptied)

    def _empty_log(self) -> bool:
        """Move SQLite's log into the database file. Return False if another process still uses the log."""
        self._live.execute(f"PRAGMA busy_timeout = {_MOMENT}")
        try:
            busy = self._value("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._live.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
        return not busy

    # --- a live session ---

    def lock(self) -> bool:
        """Lock the ledger for a session, until `unlock`. Return False if another session has locked it.
        Raises `LedgerError` if the ledger cannot be read, was moved, or has a second name."""
        with self.mutex:
            self.catch_up()
            if not self._open_seal.lock():
                return False
            try:
                self._check_place()
                check_one_name(self._path)
            except LedgerError:
                self.unlock()
                raise
            return True

    def unlock(self) -> None:
        """Unlock the ledger. Do nothing if the file was closed, or in a child process after a fork."""
        if self._fork != _forks.number:
            return
        with self.mutex:
            if self._seal is not None:
                self._seal.unlock()

    # --- errors and the end ---

    def check_process(self) -> None:
        """Raise `LedgerError` if this process was forked after opening the file: it would share the lock."""
        if self._fork != _forks.number:
            raise LedgerError(f"{self._path} was opened before this process was forked; {_AFTER_FORK}")

    @property
    def _live(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"{self._path} was closed; open it again to take part in sums")
        return self._connection

    @property
    def _open_seal(self) -> Seal:
        assert self._seal is not None  # only a ledger that is open for writing uses its seal
        return self._seal

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._live.execute(begin)
        try:
            yield
            self._live.execute("COMMIT")
        except BaseException:
            self._live.rollback()  # does nothing if SQLite has already rolled back
            raise

    @contextmanager
    def _clear_errors(self, *, opening: bool = False) -> Iterator[None]:
        """Turn SQLite errors into `LedgerError`. If `opening`, an SQL error (no such table) means damage."""
        damage = (*_DAMAGE, sqlite3.SQLITE_ERROR) if opening else _DAMAGE
        try:
            yield
        except UnicodeDecodeError:  # a damaged name made SQLite's error text invalid
            raise self._damaged() from None
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in damage:
                raise self._damaged() from None
            raise LedgerError(f"{self._path} cannot be used: {error}") from None

    def _damaged(self) -> DamagedLedger:
        return DamagedLedger(f"{self._path} is damaged; restore it, do not delete it")

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        """Close the file: later calls raise `LedgerError`. In a forked child, only drop the references."""
        if self._fork != _forks.number:
            _forks.connections.append(self._connection)  # kept open: closing it could disturb the parent
            self._seal = self._connection = None
            return
        with self.mutex:
            if self._seal is not None:
                with suppress(LedgerError), self._clear_errors():
                    self._check_place()  # if the ledger was moved, no seal is written for it
                    self._settle(resting=True)
                self._seal.unlock()  # a child process may have the same file open
                self._seal.close()
                self._seal = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                _forks.note_closed(self._place)
