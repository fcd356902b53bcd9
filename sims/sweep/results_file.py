"""Keeps the results of a sweep's cells in a file, one line of JSON each. A line is added when its cell is
finished. If a crash cuts off the last line, that line is ignored. At the end of the sweep, lines are sorted
into the order of its cells. Several programs may write to one file."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from secagg.ledger.file_lock import lock_file
from sims.config_problems import ConfigError
from sims.scenario.loading_and_variants import Variant


@dataclass(frozen=True)
class Record:
    """The result of a finished cell. `digest` is the hash of `settings`, `cell` has those that are swept."""

    digest: str
    cell: Mapping[str, Any]
    settings: Mapping[str, Any]
    result: Mapping[str, Any]


class Results:
    """The file `NAME.jsonl` of results. File and directory are created if they do not exist. `needed` are
    keys that every result must have. All operations raise `ConfigError` if a line of the file is not a
    result, or if the file cannot be read or written."""

    def __init__(self, directory: Path, name: str, *, needed: Collection[str] = ()) -> None:
        self._needed = frozenset(needed)
        self.path = directory / f"{name}.jsonl"
        with _os_errors(self.path):
            directory.mkdir(parents=True, exist_ok=True)
            self.path.touch()

    def read(self) -> dict[str, Record]:
        """Return all results by the digests of their cells."""
        with _os_errors(self.path), self._locked():
            return {each.digest: each for each in self._records()}

    def _records(self) -> Iterator[Record]:
        return read_records(self.path, self._needed)

    def add(self, cell: Variant, result: Mapping[str, Any]) -> Record:
        """Append the result of a cell to the file, and return it as a record."""
        settings = cell.settings.model_dump(mode="json", exclude_defaults=True)
        record = Record(cell.digest, dict(cell.key), settings, result)
        with _os_errors(self.path), self._locked(), self.path.open("r+b") as file:
            file.seek(len(_whole_lines(self.path.read_bytes())))
            file.truncate()
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        return record

    def sort(self, order: Sequence[Variant], *, prune: bool = False) -> int:
        """Put the results of the cells `order` first in the file, in this order, with their present keys as
        `cell`. Other results follow; if `prune`, they are removed. Return how many were removed."""
        rank = {cell.digest: place for place, cell in enumerate(order)}
        names = {cell.digest: dict(cell.key) for cell in order}
        with _os_errors(self.path), self._locked():
            found = {each.digest: each for each in self._records()}  # The last result of a cell counts.
            kept = [each for each in found.values() if not prune or each.digest in rank]
            kept = [replace(each, cell=names.get(each.digest, each.cell)) for each in kept]
            text = b"".join(map(_line, sorted(kept, key=lambda each: rank.get(each.digest, len(rank)))))
            if text != self.path.read_bytes():
                self._replace(text)
        return len(found) - len(kept)

    def _replace(self, text: bytes) -> None:
        draft = self.path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the directory against other programs. A lock on the file would not survive its replacement."""
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            lock_file(descriptor)
            yield
        finally:
            os.close(descriptor)


def read_records(path: Path, needed: Collection[str] = ()) -> Iterator[Record]:
    """Yield all results of a file. Raises `ConfigError` if a line is no result or lacks a key in `needed`."""
    for number, line in enumerate(_whole_lines(path.read_bytes()).splitlines(), 1):
        try:
            yield _record(json.loads(line), needed)
        except (ValueError, TypeError):
            raise ConfigError(
                f"{path}: line {number} is not a result: remove it, and its cell is run again"
            ) from None


def _record(content: Any, needed: Collection[str]) -> Record:
    """Return a parsed line as a record. Raises `ValueError` or `TypeError` if it is not a valid result."""
    record = Record(**content)
    tables = (record.cell, record.settings, record.result)
    if not isinstance(record.digest, str) or not all(isinstance(each, dict) for each in tables):
        raise ValueError
    if not record.result.keys() >= set(needed):
        raise ValueError
    return record


def _line(record: Record) -> bytes:
    return json.dumps(vars(record), separators=(",", ":")).encode() + b"\n"


def _whole_lines(content: bytes) -> bytes:
    """Return the content up to its last line break, without a line that a crash cut off."""
    return content[: content.rfind(b"\n") + 1]


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """Convert an `OSError` in the block to a `ConfigError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"results cannot be kept in {path}: {error.strerror}") from None
