"""Conversion of pixels and labels from files to the inputs and targets of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl.errors import DataError
from fl.samples import Array


def scaled(parts: Sequence[Array], top: int = 255) -> Array:
    """Return the pixels of all arrays, concatenated and divided by their largest possible value `top`, as
    float32. They are converted in one pass, without joining or transposing arrays first, to save memory."""
    out = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.float32)
    start = 0
    for part in parts:
        np.divide(part, np.float32(top), out=out[start : start + len(part)], casting="unsafe")
        start += len(part)
    return out


def targets(values: Array, classes: int | None = None, first: int = 0) -> Array:
    """Return labels counted from 0 as int64, or targets of a regression as float32.

    `classes`  the number of classes. If it is None and values are floats, they are targets of a regression.
    `first`    the label in the file that is class 0. Labels that are not of a class raise `DataError`.
    """
    if values.ndim != 1 and values.size == len(values):
        values = values.reshape(-1)  # (n, 1), as some tools write labels
    if values.ndim != 1:
        raise DataError(f"targets have shape {values.shape}: give one number for each sample")
    if values.dtype.kind == "f" and classes is None:
        return _single(values)
    if values.dtype.kind not in "iu":
        raise DataError(f"labels must be whole numbers, not {values.dtype}")
    labels = values.astype(np.int64) - first
    if len(labels) and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        highest = "up" if classes is None else f"to {first + classes - 1}"
        raise DataError(
            f"labels from {values.min()} to {values.max()}, where they go from {first} {highest}: "
            "the file is of another data set, or damaged"
        )
    return labels


def inputs(parts: Sequence[Array]) -> Array:
    """Return the inputs of all parts, concatenated. Floats become float32, and integers (symbols) int64.
    Bytes are pixels: they become float32 in [0, 1] of shape (n, channels, height, width). Images with four
    axes may have channels last: this is assumed if the last axis, but not the second, has the length 1 or 3.
    Parts that differ in type or shape raise `DataError`."""
    kinds = {f"{part.dtype} {part.shape[1:]}" for part in parts}
    if len(kinds) > 1:
        raise DataError(f"the inputs of its parts differ: {', '.join(sorted(kinds))}")
    if (dtype := parts[0].dtype).kind not in "fiu":
        raise DataError(f"inputs must be numbers, not {dtype}")
    if dtype == np.uint8 and parts[0].ndim:
        return scaled([channels_first(part) for part in parts])
    return _single(joined(parts)) if dtype.kind == "f" else joined(parts).astype(np.int64, copy=False)


def joined(parts: Sequence[Array]) -> Array:
    """Return the arrays, concatenated. Raise `DataError` if their rows differ in shape or kind of number."""
    if any(not part.ndim for part in parts):
        raise DataError("there is a single number instead of a row for every sample")
    if len({(_kind(part), part.shape[1:]) for part in parts}) > 1:
        shown = ", ".join(f"{part.dtype} {part.shape}" for part in parts)
        raise DataError(f"the arrays of its parts differ: {shown}")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _kind(values: Array) -> str:
    """Return "whole" for integer types that int64 can hold, otherwise numpy's letter for the kind of number.
    So uint64 has another kind than int64, because numpy would turn both into floats to join them."""
    whole = values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int64)
    return "whole" if whole else values.dtype.kind


def _single(values: Array) -> Array:
    """Return the values as float32. Values that overflow become infinite, which `Samples` later rejects."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def channels_first(images: Array) -> Array:
    """Return a view of images (n, height, width) or (n, height, width, channels), with 1 or 3 channels, as
    (n, channels, height, width). Return other arrays unchanged."""
    if images.ndim == 3:
        return images[:, np.newaxis]
    if images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        return np.moveaxis(images, 3, 1)
    return images


def shrunk(images: Array, by: int) -> Array:
    """Return float images (n, c, h, w) with each square of `by` x `by` pixels averaged to one pixel. Raise
    `DataError` for other arrays, or if a side is not a multiple of `by`. `by` 1 changes nothing."""
    if by == 1:
        return images
    if images.ndim != 4 or images.dtype.kind != "f" or by < 1 or any(side % by for side in images.shape[2:]):
        raise DataError(
            f"inputs of shape {images.shape[1:]} do not shrink by {by}: they must be images, channels first, "
            "and their sides must be multiples of it"
        )
    count, channels, height, width = images.shape
    squares = images.reshape(count, channels, height // by, by, width // by, by)
    return np.asarray(squares.mean(axis=(3, 5), dtype=np.float32))
