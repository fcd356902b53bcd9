"""The samples in discrete-gaussian.json, made again by a second implementation.

It shares nothing with the package but the key stream: probabilities are decimals of 70 digits, thresholds are
searched one sample at a time, and no float decides or helps to decide.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import chain, takewhile
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import discrete_gaussian

PATH = Path(__file__).resolve().parent.parent / "vectors" / "discrete-gaussian.json"
VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="ascii"))
UNITS = 1 << 128
DIGITS = 70
Case = dict[str, Any]


class Bytes:
    """A key stream, read as numbers."""

    def __init__(self, seed: bytes) -> None:
        self._data = KeyStream(seed).words(1 << 19).tobytes()
        self.read = 0

    def number(self, size: int) -> int:
        start, self.read = self.read, self.read + size
        return int.from_bytes(self._data[start : self.read], "little")

    def numbers(self, count: int, size: int) -> list[int]:
        return [self.number(size) for _ in range(count)]


def exp_minus(x: Fraction) -> Decimal:
    return (-Decimal(x.numerator) / Decimal(x.denominator)).exp()


def rounded_tails(variance: Fraction, *, both_sides: bool) -> list[int]:
    """t(k) for k = 0, 1, ... while it is not zero."""
    weights = list(takewhile(lambda w: w > Decimal("1e-55"), map(partial(_weight, variance), range(10**9))))
    beyond, sums = Decimal(0), []
    for weight in reversed(weights):
        sums.append(beyond)
        beyond += weight
    total = beyond + sums[-1] if both_sides else beyond
    rounded = [int((each / total * UNITS).to_integral_value()) for each in reversed(sums)]
    return list(takewhile(bool, rounded))


def _weight(variance: Fraction, k: int) -> Decimal:
    return exp_minus(k * k / (2 * variance))


def inverted(thresholds: list[int], first: int, count: int, stream: Bytes) -> list[int]:
    """A block of `count` samples."""
    known = max(16, len(thresholds).bit_length() + 5)
    bits = 16 if known == 16 else 32
    words = stream.numbers(count, bits // 8)
    passed: list[int | None] = []
    for word in words:
        least = word >> (bits - known) << (128 - known)
        fewest = bisect_right(thresholds, least)
        most = bisect_right(thresholds, least + (UNITS >> known) - 1)
        passed.append(fewest if fewest == most else None)
    for index, word in enumerate(words):
        if passed[index] is None:
            upper, lower = stream.numbers(2, 8)
            rest = (upper << 64 | lower) % (UNITS >> bits)
            passed[index] = bisect_right(thresholds, word << (128 - bits) | rest)
    return [first + each for each in passed if each is not None]


def by_inversion(variance: Fraction, size: int, stream: Bytes) -> list[int]:
    far = rounded_tails(variance, both_sides=True)
    thresholds = [*reversed(far), *(UNITS - each for each in far)]
    block = (1 << 16) if len(thresholds) < 1 << 11 else 1 << 15
    return _in_blocks(lambda count: inverted(thresholds, -len(far), count, stream), size, block)


def _in_blocks(draw: Callable[[int], list[int]], size: int, block: int) -> list[int]:
    samples: list[int] = []
    while len(samples) < size:
        samples += draw(min(block, size - len(samples)))
    return samples


def by_rejection(variance: Fraction, size: int, stream: Bytes) -> list[int]:
    # The largest power of two that is at most 1/64 of the standard deviation.
    width = 1 << isqrt(int(variance / 64**2)).bit_length() - 1
    far = rounded_tails(variance / width**2, both_sides=False)
    steps = [UNITS - each for each in far]

    def propose(count: int) -> list[int | None]:
        starts = [width * step for step in inverted(steps, 0, count, stream)]
        bits, uniform = stream.numbers(count, 8), stream.numbers(count, 8)
        rows = zip(starts, bits, uniform, strict=True)
        return [_accepted(variance, start, each, width, upper, stream) for start, each, upper in rows]

    def draw(count: int) -> list[int]:
        found = propose(count)
        while rejected := [k for k, sample in enumerate(found) if sample is None]:
            for k, sample in zip(rejected, propose(len(rejected)), strict=True):
                found[k] = sample
        return [sample for sample in found if sample is not None]

    return _in_blocks(draw, size, 1 << 14)


def _accepted(variance: Fraction, start: int, bits: int, width: int, upper: int, stream: Bytes) -> int | None:
    sign, size = bits >> 63, start + bits % width
    sample = -(size + 1) if sign else size
    gain, scale = (sample**2 - start**2) * variance.denominator, 2 * variance.numerator
    if (upper + 1) * scale <= (scale - gain) << 64:  # U < 1 - y < exp(-y): this only saves time
        return sample
    limit = int(exp_minus(Fraction(gain, scale)) * UNITS)
    if upper != limit >> 64:
        return sample if upper < limit >> 64 else None
    return sample if upper << 64 | stream.number(8) < limit else None


# --- the file ------------------------------------------------------------------------------------------


def digest(samples: list[int]) -> str:
    return sha256(np.array(samples, "<i8").tobytes()).hexdigest()


@pytest.mark.parametrize("case", VECTORS["laws"], ids=lambda case: str(case["variance"]))
def test_second_implementation(case: Case) -> None:
    variance, stream = Fraction(case["variance"]), Bytes(bytes.fromhex(case["seed"]))
    method = by_inversion if variance <= 1 << 20 else by_rejection
    with localcontext() as context:
        context.prec = DIGITS
        samples = method(variance, VECTORS["size"], stream)

    assert samples[:64] == [*chain(*case["first"])]
    assert digest(samples) == case["sha256"]
    assert stream.read == case["stream_bytes"]


@pytest.mark.parametrize("case", VECTORS["laws"], ids=lambda case: str(case["variance"]))
def test_package(case: Case) -> None:
    law = discrete_gaussian(Fraction(case["variance"]))
    samples = law.sample(KeyStream(bytes.fromhex(case["seed"])), VECTORS["size"])

    assert samples[:64].tolist() == [*chain(*case["first"])]
    assert digest(samples.tolist()) == case["sha256"]
