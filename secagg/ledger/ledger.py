"""`Ledger`, the base class of the client's and the server's ledger, and `read_ledger` for auditors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from secagg.client_budget import Spend
from secagg.errors import DamagedLedger, ForeignLedger, NewerLedger
from secagg.ledger.chain import Body, Head, Owner, Role, Row
from secagg.ledger.file import READING, READING_AT_REST, LedgerFile, create_file
from secagg.ledger.file_path import one_path, resting
from secagg.noise.zcdp_cost import Adjacency


class Ledger(ABC):
    """The base class of ledgers. The state of a ledger is computed only from its rows on disk."""

    def __init__(self, path: Path | str, owner: Owner) -> None:
        self._path = one_path(path)
        self._owner = owner
        self._file = LedgerFile(self._path, self._apply)

    @classmethod
    def _create(cls, path: Path | str, owner: Owner) -> Self:
        create_file(one_path(path), {"entry": "created", **owner.body()})
        return cls(path, owner)

    def _apply(self, row: Row) -> None:
        if row.body["entry"] == "created":
            found = Owner.of(row.body)
            if found != self._owner:
                raise ForeignLedger(f"{self._path} belongs to {found}, not to {self._owner}")
        elif not self._take(row.body):
            raise NewerLedger(
                f"row {row.number} of {self._path} is of a kind that this version does not know"
            )

    @abstractmethod
    def _take(self, body: Body) -> bool:
        """Update the state of this ledger from the `body` of one row. Return False if its type is unknown."""

    @property
    def head(self) -> Head:
        """The number of rows and the last hash. A copy kept elsewhere shows if an old ledger was put back."""
        self._file.catch_up()
        return self._file.head

    def __repr__(self) -> str:
        end = "" if self._file.is_open else ", closed"
        return f"{type(self).__name__}(path={str(self._path)!r}, rows={self._file.head.rows}{end})"

    def close(self) -> None:
        """Close the file. Later calls raise `LedgerError`, so a client cannot answer any more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


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
    read too, and SQLite may leave an index file beside it. Otherwise, no file is written. Raises
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
    """Read a ledger without locks or its log. Return None if it is in use, or changed while it was read."""
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
