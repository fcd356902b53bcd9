"""The seal: a file beside a ledger, with the ledger's head and a hash of its file. It also serves as a lock.

The ledger's hash chain covers every row. It cannot show that the ledger is an older copy, or that a byte
outside the rows has changed; the seal shows both. The seal is written after the ledger is safe on disk. If a
process is killed in between, the seal has fewer rows than the ledger, never more. So a ledger with fewer rows
than its seal has lost rows. During a session, the process holds a lock on the seal file. The operating system
releases this lock if the process dies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import DamagedLedger, LedgerError
from secagg.hashing import DIGEST_BYTES, digest
from secagg.ledger.chained_rows import Head
from secagg.ledger.file_location import Place
from secagg.ledger.file_lock import try_lock_file, unlock_file

_ROWS_BYTES: Final = 8
_BYTES: Final = _ROWS_BYTES + 3 * DIGEST_BYTES


@dataclass(frozen=True)
class Sealed:
    """The contents of a seal: the head of the ledger, and a hash of its file (empty if not computed)."""

    head: Head
    pages: bytes = b""

    def encode(self) -> bytes:
        pages = self.pages or bytes(DIGEST_BYTES)
        fields = self.head.rows.to_bytes(_ROWS_BYTES, "big") + self.head.hash + pages
        return fields + digest("ledger seal", fields)


def seal_path(path: Path) -> Path:
    return path.with_name(path.name + "-seal")


def read_seal(path: Path) -> Sealed | None:
    """Return the seal of the ledger at `path`; None if missing or empty. Raises `LedgerError` if damaged."""
    try:
        data = seal_path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{seal_path(path)} cannot be read: {error.strerror}") from None
    if not data.strip(b"\0"):
        return None
    return _parse(data, path)


def _parse(data: bytes, path: Path) -> Sealed:
    rows, end = data[:_ROWS_BYTES], _ROWS_BYTES + DIGEST_BYTES
    pages = data[end : end + DIGEST_BYTES]
    head = Head(int.from_bytes(rows, "big"), data[_ROWS_BYTES:end])
    sealed = Sealed(head, pages if any(pages) else b"")
    if len(data) != _BYTES or data != sealed.encode():
        raise DamagedLedger(
            f"{seal_path(path)} is damaged; restore it or, if {path} is sure to be its newest copy, delete it"
        )
    return sealed


class Seal:
    """Opens or creates the seal of the ledger at `path`: a file with its last state that is also its lock."""

    def __init__(self, path: Path) -> None:
        self._path = seal_path(path)
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{self._path} cannot be opened: {error.strerror}") from None
        self.place = Place.of(self._path, self._file)

    def write(self, sealed: Sealed, *, sync: bool) -> None:
        """Write `sealed`. Without `sync`, a power failure may undo this. Raises `LedgerError` on failure."""
        try:
            os.pwrite(self._file, sealed.encode(), 0)
            if sync:
                os.fsync(self._file)
        except OSError as error:
            raise LedgerError(f"{self._path} could not be written: {error.strerror}") from None

    def lock(self) -> bool:
        """Lock the file for a session, without waiting. Return False if another session has locked it."""
        return try_lock_file(self._file)

    def unlock(self) -> None:
        unlock_file(self._file)

    def close(self) -> None:
        os.close(self._file)
