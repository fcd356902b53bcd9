"""Samples with owners, such as writers, roles or users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl.errors import DataError
from fl.samples import Array, Samples, array


@dataclass(frozen=True, eq=False)
class OwnedSamples:
    """Samples with the id of each sample's owner. `names[id]` is the name of an owner, if names are known."""

    samples: Samples
    owner: Array
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", array("owners", self.owner))
        if self.owner.shape != (len(self.samples),):
            raise DataError(
                f"{len(self.samples)} samples and {self.owner.shape} owners: give one owner for each sample"
            )
        if self.owner.dtype.kind not in "iu":
            raise DataError(f"owners must be whole numbers, not {self.owner.dtype}")
        if self.names and len(self.owner) and not 0 <= self.owner.min() <= self.owner.max() < len(self.names):
            raise DataError(
                f"owners from {self.owner.min()} to {self.owner.max()}, but {len(self.names)} names"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def of(self, owner: int) -> Samples:
        """Return the samples of one owner, in their original order. Raise `DataError` if there are none."""
        indices = np.flatnonzero(self.owner == owner)
        if not len(indices):
            raise DataError(f"owner {owner} has no samples")
        return self.samples.take(indices)
