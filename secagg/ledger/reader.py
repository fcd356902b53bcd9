"""`read_ledger`, which reads and verifies a ledger for auditors, and the `Reading` that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secagg.client_budget import Spend
from secagg.errors import DamagedLedger
from secagg.ledger.base_ledger import HAND_OVER, Owner, Role, after_hand_over
from secagg.ledger.chained_rows import Head, Row
from secagg.ledger.file import READING, READING_AT_REST, LedgerFile
from secagg.ledger.file_location import log_path, one_path, status
from secagg.noise.zcdp_cost import Adjacency

# The type of row that has a charge: a client is charged for each answer, a server for each released sum.
_CHARGED = {Role.CLIENT: "answer", Role.SERVER: "released"}


@dataclass(frozen=True)
class Reading:
    """The verified contents of a ledger. `head` has the number of rows and the last hash."""

    owner: Owner
    rows: tuple[Row, ...]
    head: Head

    @property
    def spend(self) -> Spend:
        spend = Spend()
        for row in self.rows:
            if row.body["entry"] == _CHARGED[self.owner.role]:
                spend = spend.plus(row.body["charge"], Adjacency(row.body["adjacency"]))
        return spend


def read_ledger(path: Path | str) -> Reading:
    """Read and verify the ledger at `path`. Return its owner, its rows and its head.

    A ledger that is in use, or was in use when its process was killed, has a write-ahead log. The log is
    read too, and SQLite may leave an index file beside it. No other file is written. Raises
    `LedgerError` if the ledger is missing or damaged.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as place:
    ...     ClientLedger.create(Path(place, "ledger"), member=5).close()
    ...     [row.body["entry"] for row in read_ledger(Path(place, "ledger")).rows]
    ['created']
    """
    path = one_path(path)
    reading = _read_at_rest(path)
    return _read(path, READING) if reading is None else reading


def _read_at_rest(path: Path) -> Reading | None:
    """Read a ledger, ignoring locks and SQLite's log. Return None if it is in use, or changes meanwhile."""
    before = _resting(path)
    if before is None:
        return None
    try:
        reading = _read(path, READING_AT_REST)
    except DamagedLedger:
        if _resting(path) == before:
            raise
        return None
    return reading if _resting(path) == before else None


def _resting(path: Path) -> tuple[int, ...] | None:
    """Return device, inode, size, mtime of a ledger, to detect changes; None if it has a log (is in use)."""
    found = status(path)
    if log_path(path).exists():
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path, access: str) -> Reading:
    rows: list[Row] = []
    file = LedgerFile(path, rows.append, access=access)
    file.close()
    return Reading(_owner(rows, path), tuple(rows), file.head)


def _owner(rows: list[Row], path: Path) -> Owner:
    """Return the owner after the last row: a hand-over gives a ledger a new key."""
    owner = Owner.of(rows[0].body)
    for row in rows:
        if row.body["entry"] == HAND_OVER:
            owner = after_hand_over(owner, row, path)
    return owner
