"""Files of a deployment: read whole, and written so that a crash leaves the old one or the new one.

What is wrong with a file is said by the kind of error that its reader wants, in one sentence that names the
file and says what to do. No message quotes what is in it.
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

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644
_OTHERS: Final = 0o077


def _no_secret(_data: bytes) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """What a file is: `name` with its article, what to do if there is none, and the error that says so."""

    name: str
    remedy: str
    error: type[LocalError]

    def read(self, path: Path, *, secret: Callable[[bytes], bool] = _no_secret) -> bytes:
        """All of the file. If `secret` finds one in it, the file must not be open to other users."""
        with self._clear_errors(path, "read"):
            # Whoever opens a pipe would wait for its writer, were it not for O_NONBLOCK.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                mode = os.fstat(handle).st_mode
                self._check_regular(path, mode)
                with open(handle, "rb", closefd=False) as file:
                    data = file.read()
                # Whoever named the wrong file shall not be told to lock that one away.
                if secret(data):
                    self._check_private(path, mode)
                return data
            finally:
                os.close(handle)

    def create(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a file that must not exist yet. When this returns, it is on disk under its name."""
        with self._clear_errors(path, "written"), _draft(path, data, mode) as draft:
            os.link(draft, path)  # unlike a rename, this fails if the name is taken

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a file in place of the one that may be there. Readers see the old one or the new one."""
        with self._clear_errors(path, "written"), _draft(path, data, mode) as draft:
            draft.replace(path)

    def _check_regular(self, path: Path, mode: int) -> None:
        if not stat.S_ISREG(mode):
            raise self.error(f"{path} is {_sort(mode)}, not {self.name}")

    def _check_private(self, path: Path, mode: int) -> None:
        if mode & _OTHERS:
            raise self.error(
                f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}); run chmod 600 on it, and "
                "make another key if somebody may have copied it"
            )

    @contextmanager
    def _clear_errors(self, path: Path, done: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise self.error(
                f"{path} exists already, and is never overwritten; choose another name"
            ) from None
        except IsADirectoryError:
            raise self.error(f"{path} is a directory, not {self.name}") from None
        except FileNotFoundError:
            if path.parent.exists():  # but some, such as /proc, take no new files
                what = f"does not exist; {self.remedy}" if done == "read" else f"cannot be {done} there"
                raise self.error(f"{path} {what}") from None
            raise self.error(
                f"the directory {path.parent} does not exist; create it, or name another"
            ) from None
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise self.error(f"{path} cannot be {done}: {why}") from None


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A file beside `path` that has the contents already, for the caller to give the right name to."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        yield draft
    finally:
        with suppress(FileNotFoundError):  # renamed
            draft.unlink()
    _sync(path.parent)


def _sync(directory: Path) -> None:
    """A name is on disk only once its directory is."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sort(mode: int) -> str:
    return "a directory" if stat.S_ISDIR(mode) else "a special file"
