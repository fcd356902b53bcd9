"""Which samples every local step sees: the same for the same seed, however and wherever it is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl.samples import Array


@dataclass(frozen=True, eq=False)
class Order:
    """The samples of every step in the rows of `indices`, of which the first `sizes[step]` count.

    A single row stands for all steps where each sees everything.
    """

    indices: Array
    sizes: Array
    steps: int

    def of_step(self, step: int) -> Array:
        row = 0 if len(self.indices) == 1 else step
        indices: Array = self.indices[row, : self.sizes[row]]
        return indices


@dataclass(frozen=True)
class Batches:
    """Of a client with `samples` samples; `size` is None for all of them in every step."""

    samples: int
    size: int | None
    seed: int
    client: int

    @property
    def full(self) -> bool:
        """Whether every step sees everything, so that order does not matter."""
        return self.size is None or self.size >= self.samples

    def of_call(self, call: int, steps: int) -> Order:
        """What the client's training number `call` sees: pass after pass, each of them shuffled anew."""
        if self.full or self.size is None:
            return Order(np.arange(self.samples)[None], np.array([self.samples]), steps)
        per_epoch = -(-self.samples // self.size)
        epochs = -(-steps // per_epoch)
        rng = np.random.default_rng([self.seed, self.client, call])
        indices = np.zeros((epochs, per_epoch * self.size), np.int64)
        for epoch in range(epochs):
            indices[epoch, : self.samples] = rng.permutation(self.samples)
        sizes = np.full((epochs, per_epoch), self.size)
        sizes[:, -1] = self.samples - (per_epoch - 1) * self.size
        return Order(indices.reshape(-1, self.size)[:steps], sizes.reshape(-1)[:steps], steps)

    def number(self, call: int) -> int:
        """Another seed for that training, for what a model itself draws."""
        return int(np.random.SeedSequence([self.seed, self.client, call, 1]).generate_state(1)[0])
