"""Single numbers, from whoever gives them: numpy's will do as well as Python's."""

from __future__ import annotations

import sys
from typing import TypeGuard

import numpy as np


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
