"""Files of one JSON object a line, to which lines are added for as long as a run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from sims.config_problems import ConfigError
from sims.records.files import PUBLIC, json_object, read_file, told, write_all


class LinesFile:
    """Open for adding lines. A line is written as a whole, and is safe once `sync` has returned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with told(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(path, flags, PUBLIC)
        self.count = 0

    @classmethod
    def create(cls, path: Path) -> Self:
        """An empty one, whatever was there before."""
        file = cls(path)
        file._cut(0)
        return file

    @classmethod
    def resume(cls, path: Path, count: int) -> Self:
        """One with its first `count` lines; what came after them is gone."""
        kept = _first(path, read_file(path, _LOST), count)
        file = cls(path)
        file._cut(len(kept))
        file.count = count
        return file

    def _cut(self, size: int) -> None:
        with told(self._path):
            os.ftruncate(self._handle, size)

    def add(self, content: Mapping[str, Any]) -> None:
        """One more line, at once. A disk that takes a part of it only is left without that part."""
        with told(self._path):
            size = os.fstat(self._handle).st_size
            try:
                write_all(self._handle, _line(content))
            except OSError:
                os.ftruncate(self._handle, size)
                raise
        self.count += 1

    def sync(self) -> None:
        with told(self._path):
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


_LOST = "it is lost, so this run cannot go on: --restart begins anew"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All of them but a torn last one; none if there is no such file. Raises `ConfigError` for other text."""
    if not path.exists():
        return []
    content = read_file(path, "")
    whole = content[: content.rfind(b"\n") + 1]
    return [_object(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]


def _first(path: Path, content: bytes, count: int) -> bytes:
    end = 0
    for number in range(count):
        end = content.find(b"\n", end) + 1
        if end == 0:
            raise ConfigError(f"{path} has {number} lines of the {count} it should have: {_LOST}")
    return content[:end]


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    found = json_object(line)
    if found is None:
        raise ConfigError(f"{path}: line {number} is damaged: it is no JSON object")
    return found
