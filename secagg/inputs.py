"""A client's values, checked before anything is computed from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg.errors import InputError
from secagg.spec import L2, Count, LInf, Part


def checked(part: Part, value: ArrayLike) -> NDArray[Any]:
    """`value` as an array that `part` can carry, or an `InputError` that says what is wrong."""
    array = _as_array(part, value)
    if array.shape != (part.size,):
        raise InputError(f"part {part.name!r} needs shape ({part.size},), not {array.shape}")
    if isinstance(part.bound, (L2, LInf)):
        return _checked_real(part, array)
    return _checked_whole(part, array)


def largest(array: NDArray[Any]) -> float:
    """The largest absolute value; NaN where there is one."""
    return max(float(array.max()), -float(array.min()))


def _as_array(part: Part, value: ArrayLike) -> NDArray[Any]:
    """`value` as an array; numpy alone would turn a list of ints with one above 2^63 into floats."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"part {part.name!r} is a masked array: fill or remove what is masked")
    if isinstance(value, (list, tuple)) and all(type(item) is int and 0 <= item < 1 << 64 for item in value):
        return np.array(value, np.uint64)
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"part {part.name!r} is not a vector") from None


def _checked_real(part: Part, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"part {part.name!r} needs real numbers, not {array.dtype}")
    if not math.isfinite(largest(array)):
        raise InputError(f"part {part.name!r} holds NaN or infinity")
    return array


def _checked_whole(part: Part, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biu":
        raise InputError(f"part {part.name!r} needs integers, not {array.dtype}")
    limit = part.bound.limit if isinstance(part.bound, Count) else (1 << part.bits) - 1
    if int(array.min()) < 0 or int(array.max()) > limit:
        raise InputError(f"part {part.name!r} needs integers from 0 to {limit}")
    if isinstance(part.bound, Count) and part.bound.total is not None:
        _check_total(part, array, part.bound.total)
    return array


def _check_total(part: Part, array: NDArray[Any], total: int) -> None:
    # A sum of many large numbers would wrap; in two halves of 32 bits, none does.
    wide = array.astype(np.uint64)
    low, high = (int(half.sum()) for half in (wide & 0xFFFFFFFF, wide >> 32))
    if (high << 32) + low > total:
        raise InputError(f"part {part.name!r} needs integers that add up to at most {total}")
