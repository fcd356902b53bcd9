"""A client's own samples, divided: to train on, to choose settings by, and to test."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from fl.errors import DataError
from fl.federation import ClientData
from fl.samples import Samples

_SEEDS: Final = 2**32


@dataclass(frozen=True)
class SplitFractions:
    """`test` of all samples is to test, `validation` of the others for validation; train on the rest.

    Numbers are rounded as in the scripts that were released with the papers: those not to test are rounded
    down, and of them, those for validation.
    """

    test: float
    validation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise DataError(
                    f"{name} must be a share from 0 to below 1, not {getattr(self, name)!r}", parameter=name
                )

    def cuts(self, samples: int) -> tuple[int, int]:
        """Where validation, and where testing begins."""
        kept = int((1 - self.test) * samples)
        return kept - int(self.validation * kept), kept


TENTH: Final = SplitFractions(0.1)  # what most papers test on


def divided(samples: Samples, shares: SplitFractions, order: random.Random) -> ClientData:
    """`samples` in an order of the standard library's generator, the same that it would give to a list."""
    places = list(range(len(samples)))
    order.shuffle(places)
    train, kept = shares.cuts(len(places))
    if not train:
        raise DataError(
            f"a client with {len(places)} samples would have none to train on: "
            "make clients larger, or test and validate on smaller shares"
        )
    shuffled = samples.take(np.array(places))
    parts = (slice(train), slice(train, kept), slice(kept, None))
    return ClientData(*(Samples(shuffled.x[part], shuffled.y[part]) for part in parts))
