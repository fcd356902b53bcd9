"""Reading the files of a data set: where they are, how much is in them, and what is wrong with them.

A file is a stranger's bytes until it has been checked. What it says about its own size is compared
with what can be in it before memory is set aside, and whatever goes wrong is reported as a
`DataError` that starts with the path of the file.
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

# Nothing larger is read: the largest standard file, EMNIST by class, is an eighth of this.
LARGEST = 4 << 30

# Deflate cannot do better: a longest match of 258 bytes in two bits.
_DEFLATE_RATIO = 1032

_PARTS = {"train": ("train",), "test": ("test",), "all": ("train", "test")}


def parts(part: str) -> tuple[str, ...]:
    """The parts of a data set that `part` stands for."""
    if part not in _PARTS:
        raise DataError(f"part {part!r} is none of {', '.join(_PARTS)}")
    return _PARTS[part]


def find(directory: str | Path, names: Sequence[str], origin: str, places: Sequence[str] = (".",)) -> Path:
    """The first file of one of these names, plain or with .gz, in one of these places in a directory.

    The first place is the directory itself.
    """
    root = Path(directory)
    if not root.is_dir():
        raise DataError(f"{root} is no directory, and {names[0]} was to be read from it. {origin}")
    accepted = [name + end for name in names for end in ("", ".gz")]
    for place in places:
        for name in accepted:
            if (path := root / place / name).is_file():
                return path
    inside = f", and there in {', '.join(places[1:])}," if len(places) > 1 else ""
    raise DataError(f"{names[0]} is missing: looked in {root}{inside} for {' or '.join(accepted)}. {origin}")


@contextmanager
def blame(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is reported with its path."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise DataError(f"{path}: {error}") from error
    except gzip.BadGzipFile as error:
        raise DataError(
            f"{path}: damaged, or no gzip file ({error}). If a browser has unpacked it, take .gz off its "
            "name; otherwise fetch it again"
        ) from error
    except EOFError as error:
        raise DataError(f"{path}: it is cut short: fetch it again") from error
    except (zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path}: damaged ({error}): fetch it again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, unpacked if its name ends in .gz."""
    with blame(path):
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                yield packed
        else:
            with path.open("rb") as plain:
                yield plain


def bounded(path: Path, size: int) -> None:
    """Refuses more bytes than can be in the file; to be asked before memory is set aside for them."""
    if size > LARGEST:
        raise DataError(f"it claims to hold {size} bytes; at most {LARGEST} are read")
    if size > _capacity(path):
        raise DataError(
            f"it claims to hold {size} bytes, but is only {path.stat().st_size} long: cut short, or damaged"
        )


def fill(stream: io.BufferedIOBase, array: Array) -> Array:
    """The array, with the next bytes of a stream in it."""
    if array.nbytes:
        view = array.reshape(-1).view(np.uint8).data
        while view:
            got = stream.readinto(view)
            if not got:
                raise EOFError
            view = view[got:]
    return array


def end(stream: io.BufferedIOBase) -> None:
    """Makes sure that nothing is left. It also has gzip and zip compare their own checksums."""
    if stream.read(1):
        raise DataError("it holds more than its header says: damaged, or of another kind")


def content(path: Path, limit: int = LARGEST) -> bytes:
    """All bytes of a file, which may not be more than `limit`."""
    with opened(path) as stream:
        data = stream.read(min(limit, _capacity(path)) + 1)
        if len(data) > limit:
            raise DataError(f"it holds more than {limit} bytes, which is no file of this kind")
        return data


def _capacity(path: Path) -> int:
    """How many bytes a file holds at most, once it is unpacked."""
    return path.stat().st_size * (_DEFLATE_RATIO if path.suffix in (".gz", ".npz") else 1)
