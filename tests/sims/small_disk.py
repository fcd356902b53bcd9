"""A small file system for tests, which can be filled up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BYTES = 4 << 20


class SmallDisk:
    """A file system of a few megabytes, mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Write until not one byte more fits."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def free(self) -> None:
        self._ballast.unlink()

    def allow_writing(self, allowed: bool) -> None:
        _command("mount", "-o", "remount,rw" if allowed else "remount,ro", str(self.path), check=True)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Context manager: a `SmallDisk` at `path`. Skip the test where nothing can be mounted."""
    path.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={_BYTES}")
    if os.geteuid() != 0 or not _command("mount", *options, "tmpfs", str(path), check=False):
        pytest.skip("only root can mount a file system")
    try:
        yield SmallDisk(path)
    finally:
        _command("umount", "--lazy", str(path), check=True)


def _command(*command: str, check: bool) -> bool:
    return subprocess.run(command, capture_output=True, check=check).returncode == 0
