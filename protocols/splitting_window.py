"""The server's side of an accelerated splitting: a window of the last rounds, in means and inner products.

Where u is common, residuals and images of the iteration are the server's own. Where every client has a u_i,
the iteration is that of all of them together, and the server knows the means of their u_i, z_i and residuals,
and the mean inner products of their residuals, the Gram matrix: no single one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from protocols.anderson import Anderson, Guard, combined
from protocols.record import Vector, as_vector
from protocols.vocabulary import LARGEST

# Whether the server knows the mean of all u_i: yes; not since the cohort changed; not yet, but the cohort is
# what it was, and the mean is asked for next.
KNOWN: Final = "known"
LOST: Final = "lost"
ASKED: Final = "asked"


@dataclass(frozen=True)
class Window:
    """What the last rounds of one cohort left.

    `pairs`      rounds since the window began; the last tau + 1 of them are kept:
    `residuals`  the mean of u - T u of each, oldest first,
    `images`     the mean of T u,
    `means`      the mean of z, where each client has a u of its own, and
    `gram`       the mean inner products of the clients' residuals, row after row.
    `weights`    the combination that the next round begins with; empty for a plain step.
    `guard`      what the safeguard remembers.
    `count`      clients in the last sum; 0 before the first.
    `mean`       whether the mean of all u_i is known: "known", "lost" or "asked".
    `unit`       about the length of all clients' residuals together in the next round; 0 where u is common.
    """

    pairs: int = 0
    residuals: tuple[Vector, ...] = ()
    images: tuple[Vector, ...] = ()
    means: tuple[Vector, ...] = ()
    gram: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    guard: Guard = field(default_factory=Guard)
    count: int = 0
    mean: str = KNOWN
    unit: float = 0.0

    def restarted(self, count: int, *, unit: float = 0.0, mean: str = KNOWN) -> Window:
        """An empty window, for a cohort of that many. What the safeguard knows of residuals stays."""
        return Window(guard=self.guard, count=count, mean=mean, unit=unit)

    def kept(self, memory: int) -> tuple[Vector, ...]:
        """Mean residuals of the rounds that stay when another one comes, oldest first."""
        return self.residuals[-memory:]

    def centre(self, mean: Vector) -> Vector:
        """What rows of the Gram matrix are centred on, c: the last means, combined as the last images are."""
        return combined(self.weights, self.means) if self.weights else mean

    def advanced(
        self,
        anderson: Anderson,
        row: Vector,
        residual: Vector,
        image: Vector,
        count: int,
        *,
        mean: Vector | None = None,
    ) -> Window:
        """With one more round: its products with those that `kept` says, and with itself as the last."""
        images = (*self.images[-anderson.memory :], as_vector(image))
        gram = self._bordered(row)
        norm = float(np.sqrt(max(row[-1], 0.0)))
        window = replace(
            self,
            pairs=self.pairs + 1,
            residuals=(*self.kept(anderson.memory), as_vector(residual)),
            images=images,
            means=() if mean is None else (*self.means[-anderson.memory :], mean),
            gram=tuple(float(each) for each in gram.ravel()),
            weights=(),
            guard=self.guard.met(norm),
            count=count,
        )
        if window.pairs <= anderson.memory + 1:
            return window
        return window._combining(anderson, gram, norm)

    def _combining(self, anderson: Anderson, gram: Vector, norm: float) -> Window:
        accepted, guard = True, self.guard
        if anderson.safeguard:
            accepted, guard = self.guard.judge(norm, patience=anderson.patience)
        weights = tuple(float(each) for each in anderson.weights(gram)) if accepted else ()
        return replace(self, weights=weights, guard=guard)

    def _bordered(self, row: Vector) -> Vector:
        """The Gram matrix without its oldest round, where that goes, and with a new one."""
        size, kept = len(self.residuals), len(row) - 1
        gram = np.zeros((kept + 1, kept + 1))
        if kept:
            gram[:kept, :kept] = np.reshape(self.gram, (size, size))[size - kept :, size - kept :]
        gram[kept, :] = gram[:, kept] = row
        return gram

    def lengths(self, least: float) -> Vector:
        """Of all clients' residuals together, in each of the kept rounds; but at least `least`."""
        size = len(self.residuals)
        squares = np.array(self.gram[:: size + 1] if size else ()) * self.count
        return np.asarray(np.sqrt(np.maximum(squares, least**2)), np.float64)

    def units(self, memory: int, least: float) -> Vector:
        """Of the next round's rows: those of the kept rounds, in their places, and its own."""
        found = np.full(memory + 1, self.unit)
        kept = self.lengths(least)[-memory:]
        found[memory - len(kept) : memory] = kept
        return as_vector(np.minimum(found, LARGEST))

    def within(self, reach: float) -> Window:
        """Without its combination, if that would lead further than `reach` from the last image.

        Where clients are clipped their residuals are all of one length, whether they are near or far. Weights
        from these mean nothing, and no residual that grows would tell a safeguard.
        """
        if not self.weights or np.linalg.norm(self.point() - self.images[-1]) <= reach:
            return self
        return replace(self, weights=())

    def point(self) -> Vector:
        """Where the iteration goes on, in the mean: from the combination, or from the last image."""
        return as_vector(combined(self.weights or (1.0,), self.images))
