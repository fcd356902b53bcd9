"""How many bits the total of a noisy part needs, so that it rarely wraps.

Noise has no bound, so a total may always wrap; it should be so many standard deviations away from it that it
does not happen. `secagg.noise.calibration` plans for six; what does not leave room for two is refused. With a
smaller roster than planned, everybody adds more noise, and there is less room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from secagg.noise.promise import Noise, Promise

if TYPE_CHECKING:
    from secagg.spec import Part

LEAST_STDDEVS: Final = 2.0
# What a smaller roster has to leave, or as much of it as the planned one does.
_SMALLER_ROSTER: Final = (5.0, 4.0, 3.0, LEAST_STDDEVS)
_EXACT: Final = 1 - 1e-9  # a plan that fills its ring to the last is not refused for an error of rounding


def bits_for_noise(
    part: Part, noise: Noise, promise: Promise, clients: int, *, stddevs: float = LEAST_STDDEVS
) -> int:
    """The least bits with which so many honest clients are so many standard deviations away from wrapping."""
    variance = clients * promise.left(clients) * noise.variance
    reach = clients * float(getattr(part.bound, "limit", 0)) * noise.scale
    if part.is_rotated:
        # A rotated total is nearly Gaussian; so is what rounding adds, at most a quarter for each client.
        flat = reach / math.sqrt(part.width)
        return 1 + _bits(stddevs * math.sqrt(flat**2 + variance + clients / 4))
    spread = stddevs * math.sqrt(variance)
    if part.counts:
        return _bits(reach + 2 * spread)
    return 1 + _bits(reach + clients + spread)


def fewest_clients(parts: Iterable[Part], promise: Promise) -> int:
    """The least roster whose total is five standard deviations away from wrapping.

    Where the planned one leaves no room for five, it is as many as that one leaves, but for a fraction.
    """
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
    """The bits of whole numbers up to `most`."""
    return math.floor(most * _EXACT).bit_length()
