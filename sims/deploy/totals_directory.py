"""The directory in which a server stores released totals. Each total is a file: `00000012-03-mean.npz` is sum
3 of its session, in round 12. It holds an array for each part, by its name, and `_kind`, `_round`, `_clients`
(how many are in the total) and `_invited` (how many were asked). Names of parts never begin with "_"."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.ledger.file_lock import try_lock_file
from secagg.net.atomic_files import PRIVATE, FileKind
from secagg.sum_spec import Total
from sims.config_problems import ConfigError
from sims.deploy.disk_room import check_room
from sims.deploy.sum_schedule import ScheduledSum

_NAME: Final = re.compile(r"([0-9]{8,18})-[0-9]{2}-.*\.npz", re.DOTALL)
TOTAL: Final = FileKind("a total", "correct the path", ConfigError)


@dataclass(frozen=True)
class TotalsDirectory:
    """A directory with a file for each released total. Files are never overwritten."""

    directory: Path

    def prepare(self) -> None:
        """Create the directory if it does not exist. Raise `ConfigError` if this is impossible."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be a directory: {error.strerror}") from None

    def check_writable(self) -> None:
        """Raise `ConfigError` if no total can be stored. This is checked before each sum, because a sum costs
        privacy even if its total is lost."""
        check_room(self.directory)

    def check_free(self, question: ScheduledSum) -> None:
        """Raise `ConfigError` if there is already a file for the total of this sum."""
        path = self._path(question)
        if os.path.lexists(path):
            raise ConfigError(f"{path} is there already; move it away, or set session.first_round beyond it")

    def round_after(self) -> int:
        """Return the largest round number of any stored total plus 1, or 0 if nothing is stored. Raise
        `ConfigError` if the directory cannot be read."""
        try:
            found = [_NAME.match(name) for name in os.listdir(self.directory)]
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be read: {error.strerror}") from None
        return max((int(match[1]) for match in found if match), default=-1) + 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the directory while the context lasts. Raise `ConfigError` if another server has locked it."""
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
            locked = try_lock_file(handle)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be locked: {error.strerror}") from None
        if not locked:
            raise ConfigError(f"{self.directory} is in use by another server; name another")

    def store(self, total: Total, question: ScheduledSum) -> Path:
        """Write the total to a new file, and return its path. Raise `ConfigError` if this fails."""
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

    def _path(self, question: ScheduledSum) -> Path:
        return self.directory / f"{question.round_number:08d}-{question.sum_index:02d}-{question.kind}.npz"


def _npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return `arrays` in the format of `numpy.savez`, which itself does not accept an array named `file`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()
