"""The discrete Gaussian fed with chosen bits: at every threshold, on either side of it, and at ties."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg.mask_keystream import KeyStream
from secagg.noise.inversion_sampler import InversionTable, tails
from secagg.noise.rejection_sampler import Hybrid

UNITS = 1 << 128
MOST_READ = 1 << 17


class Chosen:
    """A stream of chosen bytes."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        assert len(buffer) <= min(MOST_READ, len(self.left))
        buffer[:] = np.frombuffer(self.left[: len(buffer)], np.uint8)
        self.left = self.left[len(buffer) :]


def word(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def drawn(
    table: InversionTable, uniforms: list[int], size: int, *, rest: list[int] | None = None
) -> list[int]:
    """The samples of `uniforms`, whose first words have `size` bytes; the ones in `rest` are read on.

    What is already known of the upper half is sent as ones, because it must be ignored.
    """
    known = 8 * size
    first = b"".join(word(u >> (128 - known), size) for u in uniforms)
    ones = ((1 << known) - 1) << (64 - known)
    second = [
        word((u >> 64) | ones, 8) + word(u % (1 << 64), 8) for u in (uniforms if rest is None else rest)
    ]
    stream = Chosen(first + b"".join(second))
    samples = table.draws(stream, len(uniforms)).draw(len(uniforms))
    assert not stream.left
    return [int(sample) for sample in samples]


def symmetric(variance: Fraction) -> tuple[list[int], InversionTable]:
    far = tails(variance, both_sides=True)
    thresholds = [*reversed(far), *(UNITS - each for each in far)]
    return thresholds, InversionTable(thresholds, first=-len(far))


# --- tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variance", "size"), [(Fraction(1, 4), 2), (Fraction(4), 2), (Fraction(10**4), 4)])
def test_every_threshold_divides_two_values(variance: Fraction, size: int) -> None:
    """To the last of 128 bits: the upper halves are equal, and the lower ones decide."""
    thresholds, table = symmetric(variance)
    most = len(thresholds) // 2

    # In the tails, thresholds are equal, and the values between them have no U at all.
    assert drawn(table, thresholds, size) == [bisect_right(thresholds, t) - most for t in thresholds]
    below = [t - 1 for t in thresholds]
    assert drawn(table, below, size) == [bisect_left(thresholds, t) - most for t in thresholds]
    assert drawn(table, [0, UNITS - 1], size) == [-most, most]


def test_where_no_threshold_is_near_nothing_else_is_read() -> None:
    thresholds, table = symmetric(Fraction(4))
    middle = [(a + b) // 2 for a, b in pairwise(thresholds) if b - a > UNITS >> 10]

    assert len(middle) > 10
    assert drawn(table, middle, 2, rest=[]) == [
        -len(thresholds) // 2 + 1 + thresholds.index(max(t for t in thresholds if t <= u)) for u in middle
    ]


def test_the_rest_is_read_in_the_order_of_the_samples() -> None:
    thresholds, table = symmetric(Fraction(4))
    near, far = thresholds[len(thresholds) // 2], UNITS // 2
    uniforms = [near, far, near - 1, far, far, near]

    assert drawn(table, uniforms, 2, rest=[near, near - 1, near]) == [1, 0, 0, 0, 0, 1]


def test_a_block_in_which_every_sample_reads_on() -> None:
    """More than a stream gives at a time."""
    thresholds, table = symmetric(Fraction(4))
    count = MOST_READ // 16 + 100
    uniforms = [thresholds[k % len(thresholds)] - k % 2 for k in range(count)]

    least = -len(thresholds) // 2
    assert drawn(table, uniforms, 2) == [least + k % len(thresholds) + 1 - k % 2 for k in range(count)]


def test_a_threshold_on_the_edge_of_a_bucket() -> None:
    table = InversionTable([1 << 127], first=0)

    assert drawn(table, [0, (1 << 127) - 1, 1 << 127, UNITS - 1], 2, rest=[]) == [0, 0, 1, 1]


def test_the_least_number_of_a_guide_is_no_sample() -> None:
    """It marks what is open, so a law that has this value needs a wider type."""
    table = InversionTable([1 << 127], first=-128)

    assert drawn(table, [0, UNITS - 1], 2, rest=[]) == [-128, -127]


def test_equal_thresholds_and_equal_upper_halves() -> None:
    table = InversionTable([5, 7, 7, (1 << 64) + 3], first=-1)
    uniforms = [0, 4, 5, 6, 7, (1 << 64) - 1, 1 << 64, (1 << 64) + 2, (1 << 64) + 3, 1 << 100]

    assert drawn(table, uniforms, 2) == [-1, -1, 0, 0, 2, 2, 2, 2, 3, 3]


def test_a_law_of_one_value() -> None:
    assert drawn(InversionTable([], first=-3), [0, UNITS - 1], 2, rest=[]) == [-3, -3]


@pytest.mark.parametrize("count", [127, 128, 129, 2047, 2048])
def test_laws_of_many_values(count: int) -> None:
    """Guides of either type, up to their last value."""
    thresholds = [UNITS // (count + 1) * k + k for k in range(1, count + 1)]
    table = InversionTable(thresholds, first=0)

    size = 2 if count < 2048 else 4
    assert drawn(table, thresholds, size) == list(range(1, count + 1))


# --- hybrids -------------------------------------------------------------------------------------------

VARIANCE = Fraction(3 << 16, 7)  # a width of 2
WIDTH = 2


def limit(step: int, moved: int, variance: Fraction = VARIANCE, width: int = WIDTH) -> int:
    """A, from decimals."""
    exponent = moved * (2 * width * step + moved) / (2 * variance)
    with localcontext() as context:
        context.prec = 80
        return int((-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp() * UNITS)


def proposal(step: int, offset: int, sign: int, upper: int) -> bytes:
    """What is read for one sample if J is not on the edge of a bucket; the bits between are ones."""
    far = tails(VARIANCE / WIDTH**2, both_sides=False)
    middle = UNITS - (far[step] + (far[step - 1] if step else UNITS)) // 2
    bits = sign << 63 | ((1 << 63) - WIDTH) | offset
    return word(middle >> 112, 2) + word(bits, 8) + word(upper, 8)


def accepted(stream: Chosen, *, margin: float | None = None) -> int:
    hybrid = Hybrid(VARIANCE) if margin is None else Hybrid(VARIANCE, margin=margin)
    (sample,) = hybrid.draws(stream, 1).draw(1)
    assert not stream.left
    return int(sample)


CASES = [(step, offset, sign) for step in (0, 1, 30, 100) for offset in (0, 1) for sign in (0, 1)]
FALLBACK = proposal(2, 1, 0, 0)  # accepted in any case, as 5


@pytest.mark.parametrize(("step", "offset", "sign"), CASES)
def test_what_is_proposed(step: int, offset: int, sign: int) -> None:
    size = WIDTH * step + offset

    assert accepted(Chosen(proposal(step, offset, sign, 0))) == (-size - 1 if sign else size)


@pytest.mark.parametrize("margin", [None, 2.0])
@pytest.mark.parametrize(("step", "offset", "sign"), [case for case in CASES if case[1] + case[2]])
def test_acceptance_is_exact_to_the_last_bit(step: int, offset: int, sign: int, margin: float | None) -> None:
    """On both sides of A: where upper halves differ by one, and where lower ones decide."""
    upper, lower = divmod(limit(step, offset + sign), 1 << 64)
    size = WIDTH * step + offset
    sample = -size - 1 if sign else size

    def drawn_with(first: int, second: bytes, then: bytes) -> int:
        return accepted(Chosen(proposal(step, offset, sign, first) + second + then), margin=margin)

    assert drawn_with(upper - 1, b"", b"") == sample
    assert drawn_with(upper, word(lower - 1, 8), b"") == sample
    assert drawn_with(upper, word(lower, 8), FALLBACK) == 5
    assert drawn_with(upper + 1, b"", FALLBACK) == 5


def test_what_cannot_be_rejected() -> None:
    """Without V and S, A is 2^128."""
    assert accepted(Chosen(proposal(7, 0, 0, (1 << 64) - 1))) == 14


@pytest.mark.parametrize("variance", [VARIANCE, Fraction(10**12), Fraction(1 << 80, 3)])
def test_floats_decide_nothing(variance: Fraction) -> None:
    """If whole numbers take every decision, the samples are the same."""
    by_floats = Hybrid(variance).draws(KeyStream(bytes(32)), 3000)
    exactly = Hybrid(variance, margin=2.0).draws(KeyStream(bytes(32)), 3000)
    for _ in range(2):
        assert (by_floats.draw(3000) == exactly.draw(3000)).all()


def test_proposals_cover_every_number_with_its_weight() -> None:
    """Weight of J times acceptance is the weight of X, for each X near zero, and each is proposed once."""
    seen: dict[int, Decimal] = {}
    with localcontext() as context:
        context.prec = 60
        for step in range(20):
            for offset in range(WIDTH):
                for sign in (0, 1):
                    size = WIDTH * step + offset
                    x = accepted(Chosen(proposal(step, offset, sign, 0)))
                    assert x not in seen
                    assert x == (-size - 1 if sign else size)
                    chosen = -Decimal((WIDTH * step) ** 2) / (2 * Decimal(3 << 16) / 7)
                    seen[x] = chosen.exp() * limit(step, offset + sign) / UNITS
        assert sorted(seen) == list(range(-40, 40))
        for x, weight in seen.items():
            assert abs(weight / (-Decimal(x * x) / (2 * Decimal(3 << 16) / 7)).exp() - 1) < Decimal(2) ** -120
