"""Reading a ledger without being its owner, also while its owner uses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secagg.budget import Spend
from secagg.ledger.chain import Head, Row
from secagg.ledger.file import LedgerFile
from secagg.ledger.owner import Owner, Role

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
                spend = spend.plus(row.body["charge"])
        return spend


def read_ledger(path: Path | str) -> Reading:
    """Raises `LedgerError` as opening it would. Nothing is written, and nobody is kept waiting for long."""
    rows: list[Row] = []
    file = LedgerFile(Path(path), rows.append, read_only=True)
    file.close()
    return Reading(Owner.of(rows[0].body), tuple(rows), file.head)
