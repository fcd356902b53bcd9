"""Data sets in npz files with the arrays x and y, or x_train, y_train, x_test and y_test.

Inputs x of bytes are pixels: they are divided by 255, and get the shape (n, channels, height, width). Floats
keep their shape. Other integers are symbols, such as characters. If targets y are floats, it is a regression.
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

from fl.data import array_conversion, files
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
    """Return the samples of `file`, without owners. `part` is "train", "test", or "all" for both."""
    return _read(files.find(directory, (file,), ORIGIN), part, classes, None)[0]


def owned(
    directory: str | Path,
    *,
    file: str,
    owner: str = "writer",
    part: str = "all",
    classes: int | None = None,
    shrink: int = 1,
) -> OwnedSamples:
    """Return the samples of `file` with their owners, which are ids or names in the array called `owner`.

    In split files, array names end in _train or _test. Squares of `shrink` x `shrink` pixels are averaged.
    """
    path = files.find(directory, (file,), ORIGIN)
    samples, who = _read(path, part, classes, owner)
    with files.blame(path):
        samples = Samples(array_conversion.shrunk(samples.x, shrink), samples.y)
        if who.dtype.kind == "U":
            _check_names(owner, who)
            names, who = np.unique(who, return_inverse=True)
            return OwnedSamples(samples, who.astype(np.int64), tuple(map(str, names)))
        return OwnedSamples(samples, who)


def members(path: Path, names: Sequence[str]) -> list[Array]:
    """Return the arrays called `names` of an npz file. Raise `DataError` if one is missing or pickled."""
    with files.blame(path), zipfile.ZipFile(path) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if missing := [name for name in names if name not in held]:
            raise DataError(f"it holds {', '.join(held) or 'nothing'}; missing: {', '.join(missing)}")
        return [_array(archive, path, name) for name in names]


def _read(path: Path, part: str, classes: int | None, owner: str | None) -> tuple[Samples, Array]:
    ends = _ends(path, part)
    wanted = ("x", "y") if owner is None else ("x", "y", owner)
    columns = [members(path, [name + end for end in ends]) for name in wanted]
    with files.blame(path):
        samples = Samples(
            array_conversion.inputs(columns[0]),
            array_conversion.targets(array_conversion.joined(columns[1]), classes),
        )
        if not len(samples):
            raise DataError("it holds no samples")
        return samples, array_conversion.joined(columns[-1])


def _ends(path: Path, part: str) -> tuple[str, ...]:
    """Return the suffixes of the array names, such as "_train"; an empty one if the file is not split."""
    ends = tuple(f"_{one}" for one in files.parts(part))
    with files.blame(path), zipfile.ZipFile(path) as archive:
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
        files.bounded(path, count * max(dtype.itemsize, 1))
        array: Array = files.fill(stream, np.empty(count, dtype))
        files.end(stream)
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
    """Raise `DataError` if a name has invalid characters, which Python could not print."""
    codes = np.ascontiguousarray(names).view(np.dtype(np.uint32).newbyteorder(names.dtype.byteorder))
    if ((codes > _LAST_CHARACTER) | ((codes >= 0xD800) & (codes < 0xE000))).any():
        raise DataError(f"{owner} has invalid characters: it is damaged")
