"""Checks what reading a ledger does not: the end of its file, whether it has a seal, and a client's key."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from secagg.errors import LedgerError
from secagg.keys import KEY_BYTES
from secagg.ledger import Reading
from secagg.ledger.file_location import log_path, tag_key_path
from secagg.ledger.rollback_seal import read_seal, seal_path
from sims.records.run_directory import disk_errors, read_file

# The header of an SQLite file has the size of its pages and their number.
_HEADER: Final = 100  # bytes
_PAGE_SIZE: Final = slice(16, 18)
_PAGES: Final = slice(28, 32)
_LARGEST_PAGE: Final = 65_536  # bytes; the header has a 1 for it


def file_problems(path: Path) -> Iterator[str]:
    """Yield a sentence for each file of the ledger at `path` that is not as the ledger left it."""
    try:
        if read_seal(path) is None:
            yield f"{seal_path(path)} is missing or empty: the end of the ledger may be missing, too"
    except LedgerError:
        return  # reported when the ledger is read
    if not log_path(path).exists() and path.is_file() and _has_more(path):
        yield f"{path} was altered: its size is not that of its pages"


def _has_more(path: Path) -> bool:
    """Return whether the file of a ledger at rest has another size than its header says: SQLite ignores the
    bytes after its last page."""
    with disk_errors(path, "read"), path.open("rb") as file:
        header = file.read(_HEADER)
        size = file.seek(0, 2)
    page = int.from_bytes(header[_PAGE_SIZE], "big")
    pages = int.from_bytes(header[_PAGES], "big")
    return size != pages * (_LARGEST_PAGE if page == 1 else page)


def tag_key_problems(path: Path, reading: Reading) -> Iterator[str]:
    """Yield a sentence if there is a tag key beside a client's ledger, and it is not that of the ledger."""
    own = tag_key_path(path)
    checks = [row.body["check"] for row in reading.rows if row.body["entry"] == "tag key"]
    if not own.exists():
        return
    key = read_file(own, "")
    if not checks or len(key) != KEY_BYTES or hmac.digest(key, b"", "sha256").hex() != checks[-1]:
        yield f"{own} was altered: it is not the key of this ledger"
