"""The public rotation: the matrix of its definition, for every length, and never the same one twice."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg.noise import hadamard_rotation
from secagg.noise.hadamard_rotation import Rotation, walsh_hadamard

Vector = NDArray[np.float64]
SEED = bytes(range(32))
# One element, and lengths around those of blocks and strips.
POWERS = [0, 1, 2, 3, 7, 12, 13, 14, 15, 17, 20]


def normal(size: int, seed: int = 1) -> Vector:
    return np.random.default_rng(seed).normal(0.0, 1.0, size)


def hadamard(size: int) -> NDArray[Any]:
    """Row i, column j: -1 to the number of ones that i and j have in common."""
    return np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)])


def signs_by_oracle(seed: bytes, number: int, width: int) -> NDArray[Any]:
    """From the definition, with nothing of the package: SHA-256, then AES, bit after bit."""
    state = hashlib.sha256()
    for field in (b"secagg/1 rotation", seed, number.to_bytes(4, "big")):
        state.update(len(field).to_bytes(8, "big") + field)
    key = state.digest()
    stream = (
        Cipher(algorithms.AES128(key[:16]), modes.CTR(key[16:])).encryptor().update(bytes(width // 8 + 1))
    )
    return np.array([1 - 2 * (stream[j // 8] >> j % 8 & 1) for j in range(width)])


def rotated(vector: Vector, *, seed: bytes = SEED, number: int = 0) -> Vector:
    made, result = Rotation(seed, number, len(vector)), vector.copy()
    made.apply(result)
    return result * made.factor


# --- the transform ---------------------------------------------------------------------------------


@pytest.mark.parametrize("power", range(11))
def test_the_transform_is_its_matrix(power: int) -> None:
    """In whole numbers, of which floats are exact."""
    vector = np.random.default_rng(power).integers(-(2**20), 2**20, 1 << power)
    result = vector.astype(np.float64)
    walsh_hadamard(result)
    assert result.tolist() == (hadamard(1 << power) @ vector).tolist()


@pytest.mark.parametrize("power", [13, 14, 15, 17, 20])
def test_every_coordinate_of_a_long_transform_is_right(power: int) -> None:
    """The transform of a unit vector is a row of the matrix; a sum of three of them finds any permutation."""
    size = 1 << power
    places = [int(place) for place in np.random.default_rng(power).integers(0, size, 3)]
    vector = np.zeros(size)
    for weight, place in enumerate(places):
        vector[place] += 10.0**weight
    walsh_hadamard(vector)
    rows = np.arange(size)
    expected = sum(10**weight * (1 - 2 * (np.bitwise_count(rows & place).astype(int) % 2))
                   for weight, place in enumerate(places))  # fmt: skip
    assert np.array_equal(vector, expected)


@pytest.mark.parametrize("power", POWERS)
def test_the_transform_is_its_own_inverse_but_for_the_length(power: int) -> None:
    vector = np.random.default_rng(power).integers(-1000, 1000, 1 << power).astype(np.float64)
    result = vector.copy()
    walsh_hadamard(result)
    walsh_hadamard(result)
    assert np.array_equal(result, vector * (1 << power)), "whole numbers below 2^53 are exact"


@pytest.mark.parametrize("power", POWERS)
def test_floats_are_added_in_the_order_of_the_textbook(power: int) -> None:
    """From neighbours to those far apart, so that whoever writes the plain loop gets the same last bit."""
    vector = normal(1 << power)
    expected, stride = vector.copy(), 1
    while stride < len(vector):
        left, right = expected.reshape(-1, 2, stride).swapaxes(0, 1).copy()
        expected.reshape(-1, 2, stride)[:] = np.stack((left + right, left - right), axis=1)
        stride *= 2
    walsh_hadamard(vector)
    assert np.array_equal(vector, expected)


@pytest.mark.parametrize(("block", "rows"), [(4, 2), (8, 8), (16, 4), (64, 2), (1 << 14, 1 << 7)])
def test_blocks_and_strips_of_any_size_give_the_same(
    monkeypatch: pytest.MonkeyPatch, block: int, rows: int
) -> None:
    monkeypatch.setattr(hadamard_rotation, "_BLOCK", block)
    monkeypatch.setattr(hadamard_rotation, "_ROWS", rows)
    vector = np.random.default_rng(0).integers(-(2**20), 2**20, 1 << 9)
    result = vector.astype(np.float64)
    walsh_hadamard(result)
    assert result.tolist() == (hadamard(1 << 9) @ vector).tolist()


# --- the rotation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("power", range(9))
def test_a_rotation_is_signs_then_the_matrix(power: int) -> None:
    size = 1 << power
    vector = normal(size)
    expected = hadamard(size) @ (signs_by_oracle(SEED, 7, size) * vector) / math.sqrt(size)
    assert rotated(vector, number=7) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 8, 1 << 13, 1 << 14, 1 << 15, 1 << 17])
def test_signs_are_the_bits_of_the_key_stream_in_order(size: int) -> None:
    vector = np.ones(size)
    Rotation(SEED, 3, size)._flip(vector)
    assert vector.tolist() == signs_by_oracle(SEED, 3, size).tolist()


@pytest.mark.parametrize("power", POWERS)
def test_undoing_a_rotation(power: int) -> None:
    vector, made = normal(1 << power), Rotation(SEED, 0, 1 << power)
    result = vector.copy()
    made.apply(result)
    made.undo(result)
    result *= made.factor**2
    assert np.abs(result - vector).max() < 1e-12


@pytest.mark.parametrize("power", POWERS)
def test_a_rotation_changes_no_norm(power: int) -> None:
    """Compared as exact fractions where that is quick, so that no sum of floats hides an error."""
    vector = normal(1 << power)
    result = rotated(vector)
    if power <= 12:
        before, after = (float(sum(Fraction(x) ** 2 for x in each.tolist())) for each in (vector, result))
    else:
        before, after = (math.fsum(x * x for x in each.tolist()) for each in (vector, result))
    assert after == pytest.approx(before, rel=1e-13)


@given(st.integers(0, 10), st.floats(-1e150, 1e150), st.data())
@settings(max_examples=50)
def test_a_vector_of_one_coordinate_is_spread_evenly(power: int, value: float, data: st.DataObject) -> None:
    vector = np.zeros(1 << power)
    vector[data.draw(st.integers(0, (1 << power) - 1))] = value
    spread = np.abs(rotated(vector))
    assert spread == pytest.approx(np.full(1 << power, abs(value) / math.sqrt(1 << power)), rel=1e-12)


def test_the_worst_vector_for_one_rotation_is_a_usual_one_for_another() -> None:
    """Whoever knows the signs can put all of a total on one coordinate; the next sum has other signs.

    A coordinate is then a mean of 4096 signs, each from a key stream. One beyond 8 standard deviations has a
    chance of 2 exp(-32) (Hoeffding), and any of 4096 one of 1e-10.
    """
    size = 1 << 12
    worst = signs_by_oracle(SEED, 0, size) / math.sqrt(size)
    assert np.abs(rotated(worst)).max() == pytest.approx(1.0)
    assert np.abs(rotated(worst, number=1)).max() < 8 / math.sqrt(size)


def test_no_two_sums_or_parts_have_the_same_signs() -> None:
    """256 signs of each of 200 rotations: two are the same with a chance below 2^-240."""
    seeds = [bytes([number]) * 32 for number in range(20)]
    signs = set()
    for seed in seeds:
        for number in range(10):
            vector = np.ones(256)
            Rotation(seed, number, 256)._flip(vector)
            signs.add(vector.tobytes())
    assert len(signs) == 200


def test_zero_and_one_element() -> None:
    assert not rotated(np.zeros(1 << 14)).any()
    (sign,) = signs_by_oracle(SEED, 0, 1)
    assert rotated(np.array([3.5])).tolist() == [3.5 * sign]
    assert Rotation(SEED, 0, 1).factor == 1.0
