"""The discrete Gaussian: whole numbers k with probabilities proportional to exp(-k^2 / (2 variance)).

The variance is any fraction above zero. Every step from it to a sample uses integers, or floats whose errors
do not change the result. The total variation distance between the samples and the exact distribution is below
2^-100; `total_variation` bounds it. Up to variance 2^20, samples are drawn by inversion of the distribution
function (`secagg.noise.inversion_sampler`), above by rejection (`secagg.noise.rejection_sampler`).

Samples X depend only on the seed, the variance and how many are drawn. The thresholds of the inversion are

    T(k) = 2^128 - t(k),  T(-k - 1) = t(k),    t(k) = round(2^128 P[X > k]),  k = 0, 1, ... while t(k) > 0.

A sample is -K plus the number of thresholds up to a uniform 128-bit number, where K is the number of those k.
The key stream of the seed is read in blocks, of which the last may be shorter. With inversion, a block has
2^16 samples if it begins with words of 16 bits, and 2^15 if they have 32 bits. With rejection, it has 2^14
samples. The two modules say in which order a block reads the stream.

The time to draw a block depends on how many of its samples need extra bits, not on their values. ("Are We
There Yet? Timing and Floating-Point Attacks on Differential Privacy Systems" attacks samplers whose time
depends on the values.) The memory addresses that are read do depend on the samples: a process that shares a
processor's cache with this one may observe them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.errors import ParameterError
from secagg.mask_keystream import KeyStream
from secagg.noise.inversion_sampler import LARGEST_VARIANCE as LARGEST_OF_TABLES
from secagg.noise.inversion_sampler import UNIFORM_BITS, InversionTable, Samples, Stream, tails
from secagg.noise.rejection_sampler import Hybrid
from secagg.residue_packing import Residues
from secagg.sum_spec import SumSpec

LARGEST_VARIANCE: Final = 1 << 116  # samples of up to 13.3 standard deviations then fit into 64 bits
_KEPT: Final = 64  # the number of distributions in the cache; the largest takes three megabytes


class DiscreteGaussian:
    """The discrete Gaussian distribution on all integers with this variance, sampled from a key stream."""

    def __init__(self, variance: Fraction) -> None:
        self.variance = variance
        self._sampler = _table(variance) if variance <= LARGEST_OF_TABLES else Hybrid(variance)

    def __repr__(self) -> str:
        return f"DiscreteGaussian({self.variance})"

    @property
    def total_variation(self) -> Fraction:
        """An upper bound of the total variation distance of a sample from the exact law; below 2^-100."""
        return self._sampler.total_variation

    def sample(self, stream: Stream, size: int) -> NDArray[np.int64]:
        samples = np.empty(size, np.int64)
        for window, block in self._blocks(stream, size):
            samples[window] = block
        return samples

    def add_to(self, residues: Residues, stream: Stream) -> None:
        """Add a new sample to each of `residues` in place, modulo 2^w, where w is the width of the type."""
        self._apply(np.add, residues, stream)

    def subtract_from(self, residues: Residues, stream: Stream) -> None:
        """Subtract the samples that `add_to` added, in place. `stream` must be a new one of the same seed."""
        self._apply(np.subtract, residues, stream)

    def _apply(self, operation: np.ufunc, residues: Residues, stream: Stream) -> None:
        # Signed and unsigned arithmetic agree modulo 2^width, and higher bits of a sample have no effect.
        signed = residues.view(residues.dtype.str.replace("u", "i"))
        for window, block in self._blocks(stream, len(residues)):
            part = signed[window]
            operation(part, block, out=part, dtype=signed.dtype, casting="unsafe")

    def _blocks(self, stream: Stream, size: int) -> Iterator[tuple[slice, Samples]]:
        step = self._sampler.block
        draws = self._sampler.draws(stream, min(size, step))
        for start in range(0, size, step):
            stop = min(start + step, size)
            yield slice(start, stop), draws.draw(stop - start)


def _table(variance: Fraction) -> InversionTable:
    far = tails(variance, both_sides=True)
    upper = [(1 << UNIFORM_BITS) - each for each in far]
    return InversionTable([*reversed(far), *upper], first=-len(far))


@lru_cache(_KEPT)
def discrete_gaussian(variance: Fraction | int) -> DiscreteGaussian:
    """Return the distribution with this variance. Raises `ParameterError` if it is not in (0, 2^116]."""
    if not 0 < variance <= LARGEST_VARIANCE:
        raise ParameterError("the variance of a discrete Gaussian must be above zero and at most 2^116")
    return DiscreteGaussian(Fraction(variance))


class Layers:
    """The noise that each of `roster` clients adds in a sum, as layers (independent components). Layer 0
    always stays in the total. The server can remove others, when it knows how many clients dropped out."""

    def __init__(self, spec: SumSpec, *, roster: int) -> None:
        self._spec = spec
        self._shares = spec.promise.components(roster) if spec.promise is not None else ()

    def add_to(self, residues: Sequence[Residues], streams: Sequence[KeyStream]) -> None:
        """Add all layers of a client's noise to its parts in place. Layer k is drawn from `streams[k]`."""
        for layer in range(len(self._shares)):
            for part, law in self._laws(layer, residues):
                law.add_to(part, streams[layer])

    def remove(self, layer: int, residues: Sequence[Residues], stream: KeyStream) -> None:
        """Subtract the noise of one client's `layer` from the parts of a total in `residues`, in place.
        `stream` must be a new key stream of the seed from which the client drew that layer."""
        for part, law in self._laws(layer, residues):
            law.subtract_from(part, stream)

    def _laws(self, layer: int, residues: Sequence[Residues]) -> Iterator[tuple[Residues, DiscreteGaussian]]:
        for part, values in zip(self._spec.parts, residues, strict=False):
            if part.noise is not None:
                yield values, discrete_gaussian(part.noise.variance * self._shares[layer])
