"""The weighted mean of bounded updates: one sum, on which many algorithms rest.

A client with n samples has the weight min(n, cap) / cap, or 1 where all count the same. It contributes its
update times that weight, bounded in its norm, and the weight itself as the whole number min(n, cap); a client
that is clipped does not lose weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.record import Vector
from secagg.errors import CorruptTotal
from secagg.spec import L2, Count, Part, Total, bits_for_cohort

UPDATE: Final = "update"
WEIGHT: Final = "weight"


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How updates of `dim` numbers are averaged over at most `clients` clients.

    `clip`  the largest norm of an update; a longer one is scaled down to it.
    `cap`   samples beyond which a client counts no more; 1 for a plain mean of all clients.
    `bits`  of every number on the wire.
    """

    dim: int
    clients: int
    clip: float | None
    cap: int = 1
    bits: int = 32

    def __post_init__(self) -> None:
        checks.bound("clip", self.clip, "the largest norm that an update may have, such as 10.0")
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("bits", self.bits, 2, 64)

    @property
    def limit(self) -> float:
        assert self.clip is not None  # checked above
        return self.clip

    def parts(self) -> tuple[Part, ...]:
        update = Part(name=UPDATE, size=self.dim, bits=self.bits, bound=L2(self.limit))
        if self.cap == 1:
            return (update,)
        bits = bits_for_cohort(Count(self.cap), self.clients)
        return (update, Part(name=WEIGHT, size=1, bits=bits, bound=Count(self.cap)))

    def weight(self, samples: int) -> float:
        """From 0 to 1."""
        return min(samples, self.cap) / self.cap

    def contribution(self, update: Vector, samples: int) -> Mapping[str, ArrayLike]:
        """What a client adds. It is clipped here as well, so that its weight cannot widen the bound."""
        if self.cap == 1:
            return {UPDATE: update}
        weighted = clipped(update, self.limit) * self.weight(samples)
        return {UPDATE: weighted, WEIGHT: np.array([min(samples, self.cap)], np.uint64)}

    def mean(self, total: Total) -> Vector:
        """The mean that a total says."""
        weight = total.count if self.cap == 1 else int(total[WEIGHT][0]) / self.cap
        if weight <= 0:
            raise CorruptTotal("the clients of this sum have no samples at all")
        return np.asarray(total[UPDATE], np.float64) / weight


def clipped(vector: Vector, limit: float) -> Vector:
    """`vector`, scaled down to the norm `limit` if it is longer."""
    norm = float(np.linalg.norm(vector))
    return vector if norm <= limit else vector * (limit / norm)
