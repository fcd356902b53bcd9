"""Released totals, each in a file of its own: `00000012-03-mean.npz` is sum 3 of its session, in round 12.

Such a file holds an array for each part, by its name, and beside them `_kind`, `_round`, `_clients` (how many
are in the total) and `_invited`. Names of parts begin with a letter, so that they never collide with these.
"""

from __future__ import annotations

import io
import secrets
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.net.files import PRIVATE, Kind
from secagg.spec import Total
from sims.deploy.problems import ConfigError
from sims.deploy.questions import Question

_REMEDY: Final = "correct the path"
TOTAL: Final = Kind("a total", _REMEDY, ConfigError)


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

    def store(self, total: Total, question: Question) -> Path:
        """When this returns, the total is on disk. Raises `ConfigError` if it cannot be."""
        kind, number, index = question.kind, question.round_number, question.sum_index
        about = {"kind": kind, "round": number, "clients": total.count, "invited": total.invited}
        arrays = {**total.parts, **{f"_{name}": np.array(value) for name, value in about.items()}}
        path = self.directory / f"{number:08d}-{index:02d}-{kind}.npz"
        TOTAL.create(path, _npz(arrays), mode=PRIVATE)
        return path


def _npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """What `numpy.savez` writes. That function takes no array whose name is `file`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()
