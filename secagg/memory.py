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
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from secagg.errors import MemoryFileError, SessionLive
from secagg.hashing import DIGEST_BYTES

NEVER: Final = -1
_CLOSED: Final = -1


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
    def registry(self) -> tuple[int, bytes]: ...
    def remember_registry(self, version: int, digest: bytes) -> None: ...


class VolatileMemory:
    """Memory that ends with the process: for simulations and tests."""

    def __init__(self) -> None:
        self._live = False
        self._sessions: set[bytes] = set()
        self._queries: set[bytes] = set()
        self._rounds: dict[str, int] = {}
        self._answers = 0
        self._registry = (NEVER, b"")

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
    def registry(self) -> tuple[int, bytes]:
        """Version and digest of the newest registry seen, or `NEVER`."""
        return self._registry

    def remember_registry(self, version: int, digest: bytes) -> None:
        if version > self._registry[0]:
            self._registry = (version, digest)


_MAGIC: Final = b"secagg memory 1\n"
_SESSION: Final = 1
_ANSWER: Final = 2
_REGISTRY: Final = 3
_CHECK_BYTES: Final = 16
_NAME_BYTES: Final = 64
_ENTRY: Final = struct.Struct(f">BQ{_NAME_BYTES}s{DIGEST_BYTES}s")
_ROW_BYTES: Final = _ENTRY.size + _CHECK_BYTES


class FileMemory(VolatileMemory):
    """Memory in an append-only file, synced before an answer leaves, locked while it is open.

    Rows have one size: kind (1 byte), number (8), group (64), digest (32), and a check (16) that hashes
    everything up to here, so a changed byte anywhere is an error. A torn last row, from a crash in the
    middle of a write, is cut off: its answer never left. A file from an older backup is not detected.
    """

    def __init__(self, path: Path | str, *, create: bool = False) -> None:
        super().__init__()
        path = Path(path)
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
            _sync_directory(path.parent)
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if not data.startswith(_MAGIC):
            raise MemoryFileError(f"{path} is not a memory file of this version")
        rows = (len(data) - len(_MAGIC)) // _ROW_BYTES
        for start in range(len(_MAGIC), len(_MAGIC) + rows * _ROW_BYTES, _ROW_BYTES):
            self._replay(path, data[start : start + _ROW_BYTES])
        os.ftruncate(self._file, len(_MAGIC) + rows * _ROW_BYTES)

    def _replay(self, path: Path, row: bytes) -> None:
        entry, check = row[: _ENTRY.size], row[_ENTRY.size :]
        self._chain.update(entry)
        if self._chain.digest()[:_CHECK_BYTES] != check:
            raise MemoryFileError(f"{path} is damaged; restore it, do not delete it")
        kind, number, name, value = _ENTRY.unpack(entry)
        group = name.rstrip(b"\0").decode("ascii")
        if kind == _SESSION:
            super().remember_session(value)
        elif kind == _ANSWER:
            super().remember_answer(group=group, round_number=number, content=value)
        elif kind == _REGISTRY:
            super().remember_registry(number, value)
        else:
            raise MemoryFileError(f"{path} holds an entry of another version")

    def _append(self, kind: int, number: int, group: str, value: bytes) -> None:
        name = group.encode("ascii")
        if len(name) > _NAME_BYTES or len(value) != DIGEST_BYTES:
            raise MemoryFileError("an entry needs a name of at most 64 bytes and a digest of 32")
        entry = _ENTRY.pack(kind, number, name, value)
        chain = self._chain.copy()
        chain.update(entry)
        self._write(entry + chain.digest()[:_CHECK_BYTES])
        self._chain = chain

    def _write(self, data: bytes) -> None:
        """Append all of `data` and sync it, or leave the file as it was."""
        if self._file == _CLOSED:
            raise MemoryFileError("the memory was closed; open it again to take part in sums")
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

    def remember_registry(self, version: int, digest: bytes) -> None:
        if version > self.registry[0]:
            self._append(_REGISTRY, version, "", digest)
            super().remember_registry(version, digest)

    def close(self) -> None:
        """Let go of the file. Whoever still wants to remember something fails, and so stays silent."""
        if self._file != _CLOSED:
            os.close(self._file)
            self._file = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _sync_directory(directory: Path) -> None:
    """A new file is safe only when its name is."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _opening_failed(path: Path, create: bool, error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return f"{path} exists already; open it without create"
    if isinstance(error, FileNotFoundError) and not create:
        return f"{path} does not exist; restore it, or create it for a new identity"
    return f"{path} cannot be opened: {error.strerror}"
