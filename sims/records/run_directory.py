"""Reads, writes and locks a run directory: JSON files, replaced atomically, and files of JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from secagg.ledger.file_lock import try_lock_file
from secagg.net.atomic_files import file_status, is_directory
from sims.config_problems import ConfigError
from sims.records.run_file_names import LOCK, MANIFEST, RUN, RUN_FILES, draft_of

FORMAT: Final = 2
PUBLIC: Final = 0o644
PRIVATE: Final = 0o600
RUNNING, INTERRUPTED, FINISHED, FAILED = "running", "interrupted", "finished", "failed"
PLAIN_CHANNELS: Final = ("plain", "ray-plain")  # the channels without protection, which keep no ledger
SERVED: Final = "served"  # the channel of a run with real clients; that of its scenario is for simulations


@dataclass(frozen=True)
class RunAdvice:
    """What error messages about a run directory tell the user to do: if it has another run or is in use
    (`other`), if it has a run with other settings (`foreign`), and if a file of it is lost (`lost`)."""

    other: str
    foreign: str
    lost: str


_RESTART: Final = "--restart begins the run anew"
SIMULATED: Final = RunAdvice("take another --out", f"take another --out, or {_RESTART}", _RESTART)


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run, in the directory `path`."""

    path: Path
    advice: RunAdvice = SIMULATED

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    # --- reading ---

    @property
    def exists(self) -> bool:
        """Return whether the directory holds a run, finished or not. Raise `ConfigError` if it cannot be
        read."""
        found = file_status(self / RUN, ConfigError)
        return found is not None and stat.S_ISREG(found.st_mode)

    @property
    def has_records(self) -> bool:
        """Return whether the directory holds a run, even if its `run.json` was removed."""
        return self.exists or file_status(self / MANIFEST, ConfigError) is not None

    def facts(self) -> dict[str, Any]:
        """Return the object in `run.json`. Raise `ConfigError` if missing, damaged or of another version."""
        if not self.exists:
            raise ConfigError(f"{self.path} is not the directory of a run: there is no {RUN} in it")
        facts = self.read_json(RUN)
        if facts.get("format") != FORMAT:
            raise ConfigError(f"{self / RUN} is of another version: its format is {facts.get('format')!r}")
        return facts

    @property
    def status(self) -> str:
        return str(self.facts().get("status"))

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in the file `name`. Raise `ConfigError` if it is missing or damaged."""
        path = self / name
        data = read_file(path, "the run has not come so far, or the file was removed")
        found = json_object(data)
        if found is None:
            raise ConfigError(f"{path} is damaged: it holds no JSON object")
        return found

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        return read_lines(self / name)

    # --- writing ---

    def make(self) -> None:
        """Create the directory if needed. Raise `ConfigError` if this fails, or if the directory holds other
        files and no run."""
        with disk_errors(self.path, "made"):
            self.path.mkdir(parents=True, exist_ok=True)
        self.check_strangers()

    def check_strangers(self) -> None:
        """Raise `ConfigError` if the directory holds other files and no run, or cannot be read."""
        with disk_errors(self.path, "read"):
            strangers = sorted(set(os.listdir(self.path)) - {*RUN_FILES, *map(draft_of, RUN_FILES), LOCK})
        if strangers and not self.exists:
            raise ConfigError(
                f"{self.path} holds something else than a run, such as {strangers[0]}: {self.advice.other}"
            )

    def clear(self) -> None:
        """Remove the files that a run writes, except its lock. Raise `ConfigError` on a disk error."""
        with disk_errors(self.path, "cleared"):
            for name in (*RUN_FILES, *map(draft_of, RUN_FILES)):
                with suppress(FileNotFoundError):
                    (self / name).unlink()

    def remove(self) -> None:
        """Remove the run's files, then the directory. Raise `ConfigError` if other files remain in it."""
        self.clear()
        with disk_errors(self.path, "removed"):
            (self / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    def write(self, name: str, data: bytes, *, mode: int = PUBLIC, sync: bool = True) -> None:
        replace_file(self / name, data, mode=mode, sync=sync)

    def write_json(self, name: str, content: Mapping[str, Any], *, sync: bool = True) -> None:
        self.write(name, json_text(content), sync=sync)

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Lock the directory during the block. Raise `ConfigError` if it is locked or cannot be opened."""
        with disk_errors(self.path, "opened"):
            handle = os.open(self / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PUBLIC)
        try:
            if not try_lock_file(handle):
                raise ConfigError(
                    f"{self.path} is in use: another process runs it; end that one, or {self.advice.other}"
                )
            yield self
        finally:
            os.close(handle)


def find_runs(path: Path) -> list[RunDirectory]:
    """Return the run in `path`, or else those in its subdirectories. Raise `ConfigError` if there is none."""
    if not is_directory(path, ConfigError):
        raise ConfigError(f"{path} is no directory; give that of a run, such as results/NAME")
    if RunDirectory(path).has_records:
        return [RunDirectory(path)]
    found = [RunDirectory(each) for each in sorted(path.iterdir()) if RunDirectory(each).has_records]
    if not found:
        raise ConfigError(f"there is no run in {path}: secagg simulate makes one")
    return found


@contextmanager
def disk_errors(path: Path, what: str = "written") -> Iterator[None]:
    """Convert an `OSError` in the block to a `ConfigError` with the text "`path` cannot be `what`: ..."."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be {what}: {error.strerror}") from None


def replace_file(path: Path, data: bytes, *, mode: int = PUBLIC, sync: bool = True) -> None:
    """Write `data` to the file at `path`, and replace an existing file atomically. If `sync`, wait until the
    data is on the disk. Raise `ConfigError` on a disk error."""
    draft = path.with_name(draft_of(path.name))
    with disk_errors(path):
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
    """Write all of `data` to a file descriptor. Repeat `os.write` if it wrote only a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def json_text(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the text that is written to files."""
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def json_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object that `data` encodes, or None if `data` is not a JSON object."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_file(path: Path, remedy: str) -> bytes:
    """Return a file's content. Raise `ConfigError` if that fails, with the text `remedy` if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; {remedy}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


class LinesFile:
    """A file to which JSON objects are appended, one per line. After `sync`, all lines are on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(path, flags, PUBLIC)
        self.count = 0  # lines in the file
        self._size, self._state = 0, hashlib.sha256()  # of these lines

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create an empty file at `path`, or empty an existing one. Raise `ConfigError` on a disk error."""
        file = cls(path)
        file._cut(0)
        return file

    @classmethod
    def resume(cls, path: Path, count: int, lost: str = _RESTART) -> Self:
        """Open the file and cut it after `count` lines. Raise `ConfigError` if it is missing, has fewer, or
        one of them is damaged; `lost` says what to do."""
        kept = first_lines(path, count, lost)
        file = cls(path)
        file._cut(len(kept))
        file.count = count
        file._note(kept)
        return file

    def _cut(self, size: int) -> None:
        with disk_errors(self._path):
            os.ftruncate(self._handle, size)

    def add(self, content: Mapping[str, Any]) -> None:
        """Append `content` as a line. If that fails, remove what was written and raise `ConfigError`."""
        line = json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with disk_errors(self._path):
            size = os.fstat(self._handle).st_size
            try:
                write_all(self._handle, line)
            except OSError:
                os.ftruncate(self._handle, size)
                raise
        self.count += 1
        self._note(line)

    def _note(self, data: bytes) -> None:
        self._size += len(data)
        self._state.update(data)

    @property
    def size_and_hash(self) -> tuple[int, str]:
        """The number of bytes in the file, and their SHA-256 in hex."""
        return self._size, self._state.hexdigest()

    def sync(self) -> None:
        with disk_errors(self._path):
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


_LOST: Final = "it is lost, so this run cannot go on: {}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a file, one per line; an empty list if there is no such file. Ignore an
    incomplete last line. Raise `ConfigError` if another line is not a JSON object."""
    if not path.exists():
        return []
    content = read_file(path, "")
    return parsed_lines(path, content[: content.rfind(b"\n") + 1])


def parsed_lines(path: Path, whole: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects in `whole`, lines of the file at `path`. Raise `ConfigError` if one is none."""
    return [_object(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]


def first_lines(path: Path, count: int, lost: str) -> bytes:
    """Return the first `count` lines of a file of JSON objects. Raise `ConfigError` if it is missing, has
    fewer, or one is damaged; `lost` says what to do."""
    content, end = read_file(path, _LOST.format(lost)), 0
    for number in range(count):
        end = content.find(b"\n", end) + 1
        if end == 0:
            raise ConfigError(
                f"{path} has {number} lines of the {count} it should have: {_LOST.format(lost)}"
            )
    parsed_lines(path, content[:end])
    return content[:end]


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    found = json_object(line)
    if found is None:
        raise ConfigError(f"{path}: line {number} is damaged: it is no JSON object")
    return found
