"""Files of a deployment: whole or not there, and every mistake in a sentence that names the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from secagg.errors import KeyFileError
from secagg.net.atomic_files import PRIVATE, PUBLIC, FileKind, is_directory

KIND = FileKind("a private key", "make one with secagg keygen", KeyFileError)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def anything(_data: bytes) -> bool:
    return True


def denied(*_args: object, **_options: object) -> NoReturn:
    raise PermissionError(13, "Permission denied")


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


# --- writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [PRIVATE, PUBLIC])
def test_what_is_created_is_there_with_its_mode_and_nothing_else(tmp_path: Path, bits: int) -> None:
    KIND.create(tmp_path / "a", b"one", mode=bits)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert mode(tmp_path / "a") == bits
    assert names(tmp_path) == ["a"]


def test_nothing_is_created_over_something(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("directory", "file", "dangling"):
        with pytest.raises(KeyFileError, match=f"{name} exists already, and is never overwritten"):
            KIND.create(tmp_path / name, b"new", mode=PRIVATE)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["dangling", "directory", "file"]


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    KIND.replace(tmp_path / "a", b"one", mode=PRIVATE)
    KIND.replace(tmp_path / "a", b"two", mode=PUBLIC)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert mode(tmp_path / "a") == PUBLIC
    assert names(tmp_path) == ["a"]


def test_a_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(KeyFileError, match="a is a directory, not a private key"):
        KIND.replace(tmp_path / "a", b"one", mode=PRIVATE)
    assert names(tmp_path) == ["a"]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the contents, then the name, then the directory that the name is in."""
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "contents")
        sync(handle)

    def linked(*paths: Path) -> None:
        steps.append("name")
        link(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    KIND.create(tmp_path / "a", b"one", mode=PRIVATE)
    assert steps == ["contents", "name", "directory"]


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyFileError, match="a cannot be written: No space left on device"):
        KIND.create(tmp_path / "a", b"one", mode=PRIVATE)
    assert names(tmp_path) == []


def test_a_directory_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(KeyFileError, match="a cannot be written: Permission denied"):
        KIND.create(tmp_path / "a", b"one", mode=PRIVATE)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    missing = "the directory .*nowhere does not exist; create it, or name another"
    with pytest.raises(KeyFileError, match=missing):
        KIND.create(tmp_path / "nowhere" / "a", b"one", mode=PRIVATE)
    with pytest.raises(KeyFileError, match=missing):
        KIND.read(tmp_path / "nowhere" / "a")


def test_a_directory_that_takes_no_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc: there the name does not exist, and cannot be made to."""

    def nowhere(*_args: object) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "open", nowhere)
    with pytest.raises(KeyFileError, match=r"a cannot be written there$"):
        KIND.create(tmp_path / "a", b"one", mode=PRIVATE)


# --- reading -----------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    KIND.create(tmp_path / "a", b"one", mode=PRIVATE)
    assert KIND.read(tmp_path / "a") == KIND.read(tmp_path / "a", secret=anything) == b"one"


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="a does not exist; make one with secagg keygen"):
        KIND.read(tmp_path / "a")


def test_a_directory_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: whoever waits for that waits for ever
    with pytest.raises(KeyFileError, match="is a directory, not a private key"):
        KIND.read(tmp_path)
    with pytest.raises(KeyFileError, match="pipe is a special file, not a private key"):
        KIND.read(tmp_path / "pipe")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"one")
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(KeyFileError, match="a cannot be read: Permission denied"):
        KIND.read(tmp_path / "a")


def test_names_that_cannot_be() -> None:
    with pytest.raises(KeyFileError, match="cannot be read: embedded null byte"):
        KIND.read(Path("a\0b"))
    with pytest.raises(KeyFileError, match="cannot be read: Not a directory"):
        KIND.read(Path(__file__) / "a")


def test_whether_there_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    assert KIND.exists(tmp_path / "a")
    assert not KIND.exists(tmp_path / "b")
    assert not KIND.exists(tmp_path / "a" / "b")
    assert is_directory(tmp_path, KeyFileError)
    assert not is_directory(tmp_path / "a", KeyFileError)
    assert not is_directory(tmp_path / "b", KeyFileError)


def test_what_may_not_be_seen_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyFileError, match="cannot be read: File name too long; correct the path"):
        KIND.exists(tmp_path / ("x" * 260))
    with pytest.raises(KeyFileError, match="cannot be read: embedded null byte; correct the path"):
        KIND.exists(Path("a\0b"))
    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(KeyFileError, match="a cannot be read: Permission denied; correct the path"):
        is_directory(tmp_path / "a", KeyFileError)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_secret_that_is_open_to_others_is_refused(tmp_path: Path, bits: int) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "a").chmod(bits)
    assert KIND.read(tmp_path / "a") == b"one"
    with pytest.raises(KeyFileError, match=rf"open to other users \(mode 0{bits:o}\); run chmod 600"):
        KIND.read(tmp_path / "a", secret=anything)


def test_a_file_without_a_secret_may_be_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "a").chmod(0o644)
    assert KIND.read(tmp_path / "a", secret=lambda data: data != b"one") == b"one"


@pytest.mark.parametrize("bits", [0o600, 0o400, 0o700])
def test_a_secret_of_its_owner_is_read(tmp_path: Path, bits: int) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "a").chmod(bits)
    assert KIND.read(tmp_path / "a", secret=anything) == b"one"


def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    before = len(os.listdir("/dev/fd"))
    for path in (tmp_path, tmp_path / "a"):
        for _ in range(5):
            try:
                KIND.read(path)
            except KeyFileError:
                assert path == tmp_path
    KIND.create(tmp_path / "b", b"two", mode=PUBLIC)
    assert len(os.listdir("/dev/fd")) == before
