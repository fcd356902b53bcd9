"""Sampling by inversion: the number of thresholds up to a uniform number U of 128 bits gives the sample.

Thresholds are whole numbers T_0 <= T_1 <= ... below 2^128. The sample is `first` plus the number of
thresholds that are at most U. The leading bits of U are read from the stream first. They nearly always
determine the sample, which is then looked up in a table, the *guide*. If a threshold lies inside the range of
numbers that begin with these bits, the sample is *open*, and the rest of U is read too.

The guide has an entry for each value of the leading bits. Their number is 16 if there are fewer than 2^11
thresholds, and otherwise 5 more than the bit length of the number of thresholds. A block of samples reads:

 1. for each sample, a little-endian word with the leading bits of U: of 16 bits if the guide uses 16, and of
    32 bits if it uses more;
 2. for each open sample, in ascending order, two little-endian words of 64 bits: the upper half of U, in
    which the bits that are known already are ignored, and the lower half.

The time depends on how many samples are open. The memory addresses depend on the samples themselves. No
other process on the machine should be able to observe either.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, takewhile
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

_READ: Final = 1 << 17  # bytes read from a stream at a time
_LEAST_GUIDE_BITS: Final = 16
_FINER: Final = 5  # extra bits, with which about one sample in a hundred is open

Samples: TypeAlias = NDArray[np.signedinteger[Any]]


class Stream(Protocol):
    """A source of uniform bits, such as a `secagg.mask_keystream.KeyStream`."""

    def fill(self, buffer: NDArray[np.uint8]) -> None: ...


def fill_words(stream: Stream, words: NDArray[Any]) -> None:
    """Overwrite `words` with the next bytes of the stream."""
    data = words.view(np.uint8)
    for start in range(0, len(data), _READ):
        stream.fill(data[start : start + _READ])


class InversionTable:
    """A distribution over a range of 16-bit integers. A sample is `first` plus the number of `thresholds`
    that are at most U, a uniform number of 128 bits."""

    def __init__(self, thresholds: Sequence[int], *, first: int) -> None:
        halves = b"".join(each.to_bytes(UNIFORM_BITS // 8, "little") for each in thresholds)
        self.low, self.high = np.frombuffer(halves, "<u8").reshape(-1, 2).T.astype(np.uint64)
        self.first = first
        guide_bits = max(_LEAST_GUIDE_BITS, len(thresholds).bit_length() + _FINER)
        self.word = np.dtype("<u2" if guide_bits == _LEAST_GUIDE_BITS else "<u4")
        self.word_bits = 8 * self.word.itemsize
        self.shift = self.word_bits - guide_bits
        self.block = _READ // self.word.itemsize  # samples at a time
        self.guide = self._guide(guide_bits)

    def _guide(self, bits: int) -> Samples:
        """Return an array: for each value of the leading `bits` bits of a uniform number, the sample that
        they determine. Where they do not determine it, the entry is the least value of the array's type."""
        last = self.first + len(self.high)
        kind = np.dtype(np.int8) if self.first > -128 and last < 128 else np.dtype(np.int16)
        bucket = np.right_shift(self.high, 64 - bits).astype(np.intp)
        # A threshold exactly at the start of a bucket does not make the bucket open.
        inside = ((self.high << bits) | self.low) != 0
        passed = np.bincount(bucket + inside, minlength=(1 << bits) + 1)[: 1 << bits].cumsum()
        guide: Samples = (self.first + passed).astype(kind)
        guide[bucket[inside]] = np.iinfo(kind).min
        return guide

    @property
    def total_variation(self) -> Fraction:
        """An upper bound of the total variation distance from the distribution with exact thresholds. Here,
        thresholds are rounded and far tails cut off. A uniform number gives another sample only if it lies
        between a rounded and an exact threshold, or in a tail: each has a probability below 2^-128."""
        return Fraction(len(self.high) + 2, 1 << UNIFORM_BITS)

    def draws(self, stream: Stream, most: int) -> TableDraws:
        """Return a sampler that reads `stream`. Its `draw` gives up to `most` samples (`most` <= `block`)."""
        return TableDraws(self, stream, most)


class TableDraws:
    """Draws samples of an `InversionTable` from a stream, up to `most` per call, into reused buffers."""

    def __init__(self, table: InversionTable, stream: Stream, most: int) -> None:
        self._table = table
        self._stream = stream
        self._nothing = np.iinfo(table.guide.dtype).min
        self._words = np.empty(most, table.word)
        self._buckets = np.empty(most, np.intp)
        self._samples = np.empty(most, table.guide.dtype)
        self._open = np.empty(most, np.bool_)

    def draw(self, count: int) -> Samples:
        """Return the next `count` samples. The next call overwrites them."""
        words, buckets, samples = self._words[:count], self._buckets[:count], self._samples[:count]
        fill_words(self._stream, words)
        np.copyto(buckets, words)
        if self._table.shift:
            buckets >>= self._table.shift
        # Every bucket is in the guide. "clip" has no effect, except that numpy skips a check of the bounds.
        np.take(self._table.guide, buckets, out=samples, mode="clip")
        still_open = np.flatnonzero(np.equal(samples, self._nothing, out=self._open[:count]))
        if len(still_open):
            samples[still_open] = self._decide(words[still_open])
        return samples

    def _decide(self, words: NDArray[Any]) -> NDArray[np.int64]:
        """Return samples for which `words`, the leading bits of their uniform numbers, were not enough. Read
        the other bits of these numbers from the stream."""
        table = self._table
        rest = np.empty(2 * len(words), "<u8")
        fill_words(self._stream, rest)
        upper, lower = rest[::2], rest[1::2]
        unknown = 64 - table.word_bits
        upper &= (1 << unknown) - 1
        upper |= words.astype(np.uint64) << unknown
        passed = np.searchsorted(table.high, upper, "right")
        # The upper half of the last threshold up to U; if there is none, that of the first, which is larger.
        last = table.high.take(passed - 1, mode="clip")
        for tie in np.flatnonzero(last == upper):
            start = np.searchsorted(table.high, upper[tie], "left")
            passed[tie] = start + np.searchsorted(table.low[start : passed[tie]], lower[tie], "right")
        return table.first + passed


UNIFORM_BITS: Final = 128  # the bits of the uniform number U
LARGEST_VARIANCE: Final = 1 << 20  # the largest variance for which the error bounds of this module hold

PRECISION: Final = 320
_GUARD: Final = 64
_ONE: Final = 1 << PRECISION
_NEGLIGIBLE: Final = 1 << (PRECISION - 192)


def exp_minus(x: Fraction) -> int:
    """Return 2^320 exp(-x) for x >= 0 as an integer, with an absolute error below 2."""
    if x >= PRECISION:
        return 0
    # Compute exp(-x / 2^s) by Taylor's series, which converges fast near zero, and square it s times. Each of
    # up to 17 squarings at most doubles the error, so 64 extra bits are enough.
    bits, squarings = PRECISION + _GUARD, int(x).bit_length() + 8
    near = (x.numerator << bits) // (x.denominator << squarings)
    power = _series(near, bits)
    for _ in range(squarings):
        power = power * power >> bits
    return power >> _GUARD


def _series(x: int, bits: int) -> int:
    """Return exp(-x) by Taylor's series; `x` (below 2^-8) and the result are integers in units of 2^-bits."""
    total = term = 1 << bits
    order = 0
    while term:
        order += 1
        term = (term * x >> bits) // order
        total += term if order % 2 == 0 else -term
    return total


def tails(variance: Fraction, *, both_sides: bool) -> list[int]:
    """Return the probability that X > k, times 2^128 and rounded, for k = 0, 1, ... while this is not zero. X
    is a discrete Gaussian over all integers or, if `both_sides` is false, over those from 0 on. The error of
    each returned number is at most 1/2 + 2^-40."""
    weights = _weights(variance)
    beyond = list(accumulate(reversed(weights[1:]), initial=0))
    beyond.reverse()  # now beyond[k] is the weight of everything above k
    total = weights[0] + beyond[0] * (2 if both_sides else 1)
    rounded = (((weight << UNIFORM_BITS + 1) + total) // (2 * total) for weight in beyond)
    return list(takewhile(bool, rounded))


def _weights(variance: Fraction) -> list[int]:
    weights, weight = [], _ONE
    ratio, step = exp_minus(1 / (2 * variance)), exp_minus(1 / variance)
    while weight > _NEGLIGIBLE:
        weights.append(weight)
        weight = weight * ratio >> PRECISION
        ratio = ratio * step >> PRECISION
    return weights
