"""Rejection: a wide Gaussian on the integers, made of a narrow half and uniform bits.

Let w be a power of two. J is drawn from 0, 1, 2, ... with weights exp(-(w J)^2 / (2 variance)), by a table; V is
uniform in 0 ... w - 1; S is 0 or 1. Together they propose

    X = w J + V  if S = 0,        X = -(w J + V + 1)  if S = 1,

every whole number in exactly one way, and it is accepted with probability

    exp(-y),   y = (X^2 - (w J)^2) / (2 variance) = D (2 w J + D) / (2 variance),   D = V + S.

What is left has weights exp(-X^2 / (2 variance)). With w between 1/128 and 1/64 of the standard deviation, more
than 98 % are accepted, and y is below 1/4.

Accepted is what has U < A = floor(2^128 exp(-y)), where U is uniform of 128 bits. The upper half of U is read
with the proposal, the lower half only if the upper halves of U and A are equal.

What is read for a block of samples: what the table reads for a block of J; then a little-endian 64-bit word for
each, whose top bit is S and whose lowest bits are V; then one for each that is the upper half of U; then, in
ascending order of those whose upper half is that of A, one for each that is the lower half. Samples that were
rejected are drawn anew in the same way, all of them together, until none is left.

Floats settle nearly all comparisons, never their outcome: they are trusted only where the two sides differ by
far more than floats can err, and all else is compared in whole numbers. So the samples, and how much of the
stream they took, are the same on every machine.

How long this takes depends on how many samples were rejected, which says nothing about those that were not.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.noise.table import Stream, Table, read_words
from secagg.noise.weights import PRECISION, UNIFORM_BITS, exp_minus, tails

_STEPS: Final = 64  # widths in a standard deviation, at least

# How far floats may be off, with u = 2^-53 for each rounding. Of y: D, 2 w J + D and 1 / (2 variance) are
# rounded once each and multiplied twice, so its relative error is below 6 u, and its absolute one below 2 u as
# y < 1/4. Of exp(-y), which is below 1: as much again and the error of the library's exp, which is a few u. Of
# U as a part of 2^128: u, and 2^-64 for the bits that have not been read. All this is below 2^-48. Being 2^8
# times more careful costs one comparison of whole numbers in 2^40 samples, and forgives a library a lot.
_MARGIN: Final = 2.0**-40


class Hybrid:
    """The discrete Gaussian of a variance from 2^12 to 2^116."""

    block: Final = 1 << 13

    def __init__(self, variance: Fraction, *, margin: float = _MARGIN) -> None:
        self._variance = variance
        self._margin = margin
        # The largest power of two that is at most 1/64 of the standard deviation.
        self._width_bits = (int(variance / _STEPS**2).bit_length() - 1) // 2
        far = tails(variance / (1 << 2 * self._width_bits), both_sides=False)
        self._steps = Table([(1 << UNIFORM_BITS) - each for each in far], first=0)
        self._factor = float(1 / (2 * variance))

    @property
    def total_variation(self) -> Fraction:
        """At most how far this law is from the exact one.

        Let p be what is proposed and accepted, before it is scaled to a sum of one. The sum of all errors of p
        is at most twice the distance of J, and 2^-127 for A. Scaling doubles it at most, as does dividing by
        the sum of p, which is above 1/2; and a distance is half of such a sum.
        """
        return 2 * (2 * self._steps.total_variation + Fraction(2, 1 << UNIFORM_BITS))

    def draw(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """A block of at most `block` samples."""
        samples, rejected = self._propose(stream, count)
        while len(rejected):
            samples[rejected], again = self._propose(stream, len(rejected))
            rejected = rejected[again]
        return samples

    def _propose(self, stream: Stream, count: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """X for each of `count` samples, and the indices of those that are rejected."""
        twice = self._steps.draw(stream, count).astype(np.int64)
        bits = read_words(stream, count, "<u8").view("<i8")
        uniform = read_words(stream, count, "<u8")
        twice <<= self._width_bits
        signs = bits >> 63  # -S
        offsets = bits & ((1 << self._width_bits) - 1)
        samples = (twice + offsets) ^ signs  # -(n + 1) is n with all bits inverted
        offsets -= signs  # D
        twice += twice
        twice += offsets  # 2 w J + D
        exponents = offsets * self._factor
        exponents *= twice
        parts = uniform * 2.0**-64
        # As exp(-y) > 1 - y, most are accepted without computing it.
        doubtful = np.flatnonzero(parts + exponents >= 1 - self._margin)
        gaps = np.exp(-exponents[doubtful]) - parts[doubtful]
        accepted = gaps > 0
        for close in np.flatnonzero(np.abs(gaps) <= self._margin):
            index = doubtful[close]
            product = int(offsets[index]) * int(twice[index])
            accepted[close] = self._accepts(product, int(uniform[index]), stream)
        return samples, doubtful[~accepted]

    def _accepts(self, product: int, upper: int, stream: Stream) -> bool:
        """Whether U < A, in whole numbers; `product` is 2 y times the variance."""
        limit = exp_minus(product / (2 * self._variance)) >> (PRECISION - UNIFORM_BITS)
        if upper != limit >> 64:
            return upper < limit >> 64
        lower = int(read_words(stream, 1, "<u8")[0])
        return upper << 64 | lower < limit
