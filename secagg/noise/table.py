"""Inversion: a uniform number of 128 bits falls between two thresholds, and that is the sample.

Thresholds are whole numbers T_0 <= T_1 <= ... below 2^128. A uniform U stands for `first` plus the number of
thresholds that are at most U. Its leading bits are read from the stream first. For nearly all of them it does
not matter what follows, and a table, the guide, holds the answer. Where a threshold falls among the numbers
that begin with these bits, the rest of U is read too, and decides.

What is read for a block of samples: their words, little-endian, of 16 bits each, or of 32 bits if the law has
more than 2^9 thresholds; then, in ascending order of the samples for which the guide has no answer, two
little-endian 64-bit words each, H and L. The leading bits of U are the sample's first word. H has the next
ones: all of its bits but as many leading ones as are known already. L has the last 64.

How long this takes depends on how many samples of a block needed the rest of U; where in memory the guide is
read depends on the samples themselves. Nobody else on the machine should be able to observe either.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.noise.weights import UNIFORM_BITS

_MANY: Final = 1 << 9
_READ: Final = 1 << 17  # bytes that a stream gives at a time
_MOST_GUIDE_BITS: Final = 20

Samples: TypeAlias = NDArray[Any]  # of a signed type


class Stream(Protocol):
    """Where uniform bits come from: a `secagg.masks.KeyStream`."""

    def fill(self, buffer: NDArray[np.uint8]) -> None: ...


def read_words(stream: Stream, count: int, dtype: str) -> NDArray[Any]:
    """The next `count` words."""
    words = np.empty(count, dtype)
    data = words.view(np.uint8)
    for start in range(0, len(data), _READ):
        stream.fill(data[start : start + _READ])
    return words


class Table:
    """The law of a whole number with finitely many values."""

    # Samples at a time: their words, and what is made of them, fit into the second-level cache.
    block: Final = 1 << 15

    def __init__(self, thresholds: Sequence[int], *, first: int) -> None:
        self._first = first
        halves = b"".join(each.to_bytes(UNIFORM_BITS // 8, "little") for each in thresholds)
        self._low, self._high = np.frombuffer(halves, "<u8").reshape(-1, 2).T.astype(np.uint64)
        few = len(thresholds) <= _MANY
        guide_bits = 16 if few else min(len(thresholds).bit_length() + 7, _MOST_GUIDE_BITS)
        self._word, self._word_bits = ("<u2", 16) if few else ("<u4", 32)
        self._shift = self._word_bits - guide_bits
        self._open, self._guide = self._make_guide(guide_bits)

    def _make_guide(self, bits: int) -> tuple[int, Samples]:
        """What stands for "the rest decides", and what else stands for each leading `bits` of U."""
        last = self._first + len(self._high)
        small = -128 < self._first and last < 128
        kind = np.dtype(np.int8 if small else np.int16)
        below = np.right_shift(self._high, 64 - bits).astype(np.intp)
        # A threshold on the very edge between two buckets leaves no doubt in either.
        within = ((self._high << bits) | self._low) != 0
        passed = np.bincount(below + within, minlength=(1 << bits) + 1)[: 1 << bits].cumsum()
        guide = (self._first + passed).astype(kind)
        nothing = int(np.iinfo(kind).min)
        guide[below[within]] = nothing
        return nothing, guide

    @property
    def total_variation(self) -> Fraction:
        """At most how far this law is from the one whose probabilities the thresholds are rounded from.

        With exact thresholds, the same U stands for another value only if a rounded and an exact threshold are
        on different sides of it. One is less than 2^-128 away from the other, and so is each end of the line.
        """
        return Fraction(len(self._high) + 2, 1 << UNIFORM_BITS)

    def draw(self, stream: Stream, count: int) -> Samples:
        """A block of at most `block` samples."""
        words = read_words(stream, count, self._word)
        buckets = np.right_shift(words, self._shift) if self._shift else words
        samples = self._guide.take(buckets, mode="clip")
        still_open = np.flatnonzero(samples == self._open)
        if len(still_open):
            samples[still_open] = self._decide(stream, words[still_open])
        return samples

    def _decide(self, stream: Stream, words: NDArray[Any]) -> NDArray[np.int64]:
        """The samples whose U begins with these words."""
        rest = read_words(stream, 2 * len(words), "<u8").reshape(-1, 2)
        known = np.uint64(64 - self._word_bits)
        leading = np.left_shift(words.astype(np.uint64), known)
        high = leading | (rest[:, 0] & ((np.uint64(1) << known) - np.uint64(1)))
        passed = np.searchsorted(self._high, high, "left")
        ties = np.flatnonzero(np.searchsorted(self._high, high, "right") != passed)
        for tie in ties:
            passed[tie] = self._passed(int(high[tie]), int(rest[tie, 1]))
        return self._first + passed

    def _passed(self, high: int, low: int) -> int:
        """How many thresholds are at most U; some have the same upper half."""
        start, stop = (int(np.searchsorted(self._high, np.uint64(high), side)) for side in ("left", "right"))
        return start + int(np.searchsorted(self._low[start:stop], np.uint64(low), "right"))
