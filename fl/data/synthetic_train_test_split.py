"""The split of a client's samples of synthetic data into training, validation and test sets."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from fl.errors import DataError
from fl.federation import ClientData
from fl.samples import Samples


@dataclass(frozen=True)
class SplitFractions:
    """How to split a client's samples: the fraction `test` is for testing, and the fraction `validation` of
    the others for validation. As in the scripts that papers released, the number of samples that are not for
    testing is rounded down, and so is the number of samples for validation."""

    test: float
    validation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise DataError(
                    f"{name} must be a share from 0 to below 1, not {getattr(self, name)!r}", parameter=name
                )

    def cuts(self, samples: int) -> tuple[int, int]:
        """Return the indices at which validation and test samples begin, out of `samples` samples."""
        kept = int((1 - self.test) * samples)
        return kept - int(self.validation * kept), kept


TENTH: Final = SplitFractions(0.1)  # used by most papers


def divided(samples: Samples, shares: SplitFractions, order: random.Random) -> ClientData:
    """Return `samples`, shuffled by `order`, split by `shares`. Raise `DataError` if none is for training."""
    indices = list(range(len(samples)))
    order.shuffle(indices)
    train, kept = shares.cuts(len(indices))
    if not train:
        raise DataError(
            f"a client with {len(indices)} samples would have none for training: "
            "make clients larger, or lower the shares for test and validation"
        )
    shuffled = samples.take(np.array(indices))
    parts = (slice(train), slice(train, kept), slice(kept, None))
    return ClientData(*(Samples(shuffled.x[part], shuffled.y[part]) for part in parts))
