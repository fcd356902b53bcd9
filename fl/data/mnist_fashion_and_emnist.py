"""MNIST, Fashion-MNIST and EMNIST, from idx files, plain or packed with gzip.

An idx file is a header of big-endian numbers (a magic number that gives the number of axes, and the length of
each axis), followed by bytes. Images are returned as float32 in [0, 1] of shape (n, 1, 28, 28).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl.data import checksums, file_reading, pixel_and_label_conversion
from fl.errors import DataError
from fl.samples import Array, Samples

_SIDE = (28, 28)
_UNSIGNED_BYTES = 0x800  # plus the number of axes in the lowest byte

# The first label and the number of classes of each split of EMNIST.
EMNIST_SPLITS = {
    "byclass": (0, 62),
    "bymerge": (0, 47),
    "balanced": (0, 47),
    "letters": (1, 26),
    "digits": (0, 10),
    "mnist": (0, 10),
}


@dataclass(frozen=True)
class _IdxDataSet:
    """How to find and read a data set in idx files, the file format of MNIST."""

    name: str
    prefixes: dict[str, str]  # starts of the file names, by part ("train" or "test")
    classes: int
    origin: str  # where to get the files, for error messages
    subdirectories: tuple[str, ...]  # where the files may be
    first: int = 0  # the label of class 0
    transposed: bool = False  # whether rows and columns of the images are exchanged


_MNIST = _IdxDataSet(
    "mnist",
    {"train": "train", "test": "t10k"},
    10,
    "MNIST (LeCun, Cortes and Burges) is published as four files at yann.lecun.com/exdb/mnist",
    (".", "raw", "mnist", "MNIST/raw"),
)

_FASHION = _IdxDataSet(
    "fashion-mnist",
    {"train": "train", "test": "t10k"},
    10,
    "Fashion-MNIST (Xiao, Rasul and Vollgraf) is published as four files at "
    "github.com/zalandoresearch/fashion-mnist; Debian has it as dataset-fashion-mnist",
    (".", "raw", "fashion-mnist", "FashionMNIST/raw"),
)


def mnist(directory: str | Path, *, part: str = "all", check: bool = True) -> Samples:
    """Return MNIST's `part` "train" (60,000 images), "test" (10,000) or "all"; `check` tests checksums."""
    return _load(directory, _MNIST, part, check)


def fashion_mnist(directory: str | Path, *, part: str = "all", check: bool = True) -> Samples:
    """Return Fashion-MNIST (clothes, in files named like MNIST's). Parameters are those of `mnist`."""
    return _load(directory, _FASHION, part, check)


def emnist(
    directory: str | Path, *, split: str = "byclass", part: str = "all", check: bool = True
) -> Samples:
    """Return a `split` (selection of characters, a key of `EMNIST_SPLITS`) of EMNIST. `part` and `check` are
    as for `mnist`. Labels of `byclass` are in the order 0-9, A-Z, a-z; those of `letters` become 0..25.
    EMNIST stores its images with rows and columns exchanged; here they are upright, like MNIST's. The files
    do not name the writers; LEAF makes data by writer from NIST's forms."""
    return _load(directory, _emnist(split), part, check)


def look(name: str, directory: str | Path, *, split: str = "byclass", part: str = "all") -> None:
    """Raise `DataError` if files of `part` of the data set `name` are missing. `split` is for emnist only."""
    kinds = {"mnist": _MNIST, "fashion-mnist": _FASHION}
    for _ in _files(directory, _emnist(split) if name == "emnist" else kinds[name], part):
        pass


def _emnist(split: str) -> _IdxDataSet:
    if split not in EMNIST_SPLITS:
        raise DataError(f"EMNIST has no split {split!r}; it has {', '.join(EMNIST_SPLITS)}")
    first, classes = EMNIST_SPLITS[split]
    return _IdxDataSet(
        "emnist",
        {part: f"emnist-{split}-{part}" for part in ("train", "test")},
        classes,
        "EMNIST (Cohen, Afshar, Tapson and van Schaik) is published by NIST at "
        "nist.gov/itl/products-and-services/emnist-dataset, as gzip.zip",
        (".", "gzip", "raw", "emnist", "EMNIST/raw", "EMNIST/raw/gzip"),
        first,
        transposed=True,
    )


def _load(directory: str | Path, kind: _IdxDataSet, part: str, check: bool) -> Samples:
    images, labels = [], []
    for pictures, path in _files(directory, kind, part):
        pixels = _read(pictures, _SIDE, kind, check)
        values = _read(path, (), kind, check)
        with file_reading.blame(path):
            if len(values) != len(pixels):
                raise DataError(
                    f"{len(values)} labels for {len(pixels)} images: the files do not belong together"
                )
            labels.append(pixel_and_label_conversion.targets(values, kind.classes, kind.first))
        images.append(
            pixel_and_label_conversion.channels_first(
                pixels.transpose(0, 2, 1) if kind.transposed else pixels
            )
        )
    return Samples(pixel_and_label_conversion.scaled(images), np.concatenate(labels))


def _files(directory: str | Path, kind: _IdxDataSet, part: str) -> Iterator[tuple[Path, Path]]:
    """Yield an image file and a label file per part that `part` selects. Raise `DataError` without them."""
    for prefix in (kind.prefixes[one] for one in file_reading.parts(part)):
        images = _path(directory, kind, f"{prefix}-images", 3)
        yield images, _path(directory, kind, f"{prefix}-labels", 1)


def _path(directory: str | Path, kind: _IdxDataSet, stem: str, axes: int) -> Path:
    names = (f"{stem}-idx{axes}-ubyte", f"{stem}.idx{axes}-ubyte")
    return file_reading.find(directory, names, kind.origin, kind.subdirectories)


def _read(path: Path, row: tuple[int, ...], kind: _IdxDataSet, check: bool) -> Array:
    """Return the array of bytes in an idx file. Raise `DataError` unless its rows have the shape `row` and,
    if `check`, the file has its published checksum."""
    axes = 1 + len(row)
    with file_reading.opened(path) as stream:
        header = file_reading.fill(stream, np.empty(4 + 4 * axes, np.uint8)).tobytes()
        magic, count, *shape = struct.unpack(f">{1 + axes}I", header)
        if magic != _UNSIGNED_BYTES + axes:
            raise DataError(
                f"magic number {magic:#x} instead of {_UNSIGNED_BYTES + axes:#x}: not such an idx file"
            )
        if tuple(shape) != row or not count:
            raise DataError(f"{count} rows of shape {tuple(shape)}, but shape {row} is expected")
        file_reading.bounded(path, count * math.prod(row))
        values = file_reading.fill(stream, np.empty((count, *row), np.uint8))
        file_reading.end(stream)
        if check:
            checksums.verify(kind.name, path, header, values.reshape(-1).data)
        return values
