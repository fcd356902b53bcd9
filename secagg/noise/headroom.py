"""How many bits the total of a noisy part needs, so that it rarely wraps.

Noise has no bound, so a total may always wrap; it should be so many standard deviations away from it that it
does not happen. `secagg.noise.calibration` plans for six; what does not leave room for two is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from secagg.noise.promise import Noise, Promise

if TYPE_CHECKING:
    from secagg.spec import Part

_LEAST_STDDEVS: Final = 2.0
_EXACT: Final = 1 - 1e-9  # a plan that fills its ring to the last is not refused for an error of rounding


def bits_for_noise(part: Part, noise: Noise, promise: Promise, cohort: int) -> int:
    """The least bits with which honest clients are two standard deviations away from wrapping."""
    clients = max(min(cohort, promise.clients), promise.least_roster)
    variance = clients * _left(promise, clients) * noise.variance
    reach = clients * float(getattr(part.bound, "limit", 0)) * noise.scale
    if part.is_rotated:
        # A rotated total is nearly Gaussian; so is what rounding adds, at most a quarter for each client.
        flat = reach / math.sqrt(part.width)
        return 1 + _bits(_LEAST_STDDEVS * math.sqrt(flat**2 + variance + clients / 4))
    spread = _LEAST_STDDEVS * math.sqrt(variance)
    if part.counts:
        return _bits(reach + 2 * spread)
    return 1 + _bits(reach + clients + spread)


def _left(promise: Promise, clients: int) -> float:
    """What everyone's noise keeps of the target when nobody drops out."""
    removed = promise.surplus(clients, clients)
    kept = (share for layer, share in enumerate(promise.components(clients)) if layer not in removed)
    return float(sum(kept))


def _bits(most: float) -> int:
    """The bits of whole numbers up to `most`."""
    return math.floor(most * _EXACT).bit_length()
