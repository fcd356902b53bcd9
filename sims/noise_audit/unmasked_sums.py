"""Computes noisy sums as the protocol does, but without masks, which is much faster.

Masks cancel in a total, so these totals have the same distribution as those of the protocol. Noise that is
needed only if more clients drop out is removed. A `Fault` can be simulated, to check that tests detect it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, assert_never

import numpy as np
from numpy.typing import ArrayLike

from secagg import residue_packing
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.input_encoding import Encoding
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.noise.gaussian import Layers
from secagg.residue_packing import Residues
from secagg.sensitivity_and_headroom import bits_for_noise
from secagg.sum_spec import L2, Part, SumSpec, Total
from sims.text_format import counted

_SEEDS_AT_ONCE: Final = 1024


class Fault(StrEnum):
    """A deliberate mistake in how clients add noise, made to check that the tests of the noise detect it."""

    NONE = "none"
    HALVED = "halved"  # all clients draw noise of half the standard deviation
    SILENT = "silent"  # client 0 adds no noise
    UNSCALED = "unscaled"  # the standard deviation is taken in units of the vector, not of the grid
    REUSED = "reused"  # two clients draw from the same seeds


class Seeds:
    """A callable that returns a new seed each time, derived from one seed so that sums can be repeated."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)
        self._left: list[bytes] = []

    def __call__(self) -> bytes:
        if not self._left:
            data = self._stream.words(_SEEDS_AT_ONCE * SEED_BYTES // 8).tobytes()
            self._left = [data[at : at + SEED_BYTES] for at in range(0, len(data), SEED_BYTES)]
        return self._left.pop()


class UnmaskedSums:
    """Computes sums of `spec` without masks over `clients` clients, of which the last `dropped` drop out.
    Raise `SpecError` if the noise of `spec` is planned for fewer drop-outs."""

    def __init__(
        self,
        spec: SumSpec,
        *,
        clients: int,
        dropped: int = 0,
        fault: Fault = Fault.NONE,
        seed: bytes = bytes(SEED_BYTES),
    ) -> None:
        assert spec.promise is not None  # A sum without noise cannot be audited.
        if dropped > spec.promise.dropouts:
            raise SpecError(
                f"{counted(dropped, 'drop-out')}, but the noise is planned for {spec.promise.dropouts}"
            )
        self.spec = spec
        self._invited = clients
        self._survivors = clients - dropped
        self._fault = fault
        self._seeds = Seeds(seed)
        self._surplus = spec.promise.surplus(clients, self._survivors)
        self._honest = self._encoding(spec)
        self._encodings = [self._encoding_of(member) for member in range(self._survivors)]

    def variance(self, part: Part) -> float:
        """Return the variance that the noise in a part of the total should have, in grid points squared."""
        assert self.spec.promise is not None
        if part.noise is None:
            return 0.0
        shares = self.spec.promise.components(self._invited)
        kept = sum(share for layer, share in enumerate(shares) if layer not in self._surplus)
        return float(self._survivors * kept * part.noise.variance)

    def _encoding(self, spec: SumSpec, kind: Callable[..., Encoding] = Encoding) -> Encoding:
        return kind(spec, cohort=self._invited, roster=self._invited)

    def _encoding_of(self, member: int) -> Encoding:
        match self._fault:
            case Fault.HALVED:
                return self._encoding(_with_variance(self.spec, lambda _: Fraction(1, 4)))
            case Fault.UNSCALED:
                return self._encoding(_with_variance(self.spec, _one_over_scale2))
            case Fault.SILENT if member == 0:
                return self._encoding(self.spec, _Silent)
            case Fault.NONE | Fault.SILENT | Fault.REUSED:
                return self._honest
            case _:
                assert_never(self._fault)

    def run(self, values: Callable[[int], Mapping[str, ArrayLike]]) -> tuple[Total, list[Residues]]:
        """Add up the vectors `values(client)` (part name -> vector) of all clients that do not drop out.
        Return the decoded total, and its residues (integers modulo 2^bits) for each part."""
        total = list(self._honest.zeros())
        last: list[bytes] = []
        for member, encoding in enumerate(self._encodings):
            seeds = [self._seeds() for _ in range(1 + self.spec.seeds)]
            if self._fault is Fault.REUSED and member == 1:
                seeds = last
            streams = [KeyStream(seed) for seed in seeds]
            encoded = encoding.encode(values(member), streams[0], noise=streams[1:])
            for part, residues in zip(total, encoded.residues, strict=True):
                part += residues
            noise = encoding.noise()
            for layer in self._surplus:
                noise.remove(layer, total, KeyStream(seeds[layer]))
            last = seeds
        decoded = self._honest.decode(total, contributors=self._survivors, invited=self._invited)
        return decoded, total[:-1]


def grid_points(part: Part, residues: Residues) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return residues modulo 2^b as integers from -2^(b - 1) to 2^(b - 1) - 1, where b is `part.bits`."""
    shift = 64 - part.bits
    wide = residues.astype(np.uint64)
    residue_packing.reduce(wide, part.bits)
    return (wide << np.uint64(shift)).view(np.int64) >> np.int64(shift)


class _Silent(Encoding):
    """The encoding of a client that adds no noise, for `Fault.SILENT`."""

    def noise(self) -> Layers:
        bare = replace(
            self.spec, parts=tuple(replace(part, noise=None) for part in self.spec.parts), promise=None
        )
        return Layers(bare, roster=self.cohort)


def _with_variance(spec: SumSpec, factor: Callable[[Part], Fraction]) -> SumSpec:
    return replace(spec, parts=tuple(_scaled(part, factor(part)) for part in spec.parts))


def _scaled(part: Part, factor: Fraction) -> Part:
    if part.noise is None:
        return part
    variance = (part.noise.variance * factor).limit_denominator(1 << 40)
    return replace(part, noise=replace(part.noise, variance=max(variance, Fraction(1, 1 << 40))))


def _one_over_scale2(part: Part) -> Fraction:
    return 1 / Fraction(part.noise.scale) ** 2 if part.noise is not None else Fraction(1)


PART: Final = "x"
CLIP: Final = 1.0
_LEAST_SIGMA: Final = 8.0  # least standard deviation of each component of noise, in grid points
_SPARE_BITS: Final = 3  # more than the noise needs


def audited_spec(
    *,
    size: int,
    promise: NoiseAssumptions,
    multiplier: float,
    least_scale: float = 1.0,
    clients: int | None = None,
) -> SumSpec:
    """Return the specification of a sum, with noise, of one vector of L2 norm at most `CLIP`. The noise has a
    standard deviation of `multiplier` times the largest norm of an encoded vector. The rounding grid has at
    least `least_scale` points per unit, and more if needed so that, in a sum of `clients` clients, every
    component of a client's noise has a standard deviation of at least `_LEAST_SIGMA` points."""
    least = float(min(promise.components(clients or promise.clients)))
    scale = max(least_scale, math.ceil(_LEAST_SIGMA / math.sqrt(least) / multiplier))
    trial = _part(size, 64, Noise(scale=scale, variance=Fraction(1)))
    noise = Noise(scale=scale, variance=Fraction(multiplier) ** 2 * trial.norm2)
    bits = bits_for_noise(_part(size, 64, noise), noise, promise, promise.clients) + _SPARE_BITS
    return SumSpec(parts=(_part(size, bits, noise),), promise=promise)


def _part(size: int, bits: int, noise: Noise) -> Part:
    return Part(name=PART, size=size, bits=bits, bound=L2(CLIP), noise=noise)
