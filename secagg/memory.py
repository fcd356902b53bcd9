"""What a client remembers beyond one session: answered queries, groups, sessions, sums without noise.

Masks protect one sum. That the same private vector is not summed over two different sets of clients, in
two sessions or after a restart, only memory can protect. An entry is made before the masked input leaves
and is never taken back.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from secagg.codec import Reader, encode_fields
from secagg.errors import MalformedMessage, MemoryFileError, SessionLive

NEVER: Final = -1


class Memory(Protocol):
    """What a client machine needs to remember. `remember_*` return when the entry is safe."""

    def open_session(self) -> None: ...
    def close_session(self) -> None: ...
    def knows_session(self, session: bytes) -> bool: ...
    def remember_session(self, session: bytes) -> None: ...
    def last_round(self, group: str) -> int: ...
    def knows_query(self, content: bytes) -> bool: ...
    def remember_answer(self, *, group: str, round_number: int, content: bytes) -> None: ...
    @property
    def answers(self) -> int: ...
    @property
    def registry_version(self) -> int: ...
    def remember_registry(self, version: int) -> None: ...


class VolatileMemory:
    """Memory that ends with the process: for simulations and tests."""

    def __init__(self) -> None:
        self._live = False
        self._sessions: set[bytes] = set()
        self._queries: set[bytes] = set()
        self._rounds: dict[str, int] = {}
        self._answers = 0
        self._registry_version = NEVER

    def open_session(self) -> None:
        if self._live:
            raise SessionLive("server", "this identity already takes part in a session")
        self._live = True

    def close_session(self) -> None:
        self._live = False

    def knows_session(self, session: bytes) -> bool:
        return session in self._sessions

    def remember_session(self, session: bytes) -> None:
        self._sessions.add(session)

    def last_round(self, group: str) -> int:
        """The highest round in which a sum of `group` was answered, or `NEVER`."""
        return self._rounds.get(group, NEVER)

    def knows_query(self, content: bytes) -> bool:
        return content in self._queries

    def remember_answer(self, *, group: str, round_number: int, content: bytes) -> None:
        self._queries.add(content)
        self._rounds[group] = max(round_number, self.last_round(group))
        self._answers += 1

    @property
    def answers(self) -> int:
        return self._answers

    @property
    def registry_version(self) -> int:
        return self._registry_version

    def remember_registry(self, version: int) -> None:
        self._registry_version = max(version, self._registry_version)


_MAGIC: Final = b"secagg memory 1\n"
_SESSION: Final = 1
_ANSWER: Final = 2
_REGISTRY: Final = 3
_CHECK_BYTES: Final = 16


class FileMemory(VolatileMemory):
    """Memory in an append-only file, synced before an answer leaves, locked while it is open.

    Each entry is `length (4 bytes) | entry | check (16 bytes)`; the check hashes everything before it, so a
    changed byte anywhere is an error. A torn last entry, from a crash in the middle of a write, is cut
    off: its answer never left.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        super().__init__()
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise MemoryFileError(_opening_failed(path, create, error)) from None
        try:
            self._lock(path)
            self._chain = hashlib.sha256(_MAGIC)
            self._load(path, create=create)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MemoryFileError(f"{path} is in use by another process") from None

    def _load(self, path: Path, *, create: bool) -> None:
        if create:
            self._write(_MAGIC)
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if not data.startswith(_MAGIC):
            raise MemoryFileError(f"{path} is not a memory file of this version")
        at = len(_MAGIC)
        while (stop := _entry_end(data, at)) <= len(data):
            self._replay(path, data[at:stop])
            at = stop
        os.ftruncate(self._file, at)

    def _replay(self, path: Path, row: bytes) -> None:
        self._chain.update(row[:-_CHECK_BYTES])
        if self._chain.digest()[:_CHECK_BYTES] != row[-_CHECK_BYTES:]:
            raise MemoryFileError(f"{path} is damaged; restore it, do not delete it")
        try:
            self._apply(row[4:-_CHECK_BYTES])
        except MalformedMessage:
            raise MemoryFileError(f"{path} holds an entry of another version") from None

    def _apply(self, entry: bytes) -> None:
        reader = Reader(entry, sender="server")
        reader.array(4)
        kind, number, group, value = reader.uint(), reader.uint(), reader.text(), reader.blob()
        reader.end()
        if kind == _SESSION:
            super().remember_session(value)
        elif kind == _ANSWER:
            super().remember_answer(group=group, round_number=number, content=value)
        else:
            super().remember_registry(number)

    def _append(self, *fields: int | bytes | str) -> None:
        entry = encode_fields(*fields)
        row = len(entry).to_bytes(4, "big") + entry
        chain = self._chain.copy()
        chain.update(row)
        self._write(row + chain.digest()[:_CHECK_BYTES])
        self._chain = chain

    def _write(self, data: bytes) -> None:
        """Append all of `data` and sync it, or leave the file as it was."""
        before = os.fstat(self._file).st_size
        try:
            if os.pwrite(self._file, data, before) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            raise MemoryFileError(f"an entry could not be written: {error.strerror}") from None

    def remember_session(self, session: bytes) -> None:
        self._append(_SESSION, 0, "", session)
        super().remember_session(session)

    def remember_answer(self, *, group: str, round_number: int, content: bytes) -> None:
        self._append(_ANSWER, round_number, group, content)
        super().remember_answer(group=group, round_number=round_number, content=content)

    def remember_registry(self, version: int) -> None:
        if version > self.registry_version:
            self._append(_REGISTRY, version, "", b"")
            super().remember_registry(version)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _entry_end(data: bytes, at: int) -> int:
    """Where the entry at `at` ends; beyond the data if it is torn or missing."""
    if at + 4 > len(data):
        return len(data) + 1
    return at + 4 + int.from_bytes(data[at : at + 4], "big") + _CHECK_BYTES


def _opening_failed(path: Path, create: bool, error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return f"{path} exists already; open it without create"
    if isinstance(error, FileNotFoundError) and not create:
        return f"{path} does not exist; restore it, or create it for a new identity"
    return f"{path} cannot be opened: {error.strerror}"
