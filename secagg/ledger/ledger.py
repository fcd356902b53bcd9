"""What the ledgers of clients and servers have in common: an owner, a file, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from secagg.errors import ForeignLedger, NewerLedger
from secagg.ledger.chain import Body, Head, Row
from secagg.ledger.file import LedgerFile, create_file
from secagg.ledger.owner import Owner
from secagg.ledger.place import one_path


class Ledger(ABC):
    """An open ledger. What it knows is what its rows say; nothing is known before its row is on disk."""

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
        """Know what a row says. False: rows of its kind mean nothing here."""

    @property
    def head(self) -> Head:
        """To be kept elsewhere: it tells this ledger from any older copy of it."""
        self._file.catch_up()
        return self._file.head

    def __repr__(self) -> str:
        end = "" if self._file.is_open else ", closed"
        return f"{type(self).__name__}(path={str(self._path)!r}, rows={self._file.head.rows}{end})"

    def close(self) -> None:
        """Let go of the file. Whoever still wants to write something fails, and so stays silent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
