"""CIFAR-10: 60,000 colour images of ten classes, from Python or binary batches.

The Python batches are pickles, and a pickle can run arbitrary code. So the few numpy names that a batch needs
are replaced by stand-ins that only record their arguments, and all other names are rejected. Numpy's own
unpickling is never used: the array is built here from its bytes, after they have been checked.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fl.data import checksums, file_reading, pixel_and_label_conversion
from fl.errors import DataError
from fl.samples import Array, Samples

CLASSES = 10

_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_LARGEST = 1 << 26  # twice the size of a batch

# The structure of a batch's pickle: it has about six tuples and never refers back to one.
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
    """Return images as float32 in [0, 1] of shape (n, 3, 32, 32), and labels 0..9. `part` is "train"
    (50,000), "test" (10,000) or "all". `check=False` omits checksums, so that modified batches are read."""
    pixels, labels = [], []
    for path in batch_files(directory, part):
        with file_reading.blame(path):
            rows, values = _read(path, check)
            labels.append(pixel_and_label_conversion.targets(values, CLASSES))
            pixels.append(rows.reshape(-1, *_IMAGE))
    return Samples(pixel_and_label_conversion.scaled(pixels), np.concatenate(labels))


def batch_files(directory: str | Path, part: str = "all") -> Iterator[Path]:
    """Yield the paths of the batches of `part` (train, test or all). Raise `DataError` if one is missing."""
    for name in (name for one in file_reading.parts(part) for name in _BATCHES[one]):
        names, folders = (name, f"{name}.bin"), (".", "cifar-10-batches-py", "cifar-10-batches-bin")
        yield file_reading.find(directory, names, _ORIGIN, folders)


def _read(path: Path, check: bool) -> tuple[Array, Array]:
    data = file_reading.content(path, _LARGEST)
    if check:
        checksums.verify("cifar10", path, data)
    pixels, labels = _binary(data) if ".bin" in path.suffixes else _python(data)
    if not len(labels):
        raise DataError("it holds no images")
    return pixels, labels


def _binary(data: bytes) -> tuple[Array, Array]:
    """Return images and labels from records of a label byte and pixels. Raise `DataError` if truncated."""
    if len(data) % (1 + _PIXELS):
        raise DataError(
            f"{len(data)} bytes are not a multiple of the record size {1 + _PIXELS}: it is truncated"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _python(data: bytes) -> tuple[Array, Array]:
    """Return images and labels of a pickled dictionary (b"data", b"labels"). Other data raise `DataError`."""
    batch = _unpickled(data)
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise DataError("it is not a batch of CIFAR-10: data or labels are missing")
    labels = batch[b"labels"]
    if not isinstance(labels, list) or any(
        type(label) is not int or not -1 < label < 256 for label in labels
    ):
        raise DataError("its labels are not a list of small whole numbers")
    pixels = batch[b"data"]
    if not isinstance(pixels, _Array):
        raise DataError("its data is not an array")
    return pixels.bytes(len(labels)), np.array(labels, np.int64)


def _unpickled(data: bytes) -> object:
    try:
        _screen(data)
        return _Batch(io.BytesIO(data), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"it is not a pickle of Python 2, or truncated ({error}): download it again"
        ) from error


def _screen(data: bytes) -> None:
    """Raise `DataError` for a pickle that could take unlimited memory or time to load. A tuple that contains
    another one twice, and so on, takes exponential time to hash, and deep nesting crashes the process. So
    only a few tuples are allowed, and each may be used only once."""
    shared: set[int] = set()
    before, tuples = "", 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        tuples += "TUPLE" in name
        if "PUT" in name and isinstance(argument, int):
            if argument > number:
                raise DataError("its pickle has more memo entries than objects: it is forged")
            shared.discard(argument)
            if before in _SHARED:
                shared.add(argument)
        recalled = "GET" in name and argument not in shared
        if opcode.proto > _PROTOCOL or name == "DUP" or recalled or tuples > _TUPLES:
            raise DataError(
                "its pickle has a structure that Python 2 does not produce for a batch: it is forged"
            )
        before = name


class _Dtype:
    """Stand-in for numpy.dtype, which records only the name of the type."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Ignore the pickled byte order and alignment, which do not matter for arrays of bytes."""


class _Array:
    """Stand-in for numpy.ndarray, which records the pickled state, so that no numpy code runs."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def bytes(self, rows: int) -> Array:
        """Return the recorded bytes, one image per row. Raise `DataError` unless there are `rows` images."""
        match self.state:
            case (_, (int(height), int(width)), _Dtype(name=b"u1"), int(fortran), bytes(content)):
                if (height, width) == (rows, _PIXELS) and len(content) == rows * _PIXELS:
                    values = np.frombuffer(content, np.uint8)
                    return values.reshape((rows, _PIXELS), order="F" if fortran else "C")
        raise DataError(
            f"its data is not an array of bytes with {rows} rows of {_PIXELS}, one for each label"
        )


def _reconstruct(*_: object) -> _Array:
    """Stand-in for numpy's `_reconstruct`, with which a pickle makes an array. Returns an empty `_Array`."""
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Batch(pickle.Unpickler):
    """Unpickles numbers, strings, lists, dictionaries and arrays (as `_Array`); others raise `DataError`."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _STAND_INS:
            raise DataError(
                f"its pickle refers to {module_name}.{global_name}, which no batch of "
                "CIFAR-10 does: do not trust it"
            )
        return _STAND_INS[module_name, global_name]
