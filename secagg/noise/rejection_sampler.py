"""Sampling of wide discrete Gaussians by rejection, from a narrow half Gaussian and uniform bits.

Let w be a power of two. J is drawn from 0, 1, 2, ... with weights exp(-(w J)^2 / (2 variance)), by an
`InversionTable`. V is uniform in 0 ... w - 1, and S is uniform in 0, 1. Together they propose

    X = w J + V  if S = 0,        X = -(w J + V + 1)  if S = 1,

where each integer is proposed in exactly one way. X is accepted with probability

    exp(-y),   y = (X^2 - (w J)^2) / (2 variance) = D (2 w J + D) / (2 variance),   D = V + S.

So accepted X have weights exp(-X^2 / (2 variance)). w is the largest power of two that is at most 1/64 of the
standard deviation. Then more than 98 % of the proposals are accepted, and y is below 1/4.

A proposal is accepted if U < A = floor(2^128 exp(-y)), where U is uniform of 128 bits. The upper half of U is
read with the proposal, the lower half only if the upper halves of U and A are equal. A block of samples reads
the following, all words being little-endian and of 64 bits:

 1. what the table reads for a block of J, whose thresholds are 2^128 - t(j), t(j) = round(2^128 P[J > j]),
    for j = 0, 1, ... while t(j) > 0;
 2. a word for each sample, whose top bit is S and whose lowest bits are V;
 3. a word for each sample, the upper half of U;
 4. for each sample where this is the upper half of A, in ascending order, a word: the lower half of U.

All rejected samples are proposed again together, in the same way, until none is left.

A comparison uses floats only if its two sides differ by far more than a float error; otherwise it uses
integers. So the samples, and how many bytes of the stream they take, are the same on every machine.

Rejections are independent of the accepted samples; other timing is not (see `inversion_sampler`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.noise import inversion_sampler
from secagg.noise.inversion_sampler import UNIFORM_BITS, InversionTable, Stream, exp_minus, fill_words

_STEPS: Final = 64  # the least number of widths w in a standard deviation

# How far floats may be off, with u = 2^-53 for one rounding. Of y: D, 2 w J + D and 1 / (2 variance) are
# rounded once each and then multiplied in two steps. That is a relative error below 6 u, and below 2 u in
# all, as y is below 1/4. Of exp(-y): as much, and what the library's exp adds, a few u. Of U / 2^128: u, and
# 2^-64 for the bits that have not been read. Of their difference, or of U / 2^128 + y: u more. Altogether
# that is below 2^-48. A margin 2^8 times larger costs about one comparison of integers in 2^38 samples, and
# covers even a library with an error of 2^12 u.
_MARGIN: Final = 2.0**-40


class Hybrid:
    """The discrete Gaussian distribution with a variance from 2^12 to 2^116, sampled by rejection."""

    block: Final = 1 << 14  # samples at a time

    def __init__(self, variance: Fraction, *, margin: float = _MARGIN) -> None:
        self.variance = variance
        self.margin = margin
        # The largest power of two that is at most 1/64 of the standard deviation.
        self.width_bits = (int(variance / _STEPS**2).bit_length() - 1) // 2
        far = inversion_sampler.tails(variance / (1 << 2 * self.width_bits), both_sides=False)
        self.steps = InversionTable([(1 << UNIFORM_BITS) - each for each in far], first=0)

    @property
    def total_variation(self) -> Fraction:
        """An upper bound of the total variation distance of a sample from the exact distribution. A proposal
        X combines a sample J of a table with uniform bits. It is accepted with a probability rounded to 128
        bits. Let p(X) be the probability that X is proposed and accepted. The errors of all p(X) add up to at
        most twice the total variation distance of J, plus 2^-127 for rounding. Samples have the probabilities
        p / sum of p. As that sum is above 1/2, the errors at most quadruple. The distance is half of them."""
        return 2 * (2 * self.steps.total_variation + Fraction(2, 1 << UNIFORM_BITS))

    def draws(self, stream: Stream, most: int) -> HybridDraws:
        """Return a sampler that reads `stream`. Its `draw` gives up to `most` samples (`most` <= `block`)."""
        return HybridDraws(self, stream, most)

    def accepts(self, product: int, upper: int, stream: Stream) -> bool:
        """Return whether to accept a proposal: U < 2^128 exp(-y), where y = `product` / (2 variance). U is
        uniform, of 128 bits: `upper`, and 64 lower bits, which are read from `stream` only if they matter."""
        limit = exp_minus(product / (2 * self.variance)) >> (inversion_sampler.PRECISION - UNIFORM_BITS)
        if upper != limit >> 64:
            return upper < limit >> 64
        lower = np.empty(1, "<u8")
        fill_words(stream, lower)
        return upper << 64 | int(lower[0]) < limit


class HybridDraws:
    """Draws samples of a `Hybrid` from a stream, up to `most` per call, into reused buffers."""

    def __init__(self, law: Hybrid, stream: Stream, most: int) -> None:
        self._law = law
        self._stream = stream
        self._steps = law.steps.draws(stream, most)
        self._factor = float(1 / (2 * law.variance))
        self._bits, self._uniform = np.empty((2, most), "<u8")
        self._samples, self._again, self._twice, self._spare = np.empty((4, most), np.int64)
        self._exponents, self._sums = np.empty((2, most), np.float64)
        self._doubtful = np.empty(most, np.bool_)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` samples. The next call overwrites them."""
        samples = self._samples[:count]
        rejected = self._propose(samples)
        while len(rejected):
            others = self._again[: len(rejected)]
            again = self._propose(others)
            samples[rejected] = others
            rejected = rejected[again]
        return samples

    def _propose(self, samples: NDArray[np.int64]) -> NDArray[np.intp]:
        """Overwrite `samples` with new proposals. Return the indices of those proposals that are rejected."""
        count, bits = len(samples), self._law.width_bits
        offsets, signs, twice = self._bits[:count].view("<i8"), self._spare[:count], self._twice[:count]
        np.left_shift(self._steps.draw(count), bits, out=twice, dtype=np.int64)  # w J
        fill_words(self._stream, offsets)
        fill_words(self._stream, self._uniform[:count])
        np.right_shift(offsets, 63, out=signs)  # -S
        offsets &= (1 << bits) - 1  # V
        np.add(twice, offsets, out=samples)
        samples ^= signs  # -(n + 1) is n with all its bits inverted
        offsets -= signs  # D
        twice += twice
        twice += offsets  # 2 w J + D
        return self._rejected(offsets, twice)

    def _rejected(self, offsets: NDArray[np.int64], twice: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the indices of the rejected proposals. Proposal i is accepted with probability exp(-y),
        where y = `offsets[i]` * `twice[i]` / (2 variance). `_propose` has drawn the uniform numbers."""
        count, margin = len(offsets), self._law.margin
        uniform = self._uniform[:count]
        exponents, sums = self._exponents[:count], self._sums[:count]
        np.multiply(twice, self._factor, out=exponents)
        exponents *= offsets
        # Signed numbers are converted to floats in less than half the time.
        leading = np.right_shift(uniform, 11, out=self._spare[:count].view(np.uint64)).view(np.int64)
        np.multiply(leading, 2.0**-53, out=sums)
        sums += exponents
        # As exp(-y) > 1 - y, most proposals are accepted without computing exp(-y).
        doubtful = np.flatnonzero(np.greater_equal(sums, 1 - margin, out=self._doubtful[:count]))
        gaps = np.exp(-exponents[doubtful]) - uniform[doubtful] * 2.0**-64
        accepted = gaps > 0
        for close in np.flatnonzero(np.abs(gaps) <= margin):
            index = doubtful[close]
            product = int(offsets[index]) * int(twice[index])
            accepted[close] = self._law.accepts(product, int(uniform[index]), self._stream)
        return doubtful[~accepted]
