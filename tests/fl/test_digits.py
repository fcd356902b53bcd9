"""The bundled digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl.data import digits, load
from fl.errors import DataError
from fl.samples import Samples


def test_digits_are_images_of_ten_classes() -> None:
    samples = load("digits")
    assert isinstance(samples, Samples)
    assert samples.x.shape == (1797, 1, 8, 8)
    assert samples.x.dtype == np.float32
    assert samples.x.min() == 0
    assert samples.x.max() == 1
    assert samples.y.dtype == np.int64
    # The numbers of images that the data set's own description gives for each digit.
    assert np.bincount(samples.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_first_digit_is_an_upright_zero() -> None:
    image = (digits.digits().x[0, 0] * 16).astype(int)
    assert image[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert image[:, 3].tolist() == [13, 15, 2, 0, 0, 0, 5, 13]


def test_nearest_neighbours_tell_them_apart() -> None:
    samples = digits.digits()
    flat = samples.x.reshape(len(samples), -1)
    train, test = flat[:1000], flat[1000:]
    distance = (train**2).sum(axis=1) - 2 * test @ train.T
    guess = samples.y[:1000][distance.argmin(axis=1)]
    assert (guess == samples.y[1000:]).mean() > 0.95


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    damaged = bytearray(digits.FILE.read_bytes())
    damaged[1000] ^= 1
    path = tmp_path / "digits.npz"
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"expected sha256:.*found sha256:.*install the package again"):
        digits.read(path)


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"digits\.npz is missing.*install the package again"):
        digits.read(tmp_path / "digits.npz")


def test_digits_are_not_read_from_a_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="digits is not read from a directory"):
        load("digits", tmp_path)
