"""Sums to be audited: one vector, noise of a given multiple of what one client can move."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from secagg.noise.headroom import bits_for_noise
from secagg.noise.promise import Noise, Promise
from secagg.spec import L2, Part, SumSpec

PART: Final = "x"
CLIP: Final = 1.0
_LEAST_SIGMA: Final = 8.0  # grid points, of every component of noise
_SPARE_BITS: Final = 3  # beyond two standard deviations


def audited_spec(
    *, size: int, promise: Promise, multiplier: float, least_scale: float = 1.0, clients: int | None = None
) -> SumSpec:
    """A vector of norm 1 with noise whose standard deviation is `multiplier` times one client's reach.

    The grid is so fine that all components of the noise are well above it, for `clients` in the roster.
    """
    least = float(min(promise.components(clients or promise.clients)))
    scale = max(least_scale, math.ceil(_LEAST_SIGMA / math.sqrt(least) / multiplier))
    trial = _part(size, 64, Noise(scale=scale, variance=Fraction(1)))
    noise = Noise(scale=scale, variance=Fraction(multiplier) ** 2 * trial.norm2)
    bits = bits_for_noise(_part(size, 64, noise), noise, promise, promise.clients) + _SPARE_BITS
    return SumSpec(parts=(_part(size, bits, noise),), promise=promise)


def _part(size: int, bits: int, noise: Noise) -> Part:
    return Part(name=PART, size=size, bits=bits, bound=L2(CLIP), noise=noise)
