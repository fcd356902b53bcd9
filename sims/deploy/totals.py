"""Released totals, each in a file of its own: `00000012-03-mean.npz` is sum 3 of its session, in round 12.

Such a file holds an array for each part, by its name, and beside them `_kind`, `_round`, `_clients` (how many
are in the total) and `_invited`. Names of parts begin with a letter, so that they never collide with these.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.net.files import PRIVATE, FileKind
from secagg.spec import Total
from sims.config_problems import ConfigError
from sims.deploy.questions import Question

_REMEDY: Final = "correct the path"
_NAME: Final = re.compile(r"([0-9]{8,18})-[0-9]{2}-.*\.npz", re.DOTALL)
TOTAL: Final = FileKind("a total", _REMEDY, ConfigError)


@dataclass(frozen=True)
class Totals:
    """A directory of them. What is there is never overwritten."""

    directory: Path

    def prepare(self) -> None:
        """Make the directory, if its parent is there."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be a directory: {error.strerror}") from None

    def check_writable(self) -> None:
        """Raise `ConfigError` unless a total could be stored now: to ask for it would cost clients."""
        probe = self.directory / f".probe-{secrets.token_hex(8)}"
        TOTAL.create(probe, b"", mode=PRIVATE)
        probe.unlink(missing_ok=True)

    def check_free(self, question: Question) -> None:
        """Raise `ConfigError` if there is such a total already: a second one could not be stored."""
        path = self._path(question)
        if os.path.lexists(path):
            raise ConfigError(f"{path} is there already; move it away, or set session.first_round beyond it")

    def round_after(self) -> int:
        """The first round after all that a total here is of. Raises `ConfigError` if nobody can look."""
        try:
            found = [_NAME.match(name) for name in os.listdir(self.directory)]
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be read: {error.strerror}") from None
        return max((int(match[1]) for match in found if match), default=-1) + 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Two servers here would take each other's names. The lock is gone with its process."""
        try:
            handle = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be used: {error.strerror}") from None
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.directory} is in use by another server; name another") from None
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be locked: {error.strerror}") from None

    def store(self, total: Total, question: Question) -> Path:
        """When this returns, the total is on disk. Raises `ConfigError` if it cannot be."""
        about = {
            "kind": question.kind,
            "round": question.round_number,
            "clients": total.count,
            "invited": total.invited,
        }
        arrays = {**total.parts, **{f"_{name}": np.array(value) for name, value in about.items()}}
        path = self._path(question)
        TOTAL.create(path, _npz(arrays), mode=PRIVATE)
        return path

    def _path(self, question: Question) -> Path:
        return self.directory / f"{question.round_number:08d}-{question.sum_index:02d}-{question.kind}.npz"


def _npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """What `numpy.savez` writes. That function takes no array whose name is `file`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()
