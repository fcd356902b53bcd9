"""The path of a ledger: checks that a ledger has only one path, and that its file was not replaced.

The paths of the log and of the seal, which is also the lock, are derived from the ledger's own path. A ledger
with two paths would have two logs and two locks, so two sessions could spend one budget. Symbolic links are
resolved, hard links are refused, and each write checks that the path still leads to the file that was opened.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Final

from secagg.errors import LedgerError, MissingLedger

_DRAFT_BYTES: Final = 8


def one_path(path: Path | str) -> Path:
    """Return the absolute `path` without symbolic links. Raises `LedgerError` if links lead in a circle."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:  # links that lead back to themselves
        raise LedgerError(f"{path} cannot be found: {error}") from None


def log_path(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log for the ledger at `path`."""
    return path.with_name(path.name + "-wal")


def index_path(path: Path) -> Path:
    """Return the path of the index of SQLite's write-ahead log for the ledger at `path`."""
    return path.with_name(path.name + "-shm")


def tag_key_path(path: Path) -> Path:
    """Return the path of the key of `ClientLedger.tag`, which auditors who read the ledger must not see."""
    return path.with_name(path.name + "-tag-key")


def sync_directory(directory: Path) -> None:
    """Wait until the names of new files in `directory` are on disk. Raises `OSError` if this fails."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def draft_path(path: Path) -> Path:
    """Return a new random path, under which a ledger is created before it is linked to `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_DRAFT_BYTES)}")


def check_usable(path: Path, *, writing: bool) -> None:
    """Raise `LedgerError` unless `path` is a regular file that the user may read and, if `writing`, write."""
    mode = status(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "directory" if stat.S_ISDIR(mode) else "special file"
        raise LedgerError(f"{path} is a {kind}, not a ledger")
    if not os.access(path, os.R_OK | (os.W_OK if writing else 0)):
        raise LedgerError(f"{path} may not be {'written' if writing else 'read'} by this user")


def check_one_name(path: Path) -> None:
    """Delete a second hard link left by an interrupted creation. Raise `LedgerError` if another remains."""
    if status(path).st_nlink == 1:
        return
    for draft in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 2 * _DRAFT_BYTES}"):
        with suppress(FileNotFoundError):  # the process that creates it has deleted it meanwhile
            if draft.samefile(path):
                draft.unlink()
    names = status(path).st_nlink
    if names != 1:
        raise LedgerError(
            f"{path} has {names} names (hard links), and could be spent under each of them: keep one, delete "
            "the others (`find -samefile` shows them), and make backups as copies"
        )


@dataclass(frozen=True)
class Place:
    """A path and the identity (device and inode) of the file that was found there."""

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path, handle: int | None = None) -> Place:
        """Return `path` with its file's device and inode. `handle`, if given, is this file, already open."""
        found = status(path) if handle is None else os.fstat(handle)
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise `LedgerError` if the path no longer leads to the file with this device and inode."""
        try:
            found = Place.of(self.path)
        except MissingLedger:
            found = None
        if found != self:
            raise LedgerError(
                f"{self.path} was {'deleted' if found is None else 'replaced'} while it was in use; "
                "what is charged now would be lost: restore the newest copy, and open that"
            )


def status(path: Path) -> os.stat_result:
    """Return `path.stat()`. Raises `MissingLedger` if there is no such file, and `LedgerError` on failure."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingLedger(f"{path} does not exist; restore it, or create it for a new identity") from None
    except OSError as error:
        raise LedgerError(f"{path} cannot be opened: {error.strerror}") from None
