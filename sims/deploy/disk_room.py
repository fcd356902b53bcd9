"""Finds out whether a directory accepts files, by writing one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from secagg.net.atomic_files import PRIVATE, FileKind
from sims.config_problems import ConfigError

# One block of a disk: an empty file can often be made on a disk that is full.
_BYTES: Final = 4096
_PROBE: Final = FileKind("a probe", "correct the path", ConfigError)


def check_room(directory: Path) -> None:
    """Raise `ConfigError` if no file can be written in `directory`, for example because the disk is full."""
    probe = directory / f".probe-{secrets.token_hex(8)}"
    _PROBE.create(probe, bytes(_BYTES), mode=PRIVATE)
    probe.unlink(missing_ok=True)
