"""Characters as numbers, for models that guess the next one."""

from __future__ import annotations

import numpy as np

from fl.errors import DataError
from fl.samples import Array

# The eighty of LEAF's Shakespeare, in its order, so that models and results can be compared.
LETTERS = (
    "\n !\"&'(),-.0123456789:;>?"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)  # fmt: skip

_FOREIGN = 255  # stands for every character that is not among the letters


def encode(text: str, letters: str = LETTERS, *, drop: bool = False) -> Array:
    """The place of each character among `letters`, as bytes; with `drop`, others are left out.

    They are bytes because windows over a text repeat every character as often as a window is long.
    """
    if not 0 < len(letters) == len(set(letters)) <= _FOREIGN:
        raise DataError(f"a vocabulary is 1 to {_FOREIGN} different letters")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.array([ord(letter) for letter in letters], np.uint32)
    table = np.full(int(known.max()) + 2, _FOREIGN, np.uint8)
    table[known] = np.arange(len(letters))
    codes: Array = table[np.minimum(points, len(table) - 1)]
    foreign = codes == _FOREIGN
    if drop:
        codes = codes[~foreign]
    elif foreign.any():
        at = int(np.argmax(foreign))
        raise DataError(
            f"character {text[at]!r} at {at} is not in the vocabulary: take it out, or pass other letters"
        )
    return codes
