"""Reading a ledger without being its owner, also while its owner uses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secagg.budget import Spend
from secagg.errors import DamagedLedger
from secagg.ledger.chain import Head, Row
from secagg.ledger.file import READING, READING_AT_REST, LedgerFile
from secagg.ledger.owner import Owner, Role
from secagg.ledger.place import one_path, resting
from secagg.noise.accounting import Adjacency

# Which rows cost something: a client pays when its answer leaves, a server counts what was released.
_CHARGED = {Role.CLIENT: "answer", Role.SERVER: "released"}


@dataclass(frozen=True)
class Reading:
    """All rows of a ledger, verified."""

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
    """Raises `LedgerError` as opening it would. Nobody is kept waiting for long.

    Nothing is written to a ledger that rests, nor beside it. One that is in use, or has a log because its
    last user was killed, can only be read together with that log: SQLite may leave the log's index beside it.

    Returns its owner, its rows and the head of their chain, all of them verified.

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
    """None if it does not rest, or somebody began to use it meanwhile."""
    before = resting(path)
    if before is None:
        return None
    try:
        reading = _read(path, READING_AT_REST)
    except DamagedLedger:
        if resting(path) == before:
            raise
        return None
    return reading if resting(path) == before else None


def _read(path: Path, access: str) -> Reading:
    rows: list[Row] = []
    file = LedgerFile(path, rows.append, access=access)
    file.close()
    return Reading(Owner.of(rows[0].body), tuple(rows), file.head)
