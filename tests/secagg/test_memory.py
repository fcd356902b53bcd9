"""What a client remembers: nothing is forgotten, and a damaged file is an error, never a fresh start."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import MemoryFileError, SessionLive
from secagg.memory import NEVER, FileMemory, VolatileMemory

MAGIC = b"secagg memory 1\n"
ROW = 1 + 8 + 64 + 32 + 16
State = tuple[set[bytes], set[bytes], dict[str, int], int, tuple[int, bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def state(memory: VolatileMemory) -> State:
    """Everything a memory knows, by its own attributes."""
    return (
        set(memory._sessions),
        set(memory._queries),
        dict(memory._rounds),
        memory.answers,
        memory.registry,
    )


def fill(memory: VolatileMemory) -> None:
    memory.remember_registry(3, b"d" * 32)
    memory.remember_session(b"s" * 32)
    memory.remember_answer(group="update", round_number=4, content=b"q" * 32)
    memory.remember_answer(group="update", round_number=2, content=b"r" * 32)
    memory.remember_answer(group="loss", round_number=(1 << 63) - 1, content=b"t" * 32)


def reopened(path: Path) -> State:
    with FileMemory(path) as memory:
        return state(memory)


def rows(data: bytes) -> list[bytes]:
    body = data[len(MAGIC) :]
    return [body[start : start + ROW] for start in range(0, len(body), ROW)]


# --- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "content"), [("g" * 65, b"q" * 32), ("g", b"q" * 31), ("g", b"q" * 33)])
def test_what_does_not_fit_a_row_is_refused_not_cut(path: Path, group: str, content: bytes) -> None:
    with FileMemory(path, create=True) as memory:
        with pytest.raises(MemoryFileError, match="at most 64 bytes"):
            memory.remember_answer(group=group, round_number=0, content=content)
        assert memory.answers == 0
    assert path.read_bytes() == MAGIC


def test_a_row_of_an_unknown_kind_is_not_guessed_at(path: Path) -> None:
    entry = b"\x04" + bytes(8 + 64 + 32)
    path.write_bytes(MAGIC + entry + hashlib.sha256(MAGIC + entry).digest()[:16])
    with pytest.raises(MemoryFileError, match="another version"):
        FileMemory(path)


# --- what is remembered ----------------------------------------------------------------------------


@pytest.fixture(params=["volatile", "file"])
def memory(request: pytest.FixtureRequest, path: Path) -> VolatileMemory:
    return VolatileMemory() if request.param == "volatile" else FileMemory(path, create=True)


def test_a_new_memory_knows_nothing(memory: VolatileMemory) -> None:
    assert not memory.knows_session(b"s" * 32)
    assert not memory.knows_query(b"q" * 32)
    assert memory.last_round("update") == NEVER == -1
    assert memory.answers == 0
    assert memory.registry == (NEVER, b"")


def test_what_was_remembered_is_known(memory: VolatileMemory) -> None:
    fill(memory)
    assert memory.knows_session(b"s" * 32)
    assert not memory.knows_session(b"q" * 32)
    assert all(memory.knows_query(bytes([char]) * 32) for char in b"qrt")
    assert not memory.knows_query(b"s" * 32)
    assert memory.answers == 3


def test_rounds_and_versions_never_go_back(memory: VolatileMemory) -> None:
    fill(memory)
    memory.remember_registry(2, b"e" * 32)
    memory.remember_registry(3, b"f" * 32)
    assert memory.last_round("update") == 4
    assert memory.last_round("loss") == (1 << 63) - 1
    assert memory.last_round("other") == NEVER
    assert memory.registry == (3, b"d" * 32)
    memory.remember_registry(4, b"g" * 32)
    assert memory.registry == (4, b"g" * 32)


def test_one_live_session_per_identity(memory: VolatileMemory) -> None:
    memory.open_session()
    with pytest.raises(SessionLive, match="already takes part in a session"):
        memory.open_session()
    memory.close_session()
    memory.open_session()


# --- in a file -------------------------------------------------------------------------------------


def test_a_file_survives_its_process(path: Path) -> None:
    with FileMemory(path, create=True) as memory:
        fill(memory)
        before = state(memory)
    assert reopened(path) == before
    with FileMemory(path) as memory:
        memory.remember_answer(group="update", round_number=9, content=b"u" * 32)
        after = state(memory)
    assert reopened(path) == after != before


def test_a_live_session_ends_with_the_process(path: Path) -> None:
    with FileMemory(path, create=True) as memory:
        memory.open_session()
    with FileMemory(path) as memory:
        memory.open_session()


def test_an_old_registry_version_is_not_written_again(path: Path) -> None:
    with FileMemory(path, create=True) as memory:
        memory.remember_registry(3, b"d" * 32)
        size = path.stat().st_size
        memory.remember_registry(3, b"e" * 32)
        memory.remember_registry(1, b"d" * 32)
    assert path.stat().st_size == size


def test_only_the_owner_may_read_it(path: Path) -> None:
    FileMemory(path, create=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_format_is_an_append_only_chain_of_rows(path: Path) -> None:
    with FileMemory(path, create=True) as memory:
        memory.remember_session(b"s" * 32)
        memory.remember_answer(group="a" * 64, round_number=7, content=b"q" * 32)
        memory.remember_registry(9, b"d" * 32)
    written = [
        b"\1" + bytes(8) + bytes(64) + b"s" * 32,
        b"\2" + (7).to_bytes(8, "big") + b"a" * 64 + b"q" * 32,
        b"\3" + (9).to_bytes(8, "big") + bytes(64) + b"d" * 32,
    ]
    expected, chain = MAGIC, hashlib.sha256(MAGIC)
    for row in written:
        chain.update(row)
        expected += row + chain.digest()[:16]
    assert path.read_bytes() == expected


# --- crashes ---------------------------------------------------------------------------------------


def test_a_torn_last_entry_is_cut_off_at_every_byte(path: Path) -> None:
    """A crash in the middle of a write leaves a part of one entry; its answer never left."""
    with FileMemory(path, create=True) as memory:
        memory.remember_session(b"s" * 32)
        before, whole = state(memory), path.stat().st_size
        memory.remember_answer(group="update", round_number=4, content=b"q" * 32)
        after = state(memory)
    data = path.read_bytes()
    for stop in range(whole, len(data)):
        path.write_bytes(data[:stop])
        assert reopened(path) == before
        assert path.read_bytes() == data[:whole]
    path.write_bytes(data)
    assert reopened(path) == after


def test_entries_go_on_after_a_torn_one(path: Path) -> None:
    with FileMemory(path, create=True) as memory:
        fill(memory)
    path.write_bytes(path.read_bytes()[:-5])
    with FileMemory(path) as memory:
        memory.remember_answer(group="late", round_number=1, content=b"z" * 32)
        expected = state(memory)
    assert reopened(path) == expected
    assert expected[3] == 3


# --- damage ----------------------------------------------------------------------------------------


def damaged(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def small_file(path: Path) -> bytes:
    with FileMemory(path, create=True) as memory:
        fill(memory)
    return path.read_bytes()


def test_every_changed_byte_is_noticed_and_left_alone(path: Path) -> None:
    data = small_file(path)
    for position in range(len(data)):
        changed = damaged(data, position, position % 8)
        path.write_bytes(changed)
        why = "damaged; restore it" if position >= len(MAGIC) else "not a memory file"
        with pytest.raises(MemoryFileError, match=why):
            FileMemory(path)
        assert path.read_bytes() == changed


def test_a_changed_byte_before_a_torn_row_is_noticed(path: Path) -> None:
    """And one within the torn row changes nothing: that row is cut off."""
    data = small_file(path)[:-1]
    torn_at = len(data) - ROW + 1
    path.write_bytes(data)
    expected = reopened(path)
    for position in range(len(MAGIC), len(data)):
        path.write_bytes(damaged(data, position, 3))
        if position < torn_at:
            with pytest.raises(MemoryFileError, match="damaged"):
                FileMemory(path)
        else:
            assert reopened(path) == expected


def test_rows_cannot_be_removed_repeated_or_swapped(path: Path) -> None:
    parts = rows(small_file(path))
    for order in ([1, 0, 2, 3, 4], [0, 2, 3, 4], [0, 0, 1, 2, 3, 4], [1, 2, 3, 4]):
        path.write_bytes(MAGIC + b"".join(parts[k] for k in order))
        with pytest.raises(MemoryFileError, match="is damaged; restore it, do not delete it"):
            FileMemory(path)


@pytest.mark.parametrize("data", [b"", b"secagg memory", b"secagg memory 2\n", b"something else entirely"])
def test_another_file_is_not_a_memory(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(MemoryFileError, match="is not a memory file of this version"):
        FileMemory(path)
    assert path.read_bytes() == data


# --- opening ---------------------------------------------------------------------------------------


def test_a_missing_file_is_not_created_by_the_way(path: Path) -> None:
    with pytest.raises(MemoryFileError, match="does not exist; restore it, or create it for a new identity"):
        FileMemory(path)
    assert not path.exists()


def test_an_existing_file_is_not_created_anew(path: Path) -> None:
    data = small_file(path)
    with pytest.raises(MemoryFileError, match="exists already; open it without create"):
        FileMemory(path, create=True)
    assert path.read_bytes() == data


def test_what_cannot_be_opened_says_why(path: Path) -> None:
    with pytest.raises(MemoryFileError, match="cannot be opened: No such file or directory"):
        FileMemory(path / "below" / "nothing", create=True)
    path.mkdir()
    with pytest.raises(MemoryFileError, match="cannot be opened: Is a directory"):
        FileMemory(path)


@pytest.mark.parametrize("create", [False, True])
def test_a_second_opener_is_refused(path: Path, create: bool) -> None:
    with FileMemory(path, create=True) as memory:
        fill(memory)
        why = "exists already" if create else "is in use by another process"
        with pytest.raises(MemoryFileError, match=why):
            FileMemory(path, create=create)
        memory.remember_session(b"x" * 32)  # the refused opener took nothing away
        expected = state(memory)
    assert reopened(path) == expected


def test_a_refused_opening_leaves_no_file_open(path: Path) -> None:
    path.write_bytes(b"something else")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(MemoryFileError):
            FileMemory(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_twice_is_no_harm(path: Path) -> None:
    """The number of a closed file may belong to another one by then."""
    with FileMemory(path, create=True) as memory:
        memory.close()
        other = os.open(path, os.O_RDONLY)
    os.close(other)


@pytest.mark.parametrize("write", ["session", "answer", "registry"])
def test_a_closed_memory_remembers_nothing_more(path: Path, write: str) -> None:
    memory = FileMemory(path, create=True)
    fill(memory)
    memory.close()
    before = state(memory)
    with pytest.raises(MemoryFileError, match="the memory was closed; open it again"):
        WRITES[write](memory)
    assert state(memory) == before == reopened(path)


def test_the_name_of_a_new_file_is_synced_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def watch(file: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(file).st_mode))
        fsync(file)

    monkeypatch.setattr(os, "fsync", watch)
    FileMemory(path, create=True).close()
    FileMemory(path).close()
    assert synced == [False, True]


# --- writes that fail ------------------------------------------------------------------------------


def fails(number: int) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def half_written(pwrite: Callable[..., int]) -> Callable[..., int]:
    return lambda file, data, at: pwrite(file, data[: len(data) // 2], at)


WRITES: dict[str, Callable[[VolatileMemory], None]] = {
    "session": lambda memory: memory.remember_session(b"x" * 32),
    "answer": lambda memory: memory.remember_answer(group="new", round_number=99, content=b"x" * 32),
    "registry": lambda memory: memory.remember_registry(99, b"x" * 32),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("failure", ["pwrite", "fsync", "short"])
def test_a_failed_write_leaves_file_and_memory_as_they_were(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, write: str
) -> None:
    with FileMemory(path, create=True) as memory:
        fill(memory)
        before, data = state(memory), path.read_bytes()
        with monkeypatch.context() as patch:
            if failure == "short":
                patch.setattr(os, "pwrite", half_written(os.pwrite))
            else:
                patch.setattr(os, failure, fails(errno.EIO))
            why = "No space left on device" if failure == "short" else "Input/output error"
            with pytest.raises(MemoryFileError, match=f"an entry could not be written: {why}"):
                WRITES[write](memory)
        assert state(memory) == before
        assert path.read_bytes() == data
        WRITES[write](memory)  # the disk is well again, and the chain goes on
        after = state(memory)
    assert reopened(path) == after != before


def test_an_entry_is_on_disk_before_it_is_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer leaves when `remember_answer` returns: it must have been synced by then."""
    seen: list[tuple[int, bool]] = []
    fsync = os.fsync
    with FileMemory(path, create=True) as memory:

        def watch(file: int) -> None:
            seen.append((path.stat().st_size, memory.knows_query(b"q" * 32)))
            fsync(file)

        monkeypatch.setattr(os, "fsync", watch)
        memory.remember_answer(group="g", round_number=0, content=b"q" * 32)
        assert seen == [(path.stat().st_size, False)]
        assert memory.knows_query(b"q" * 32)
