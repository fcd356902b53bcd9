"""What goes wrong on a client: bad data, or training that cannot be."""

from __future__ import annotations

import sys
from typing import TypeGuard

import numpy as np


class FLError(ValueError):
    """Base of this package's errors, which a user can correct; the message says how.

    `parameter` is the name of the parameter to change, or None if no single one is to blame.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class DataError(FLError):
    """Data that is missing, damaged, or not what training needs."""


class TrainingError(FLError):
    """Settings, or a model, that nothing can be trained with."""


def plain(value: object) -> object:
    """A number of numpy's as one of Python's; anything else as it is."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return value


def is_whole(value: object) -> TypeGuard[int]:
    """True and False are no numbers here: they are given by mistake."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """A finite number that fits a float."""
    return (is_whole(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max
