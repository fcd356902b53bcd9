"""Writing files so that a crash leaves the old one or the new one, and saying what a disk refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError
from sims.records.run_paths import draft_of

PUBLIC: Final = 0o644
PRIVATE: Final = 0o600


@contextmanager
def told(path: Path, what: str = "written") -> Iterator[None]:
    """What the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be {what}: {error.strerror}") from None


def replace_file(path: Path, data: bytes, *, mode: int = PUBLIC, sync: bool = True) -> None:
    """Put `data` in the place of what was at `path`, all of it or nothing. Raises `ConfigError`."""
    draft = path.with_name(draft_of(path.name))
    with told(path):
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
            try:
                write_all(handle, data)
                if sync:
                    os.fsync(handle)
            finally:
                os.close(handle)
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


def write_all(handle: int, data: bytes) -> None:
    """All of it: a write may take less than it is given."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def json_object(data: bytes) -> dict[str, Any] | None:
    """What these bytes say, or None if that is no object of JSON."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_file(path: Path, remedy: str) -> bytes:
    """What is in it. Raises `ConfigError`, which says `remedy` where there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; {remedy}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
