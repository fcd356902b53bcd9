"""`FileKind`: reads files, and writes them atomically. After a crash, the old or the new file is complete.

An error is one sentence that names the file and says what to do. No error quotes the contents of the file.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import LocalError
from secagg.ledger.file_location import sync_directory

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644
_OTHERS: Final = 0o077


@dataclass(frozen=True)
class FileKind:
    """One kind of file, and how to read and write it. Errors are of type `error`; their text uses `name`,
    with an article, and `remedy`, which says what to do if there is no such file."""

    name: str
    remedy: str
    error: type[LocalError]

    def read(self, path: Path, *, secret: Callable[[bytes], bool] = lambda _: False) -> bytes:
        """Return the contents of a file. Raise `error` if it cannot be read, or if `secret(contents)` is true
        and the mode of the file gives other users access."""
        with self._readable_errors(path, "read"):
            # Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                mode = os.fstat(handle).st_mode
                if not stat.S_ISREG(mode):
                    found = "a directory" if stat.S_ISDIR(mode) else "a special file"
                    raise self.error(f"{path} is {found}, not {self.name}")
                with open(handle, "rb", closefd=False) as file:
                    data = file.read()
                # A file without a secret is a wrong file: the advice to change its mode would not help.
                if secret(data):
                    self._check_private(path, mode)
                return data
            finally:
                os.close(handle)

    def exists(self, path: Path) -> bool:
        """Return whether there is anything at `path`. Raise `error` if it cannot be known."""
        return file_status(path, self.error) is not None

    def create(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a new file, and return when it is on disk. Raise `error` if this fails or `path` exists."""
        with self._readable_errors(path, "written"), _draft(path, data, mode) as draft:
            os.link(draft, path)  # unlike a rename, this fails if the name is taken

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write or replace a file atomically: readers see all old or all new data. May raise `error`."""
        with self._readable_errors(path, "written"), _draft(path, data, mode) as draft:
            draft.replace(path)

    def _check_private(self, path: Path, mode: int) -> None:
        if mode & _OTHERS:
            raise self.error(
                f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}); run chmod 600 on it, and "
                "make another key if this one may have been copied"
            )

    @contextmanager
    def _readable_errors(self, path: Path, done: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise self.error(
                f"{path} exists already, and is never overwritten; choose another name"
            ) from None
        except IsADirectoryError:
            raise self.error(f"{path} is a directory, not {self.name}") from None
        except FileNotFoundError:
            if path.parent.exists():  # some directories, such as /proc, accept no new files
                what = f"does not exist; {self.remedy}" if done == "read" else f"cannot be {done} there"
                raise self.error(f"{path} {what}") from None
            raise self.error(
                f"the directory {path.parent} does not exist; create it, or name another"
            ) from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise self.error(f"{path} cannot be {done}: {why}") from None


def file_status(path: Path, error: type[LocalError]) -> os.stat_result | None:
    """Return the status of what is at `path`, or None if there is nothing. Raise `error` if it cannot be
    known: a file that may not be seen is not taken for one that does not exist."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as failure:  # a name with a zero byte is a ValueError
        why = failure.strerror if isinstance(failure, OSError) else failure
        raise error(f"{path} cannot be read: {why}; correct the path, or its permissions") from None


def is_directory(path: Path, error: type[LocalError]) -> bool:
    """Return whether there is a directory at `path`. Raise `error` as `file_status` does."""
    found = file_status(path, error)
    return found is not None and stat.S_ISDIR(found.st_mode)


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Yield the path of a temporary file with `data`, for the block to rename or link. Then delete it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        yield draft
    finally:
        with suppress(FileNotFoundError):  # the block has renamed it
            draft.unlink()
    sync_directory(path.parent)
