"""Functions that find and read data set files, limit their size, and detect damage.

Files are untrusted. The size that a file claims is compared with what it can contain before memory is
allocated, and every error is reported as a `DataError` that starts with the path of the file.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fl.errors import DataError
from fl.samples import Array

# Limit on the size of files: the largest standard file, EMNIST by class, is an eighth of this.
LARGEST = 4 << 30

# The best ratio of deflate: a longest match of 258 bytes in two bits.
_DEFLATE_RATIO = 1032

_PARTS = {"train": ("train",), "test": ("test",), "all": ("train", "test")}


def parts(part: str) -> tuple[str, ...]:
    """Return the names in `part`: ("train",), ("test",), or both for "all". Other parts raise `DataError`."""
    if part not in _PARTS:
        raise DataError(f"part must be one of {', '.join(_PARTS)}, not {part!r}")
    return _PARTS[part]


def find(
    directory: str | Path, names: Sequence[str], origin: str, subdirectories: Sequence[str] = (".",)
) -> Path:
    """Return the path of the first file found. The `subdirectories` of `directory` (the first is ".") are
    searched in order for each of `names`, plain or with .gz added. Raise `DataError` if there is no such
    file; its message ends with `origin`, which says where to get the file."""
    root = Path(directory)
    if not root.is_dir():
        raise DataError(f"{root} is not a directory: {names[0]} is read from it. {origin}")
    accepted = [name + end for name in names for end in ("", ".gz")]
    for subdirectory in subdirectories:
        for name in accepted:
            if (path := root / subdirectory / name).is_file():
                return path
    others = ", ".join(subdirectories[1:])
    inside = f", and there in {others}," if others else ""
    raise DataError(f"{names[0]} is missing: looked in {root}{inside} for {' or '.join(accepted)}. {origin}")


@contextmanager
def blame(path: Path) -> Iterator[None]:
    """Return a context in which errors of reading become `DataError`s whose message starts with `path`."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise DataError(f"{path}: {error}") from error
    except gzip.BadGzipFile as error:
        raise DataError(
            f"{path}: damaged, or not a gzip file ({error}). If it was unpacked, remove .gz from its "
            "name; otherwise download it again"
        ) from error
    except EOFError as error:
        raise DataError(f"{path}: it is truncated: download it again") from error
    except (zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path}: damaged ({error}): download it again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Return a context with a stream of the bytes of a file, unpacked if its name ends in .gz. Errors of
    reading in this context become `DataError`s."""
    with blame(path):
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                yield packed
        else:
            with path.open("rb") as plain:
                yield plain


def bounded(path: Path, size: int) -> None:
    """Raise `DataError` if `size` is above `LARGEST`, or above what the file at `path` can unpack to."""
    if size > LARGEST:
        raise DataError(f"it claims to hold {size} bytes; at most {LARGEST} are read")
    if size > _capacity(path):
        raise DataError(
            f"it claims to hold {size} bytes, but is only {path.stat().st_size} long: truncated, or damaged"
        )


def fill(stream: io.BufferedIOBase, array: Array) -> Array:
    """Fill the array with the next bytes of `stream` and return it. Raise `EOFError` if there are too few."""
    if array.nbytes:
        view = array.reshape(-1).view(np.uint8).data
        while view:
            got = stream.readinto(view)
            if not got:
                raise EOFError
            view = view[got:]
    return array


def end(stream: io.BufferedIOBase) -> None:
    """Raise `DataError` unless the stream is at its end. At the end, gzip and zip verify their checksums."""
    if stream.read(1):
        raise DataError("it is longer than its header says: damaged, or of another kind")


def content(path: Path, limit: int = LARGEST) -> bytes:
    """Return a file's bytes, unpacked if it is a .gz. Raise `DataError` if these are more than `limit`."""
    with opened(path) as stream:
        data = stream.read(min(limit, _capacity(path)) + 1)
        if len(data) > limit:
            raise DataError(f"it is longer than {limit} bytes, so it is not a file of this kind")
        return data


def _capacity(path: Path) -> int:
    """Return the most bytes that a file can unpack to: its size, or 1032 times its size for .gz and .npz."""
    return path.stat().st_size * (_DEFLATE_RATIO if path.suffix in (".gz", ".npz") else 1)
