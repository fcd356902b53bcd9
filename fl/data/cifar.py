"""CIFAR-10: 60,000 colour images of ten classes, as Python batches or as binary ones.

The Python batches are pickles, and a pickle can run any code it likes. So the names in it lead to
stand-ins that do nothing but note what they are given, no other names are known, and numpy's own
unpickling is never reached: the array is built here, from its bytes, once they have been checked.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fl.data import arrays, checksums, files
from fl.errors import DataError
from fl.samples import Array, Samples

CLASSES = 10

_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_LARGEST = 1 << 26  # twice the size of a batch

# How the pickle of a batch is built: it has six tuples or so, and refers back to none of them.
_PROTOCOL = 2
_TUPLES = 100
_TEXTS = frozenset(("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"))
_SHARED = _TEXTS | frozenset(("GLOBAL", "REDUCE", "EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT"))

_ORIGIN = (
    "CIFAR-10 (Krizhevsky) is published at cs.toronto.edu/~kriz/cifar.html, "
    "as cifar-10-python.tar.gz and as cifar-10-binary.tar.gz: unpack either"
)
_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


def cifar10(directory: str | Path, *, part: str = "all", check: bool = True) -> Samples:
    """50,000 images to train and 10,000 to test, float32 in [0, 1] of shape (n, 3, 32, 32), and labels 0..9.

    `check=False` reads other editions too, with as many images in a batch as there are.
    """
    pixels, labels = [], []
    for path in batch_files(directory, part):
        with files.blame(path):
            rows, values = _read(path, check)
            labels.append(arrays.targets(values, CLASSES))
            pixels.append(rows.reshape(-1, *_IMAGE))
    return Samples(arrays.scaled(pixels), np.concatenate(labels))


def batch_files(directory: str | Path, part: str = "all") -> Iterator[Path]:
    """The batches of a part. Raises `DataError` where one is missing."""
    for name in (name for one in files.parts(part) for name in _BATCHES[one]):
        names, places = (name, f"{name}.bin"), (".", "cifar-10-batches-py", "cifar-10-batches-bin")
        yield files.find(directory, names, _ORIGIN, places)


def _read(path: Path, check: bool) -> tuple[Array, Array]:
    data = files.content(path, _LARGEST)
    if check:
        checksums.verify("cifar10", path, data)
    pixels, labels = _binary(data) if ".bin" in path.suffixes else _python(data)
    if not len(labels):
        raise DataError("it holds no images")
    return pixels, labels


def _binary(data: bytes) -> tuple[Array, Array]:
    """Records of a label and an image."""
    if len(data) % (1 + _PIXELS):
        raise DataError(f"{len(data)} bytes are no whole number of records of {1 + _PIXELS}: it is cut short")
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _python(data: bytes) -> tuple[Array, Array]:
    """A pickled dictionary, in which b"data" are the images and b"labels" a list."""
    batch = _unpickled(data)
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise DataError("it is no batch of CIFAR-10: data and labels are missing")
    labels = batch[b"labels"]
    if not isinstance(labels, list) or any(
        type(label) is not int or not -1 < label < 256 for label in labels
    ):
        raise DataError("its labels are not a list of small whole numbers")
    pixels = batch[b"data"]
    if not isinstance(pixels, _Array):
        raise DataError("its data is no array")
    return pixels.bytes(len(labels)), np.array(labels, np.int64)


def _unpickled(data: bytes) -> object:
    try:
        _screen(data)
        return _Batch(io.BytesIO(data), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # Damaged pickles fail in every way that there is.
        raise DataError(f"it is no pickle of Python 2, or cut short ({error}): fetch it again") from error


def _screen(data: bytes) -> None:
    """Refuses pickles that a few bytes of make the reader take up memory or time without end.

    A tuple that holds another twice, which holds a third twice, and so on, takes ages to look up in a
    dictionary; one that is nested too deep ends the process. So tuples are few, and used once.
    """
    shared: set[int] = set()
    before, tuples = "", 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        tuples += "TUPLE" in name
        if "PUT" in name and isinstance(argument, int):
            if argument > number:
                raise DataError("its pickle remembers more things than it holds: it is forged")
            shared.discard(argument)
            if before in _SHARED:
                shared.add(argument)
        recalled = "GET" in name and argument not in shared
        if opcode.proto > _PROTOCOL or name == "DUP" or recalled or tuples > _TUPLES:
            raise DataError("its pickle is built as Python 2 never builds one of a batch: it is forged")
        before = name


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes have none of."""


class _Array:
    """Stands in for numpy.ndarray."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def bytes(self, rows: int) -> Array:
        """The array, if it is `rows` images of bytes."""
        match self.state:
            case (_, (int(height), int(width)), _Dtype(name=b"u1"), int(fortran), bytes(content)):
                if (height, width) == (rows, _PIXELS) and len(content) == rows * _PIXELS:
                    values = np.frombuffer(content, np.uint8)
                    return values.reshape((rows, _PIXELS), order="F" if fortran else "C")
        raise DataError(
            f"its data is not an array of bytes with {rows} rows of {_PIXELS}, one for each label"
        )


def _reconstruct(*_: object) -> _Array:
    """Stands in for the function of this name in numpy, which makes an empty array."""
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Batch(pickle.Unpickler):
    """Reads pickles that hold numbers, strings, lists, dictionaries and arrays, and nothing else."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _STAND_INS:
            raise DataError(
                f"its pickle asks for {module_name}.{global_name}, which no batch of "
                "CIFAR-10 does: do not trust it"
            )
        return _STAND_INS[module_name, global_name]
