"""Data sets in npz files with the arrays x and y, or x_train, y_train, x_test and y_test.

Inputs x of bytes are pixels: they are divided by 255, and get the shape (n, channels, height, width). Floats
keep their shape. Other integers are symbols, such as characters. Targets y that are floats mean a regression.
"""

from __future__ import annotations

import math
import sys
import tokenize
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.lib import format as npy

from fl.data import file_reading, pixel_and_label_conversion
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.samples import Array, Samples

ORIGIN = "It is a file of your own, as numpy.savez writes it"

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SHOWN = 200  # characters of untrusted text in messages
_LAST_CHARACTER = 0x10FFFF
_AXES = 32  # supported by every numpy version

# Errors of Python's parser, with which numpy reads a header.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
    RecursionError,
    SystemError,
)


def pooled(directory: str | Path, *, file: str, part: str = "all", classes: int | None = None) -> Samples:
    """Return the samples of the npz `file`, ignoring owners. `part` is "train", "test", or "all" for both."""
    return _read(file_reading.find(directory, (file,), ORIGIN), part, classes, None)[0]


def owned(
    directory: str | Path,
    *,
    file: str,
    owner: str = "writer",
    part: str = "all",
    classes: int | None = None,
    shrink: int = 1,
) -> OwnedSamples:
    """Return the samples of the npz file `file` and their owners, the ids or names in its array called
    `owner`. If the file is split, array names end in _train or _test, and `part` selects "train", "test" or
    "all". Squares of `shrink` x `shrink` pixels are averaged to one pixel."""
    path = file_reading.find(directory, (file,), ORIGIN)
    samples, who = _read(path, part, classes, owner)
    with file_reading.blame(path):
        samples = Samples(pixel_and_label_conversion.shrunk(samples.x, shrink), samples.y)
        if who.dtype.kind == "U":
            _check_names(owner, who)
            names, who = np.unique(who, return_inverse=True)
            return OwnedSamples(samples, who.astype(np.int64), tuple(map(str, names)))
        return OwnedSamples(samples, who)


def members(path: Path, names: Sequence[str]) -> list[Array]:
    """Return the arrays called `names` of an npz file. Raise `DataError` if one is missing or pickled."""
    with file_reading.blame(path), zipfile.ZipFile(path) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if missing := [name for name in names if name not in held]:
            raise DataError(f"it holds {', '.join(held) or 'nothing'}; missing: {', '.join(missing)}")
        return [_array(archive, path, name) for name in names]


def _read(path: Path, part: str, classes: int | None, owner: str | None) -> tuple[Samples, Array]:
    ends = _ends(path, part)
    wanted = ("x", "y") if owner is None else ("x", "y", owner)
    columns = [members(path, [name + end for end in ends]) for name in wanted]
    with file_reading.blame(path):
        samples = Samples(
            pixel_and_label_conversion.inputs(columns[0]),
            pixel_and_label_conversion.targets(pixel_and_label_conversion.joined(columns[1]), classes),
        )
        if not len(samples):
            raise DataError("it holds no samples")
        return samples, pixel_and_label_conversion.joined(columns[-1])


def _ends(path: Path, part: str) -> tuple[str, ...]:
    """Return the endings of the names of the arrays of `part`: "_train", "_test" or both. For a file that is
    not split (it has an array x), return one empty ending; any part but "all" then raises `DataError`."""
    ends = tuple(f"_{one}" for one in file_reading.parts(part))
    with file_reading.blame(path), zipfile.ZipFile(path) as archive:
        if "x.npy" not in archive.namelist():
            return ends
        if part != "all":
            raise DataError(
                f'it is not split, so it has no part {part!r}: pass part="all", and split the samples'
            )
    return ("",)


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> Array:
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in _PACKED:
        raise DataError(
            f"{name} uses a compression that numpy does not: write it with numpy.savez_compressed"
        )
    with cast(zipfile.ZipExtFile, archive.open(member)) as stream:
        shape, fortran, dtype = _header(name, stream)
        if dtype.hasobject:
            raise DataError(f"{name} holds Python objects, which are never read: save it as numbers")
        count = math.prod(shape)
        file_reading.bounded(path, count * max(dtype.itemsize, 1))
        array: Array = file_reading.fill(stream, np.empty(count, dtype))
        file_reading.end(stream)
        try:
            return array.reshape(shape, order="F" if fortran else "C")
        except ValueError as error:  # an empty array whose axes overflow
            raise _misshapen(name) from error


def _header(name: str, stream: zipfile.ZipExtFile) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = npy.read_magic(stream)
        if version in _READERS:
            shape, fortran, dtype = _READERS[version](stream)
    except _UNREADABLE as error:
        why = str(error)[:_SHOWN] or "its header cannot be read"
        raise DataError(f"{name} is not a numpy array: {why}") from error
    if version not in _READERS:
        number = ".".join(map(str, version))
        raise DataError(f"{name} has numpy format version {number}, not 1.0 or 2.0: save it again")
    if len(shape) > _AXES or any(not 0 <= axis <= sys.maxsize for axis in shape):
        raise _misshapen(name)
    return shape, fortran, dtype


def _misshapen(name: str) -> DataError:
    return DataError(f"{name} claims an impossible shape: it is damaged")


def _check_names(owner: str, names: Array) -> None:
    """Raise `DataError` if a name in `names`, the array called `owner`, has invalid Unicode characters."""
    codes = np.ascontiguousarray(names).view(np.dtype(np.uint32).newbyteorder(names.dtype.byteorder))
    if ((codes > _LAST_CHARACTER) | ((codes >= 0xD800) & (codes < 0xE000))).any():
        raise DataError(f"{owner} has invalid characters: it is damaged")
