"""How many bits the total of a noisy part needs, so that it rarely wraps.

Noise has no bound, so a total may always wrap; it should be so many standard deviations away from it that it
does not happen. `calibrate` plans for six; what does not leave room for two is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from secagg.noise.promise import Noise, Promise

if TYPE_CHECKING:
    from secagg.spec import Part

_LEAST_STDDEVS: Final = 2.0


def bits_for_noise(part: Part, noise: Noise, promise: Promise, cohort: int) -> int:
    """The least bits with which honest clients are two standard deviations away from wrapping."""
    clients = max(min(cohort, promise.clients), promise.least_roster)
    spread = _LEAST_STDDEVS * math.sqrt(clients * (_left(promise, clients) * noise.variance + 0.25))
    limit = float(getattr(part.bound, "limit", 0))
    reach = clients * limit * noise.scale
    if part.is_rotated:
        flat = _LEAST_STDDEVS * reach / math.sqrt(part.width)
        return 1 + _bits(math.hypot(flat, spread))
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
    return math.floor(most).bit_length()
