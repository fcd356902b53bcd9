"""Data poisoning: changes to the data that corrupt clients train on. Random labels are from the lp-proj paper
(`protocols.lpproj`), the other changes from "Robust Aggregation for Federated Learning"."""

from __future__ import annotations

from typing import Final

import numpy as np

from fl.errors import DataError
from fl.samples import Array, Samples

REVERSE: Final = "reverse"
CHARACTERS: Final = "characters"
_DIGITS, _LETTERS = 10, 26


def flip_labels(samples: Samples, classes: int | None, *, rule: str = REVERSE) -> Samples:
    """Return the samples with every label changed by `rule`. Regressions and other rules raise `DataError`.

    `reverse`     y becomes classes - 1 - y. With an odd number of classes, the middle one is unchanged.
    `characters`  a digit y becomes (7 y + 1) mod 10, and a letter changes its case. There must be 10 classes
                  (digits) or 62 (EMNIST's characters); other numbers raise `DataError`.
    """
    classes = _check_labels(samples, classes, "flipped")
    if rule == REVERSE:
        return Samples(samples.x, (classes - 1 - samples.y.astype(np.int64)).astype(samples.y.dtype))
    if rule != CHARACTERS:
        raise DataError(f'rule must be "{REVERSE}" or "{CHARACTERS}", not {rule!r}')
    if classes not in (_DIGITS, _DIGITS + 2 * _LETTERS):
        raise DataError(f'the rule "{CHARACTERS}" is for 10 digits or 62 characters, not {classes} classes')
    return Samples(samples.x, _characters(samples.y))


def _characters(labels: Array) -> Array:
    upper = labels < _DIGITS + _LETTERS
    letters = np.where(upper, labels + _LETTERS, labels - _LETTERS)
    return np.where(labels < _DIGITS, (7 * labels + 1) % _DIGITS, letters).astype(labels.dtype)


def random_labels(samples: Samples, classes: int | None, rng: np.random.Generator) -> Samples:
    """Return the samples with labels drawn uniformly from 0..`classes` - 1. Regressions raise `DataError`."""
    classes = _check_labels(samples, classes, "drawn at random")
    return Samples(samples.x, rng.integers(classes, size=samples.y.shape).astype(samples.y.dtype))


def negate_images(samples: Samples) -> Samples:
    """Return the samples with every pixel x replaced by 1 - x and the same labels. Raise `DataError` unless
    all pixels are floats from 0 to 1."""
    x = samples.x
    if x.dtype.kind != "f" or (x.size and (x.min() < 0 or x.max() > 1)):
        raise DataError(
            "only images of floats from 0 to 1 can be negated: divide them by their largest value"
        )
    return Samples(x.dtype.type(1) - x, samples.y)


def reverse_text(samples: Samples) -> Samples:
    """Return the samples with each text (a window and the symbol after it) reversed, so that the first symbol
    of the window becomes the target. Raise `DataError` unless inputs are rows of integers."""
    if samples.x.dtype.kind not in "iu" or samples.x.ndim != 2 or samples.y.ndim != 1:
        raise DataError(
            "only text can be reversed: rows of symbols as whole numbers, and the next one as target"
        )
    backwards = np.concatenate([samples.x, samples.y[:, None]], axis=1)[:, ::-1]
    return Samples(backwards[:, :-1].astype(samples.x.dtype), backwards[:, -1].astype(samples.y.dtype))


def _check_labels(samples: Samples, classes: int | None, done: str) -> int:
    """Return `classes`. Raise `DataError` for a regression, or for labels that are not below `classes`; the
    message says that they cannot be `done`, a word such as "flipped"."""
    if classes is None or samples.y.dtype.kind not in "iu":
        raise DataError(
            f"the targets of a regression cannot be {done}: choose an attack on inputs or updates"
        )
    if len(samples) and not (samples.y.min() >= 0 and samples.y.max() < classes):
        raise DataError(f"labels must be from 0 to {classes - 1} to be {done}")
    return classes
