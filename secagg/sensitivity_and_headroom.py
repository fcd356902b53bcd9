"""Sensitivity, the most that one client can change a total, and headroom, the bits that noise needs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor, isqrt, sqrt
from typing import Final, Protocol

from secagg.distributed_noise import Noise, NoiseAssumptions

LEAST_STDDEVS: Final = 2.0
# Standard deviations of room that a smaller roster needs: the first for which the full roster has room.
_SMALLER_ROSTER: Final = (5.0, 4.0, 3.0, LEAST_STDDEVS)
_EXACT: Final = 1 - 1e-9  # tolerates a rounding error in a plan that needs the whole ring


class NoisyPart(Protocol):
    """The fields of `secagg.sum_spec.Part` that this module uses. An import of `Part` would be circular."""

    @property
    def bits(self) -> int: ...
    @property
    def bound(self) -> object: ...
    @property
    def noise(self) -> Noise | None: ...
    @property
    def is_rotated(self) -> bool: ...
    @property
    def width(self) -> int: ...
    @property
    def counts(self) -> bool: ...


def bits_for_noise(
    part: NoisyPart, noise: Noise, promise: NoiseAssumptions, clients: int, *, stddevs: float = LEAST_STDDEVS
) -> int:
    """Return the fewest bits per element of `part` that hold the sum of `clients` clients' values plus
    `stddevs` standard deviations of the noise in this sum."""
    variance = clients * promise.left(clients) * noise.variance
    reach = clients * float(getattr(part.bound, "limit", 0)) * noise.scale
    if part.is_rotated:
        # A rotated total is nearly Gaussian. So is the rounding error, of variance at most 1/4 per client.
        flat = reach / sqrt(part.width)
        return 1 + _bits(stddevs * sqrt(flat**2 + variance + clients / 4))
    spread = stddevs * sqrt(variance)
    if part.counts:
        return _bits(reach + 2 * spread)
    return 1 + _bits(reach + clients + spread)


def fewest_clients(parts: Iterable[NoisyPart], promise: NoiseAssumptions) -> int:
    """Return the fewest clients to ask, so that an honest one stays and the bits of all `parts` hold the
    total with 5 standard deviations of noise (4, 3 or 2 if even `promise.clients` have no room for 5)."""
    noisy = [(part, part.noise) for part in parts if part.noise is not None]

    def fits(clients: int, stddevs: float) -> bool:
        return all(
            bits_for_noise(part, noise, promise, clients, stddevs=stddevs) <= part.bits
            for part, noise in noisy
        )

    low, high = promise.least_roster, promise.clients
    room = next((each for each in _SMALLER_ROSTER if fits(high, each)), LEAST_STDDEVS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle, room) else (middle + 1, high)
    return low


def _bits(most: float) -> int:
    """Return the bit length of the integer part of `most` * (1 - 1e-9); the factor tolerates float errors."""
    return floor(most * _EXACT).bit_length()


_FINE: Final = 1 << 64


def rounded_norm2(norm: Fraction, size: int) -> int:
    """Return the largest squared norm allowed after rounding `size` numbers of norm <= `norm` at random."""
    root = _root(Fraction(size))
    return floor(min(norm**2 + Fraction(size, 4) + norm + root / 2, (norm + root) ** 2))


def rounded_norm2_of_elements(limit: Fraction, size: int) -> int:
    """Return the largest squared norm allowed after rounding `size` numbers within +-`limit` at random."""
    return min(rounded_norm2(_root(size * limit**2), size), size * ceil(limit) ** 2)


def counts_norm2(limit: int, total: int | None, size: int) -> int:
    """Return the largest squared norm of `size` integers in 0..`limit` with a sum <= `total` (None: any)."""
    most = size * limit if total is None else min(total, size * limit)
    full, rest = divmod(most, limit)
    return full * limit**2 + rest**2


def _root(value: Fraction) -> Fraction:
    """Return the square root of `value`, rounded down at about 2^-64, by integers: equal on every machine."""
    return Fraction(isqrt(value.numerator * value.denominator * _FINE**2), value.denominator * _FINE)
