"""Samples that belong to somebody: a writer, a role, a user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl.errors import DataError
from fl.samples import Array, Samples, array


@dataclass(frozen=True, eq=False)
class OwnedSamples:
    """Samples with the id of the owner of each; `names` of owners, if known, by id.

    An owner here has at least one sample. All of an owner's samples may be of one class: such data is
    what federated learning meets, so it is never an error.
    """

    samples: Samples
    owner: Array
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", array("owners", self.owner))
        if self.owner.shape != (len(self.samples),):
            raise DataError(
                f"{len(self.samples)} samples and {self.owner.shape} owners: one owner for each sample"
            )
        if self.owner.dtype.kind not in "iu":
            raise DataError(f"owners must be whole numbers, not {self.owner.dtype}")
        if self.names and len(self.owner) and not 0 <= self.owner.min() <= self.owner.max() < len(self.names):
            raise DataError(
                f"owners from {self.owner.min()} to {self.owner.max()}, but {len(self.names)} names"
            )

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def owners(self) -> Array:
        """The ids of all owners, in rising order."""
        return np.unique(self.owner)

    def of(self, owner: int) -> Samples:
        """What one owner holds, in the order of the file."""
        indices = np.flatnonzero(self.owner == owner)
        if not len(indices):
            raise DataError(f"owner {owner} has no samples")
        return self.samples.take(indices)
