"""The base of the client's and the server's ledger, and reading a ledger as an auditor."""

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
from secagg.noise.accounting import Adjacency


class Ledger(ABC):
    """An open ledger. Its state derives from its rows, and changes only when a row is on disk."""

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
            self._check_owner(Owner.of(row.body))
        elif not self._take(row.body):
            raise NewerLedger(
                f"row {row.number} of {self._path} is of a kind that this version does not know"
            )

    def _check_owner(self, found: Owner) -> None:
        if found != self._owner:
            raise ForeignLedger(f"{self._path} belongs to {found}, not to {self._owner}")

    @abstractmethod
    def _take(self, body: Body) -> bool:
        """Apply a row. Return False if rows of its kind are unknown here."""

    @property
    def head(self) -> Head:
        """The head, to be kept elsewhere: it distinguishes this ledger from any older copy."""
        self._file.catch_up()
        return self._file.head

    def __repr__(self) -> str:
        end = "" if self._file.is_open else ", closed"
        return f"{type(self).__name__}(path={str(self._path)!r}, rows={self._file.head.rows}{end})"

    def close(self) -> None:
        """Close the file. Later writes fail, and so nothing is answered."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


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
    """Read a ledger. Raises `LedgerError` as opening it would. It does not wait for long.

    Nothing is written to a ledger that is not in use, nor beside it. One that is in use, or has a log because
    its last user was killed, can only be read together with that log: SQLite may leave the log's index beside
    it.

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
    """Return None if it is in use, or another process began to use it meanwhile."""
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
