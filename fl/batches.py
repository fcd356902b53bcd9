"""Batches: which samples of a client each step of a training uses, in random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl.samples import Array


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The sample indices of every step of a training. Step k uses the first `sizes[k]` entries of row k of
    `indices`. If every step uses all samples, both arrays have a single row, which is valid for all steps."""

    indices: Array
    sizes: Array
    steps: int

    def of_step(self, step: int) -> Array:
        """Return the indices of the samples of step `step`, counted from 0."""
        row = 0 if len(self.indices) == 1 else step
        indices: Array = self.indices[row, : self.sizes[row]]
        return indices


@dataclass(frozen=True)
class BatchSampler:
    """Draws the batches of a client with `samples` samples. A batch has `size` samples (the last one of a
    pass over the data may have fewer), or all samples if `size` is None."""

    samples: int
    size: int | None
    seed: int
    client: int

    @property
    def full(self) -> bool:
        """Whether every step uses all samples, so that their order does not matter."""
        return self.size is None or self.size >= self.samples

    def of_call(self, call: int, steps: int) -> SampleOrder:
        """Return the sample indices of each of `steps` steps, for the client's training number `call`. Every
        pass over the data has a new random order and is cut into batches. The order depends only on `seed`,
        `client` and `call`. If every step uses all samples, they stay in their original order."""
        if self.full or self.size is None:
            return SampleOrder(np.arange(self.samples)[None], np.array([self.samples]), steps)
        per_epoch = -(-self.samples // self.size)
        epochs = -(-steps // per_epoch)
        rng = np.random.default_rng([self.seed, self.client, call])
        indices = np.zeros((epochs, per_epoch * self.size), np.int64)
        for epoch in range(epochs):
            indices[epoch, : self.samples] = rng.permutation(self.samples)
        sizes = np.full((epochs, per_epoch), self.size)
        sizes[:, -1] = self.samples - (per_epoch - 1) * self.size
        return SampleOrder(indices.reshape(-1, self.size)[:steps], sizes.reshape(-1)[:steps], steps)

    def layer_seed(self, call: int) -> int:
        """Return the seed of random layers, such as dropout, for the client's training number `call`."""
        return int(np.random.SeedSequence([self.seed, self.client, call, 1]).generate_state(1)[0])
