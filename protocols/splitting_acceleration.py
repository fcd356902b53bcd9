"""Anderson acceleration of splittings: the Gram matrix by clients' rows, and the server's window of rounds.

With r_i = u_i - T u_i = gamma (a_i - beta mean(z)) and a_i = u_i - (1 - beta) z_i, a client would need the
mean of this round's z for its residual. It has those of the rounds before, and takes for this one what all
clients and the server take, c: the last one, or the combination of the last ones by the same weights as u_i.
With b_i = gamma (a_i - beta c) it sends inner products of b_i with its residuals of earlier rounds, which it
knows, and with itself. All that is missing are products of d = mean(z) - c with means over clients, and these
the server knows:

    mean <r, r_s> = mean <b, r_s> - gamma beta <d, mean r_s>
    mean <r, r>   = mean |b|^2 - gamma^2 (2 beta <d, mean(u) - mean(z)> + beta^2 |d|^2)

Entries are divided by public units, one for each round: the root of its entry on the Gram matrix's diagonal,
summed over clients, and for the new round that of the last. So a client's own residuals of earlier rounds are
within their units, however fast residuals fall, and every entry has its bits where they matter: more than a
common unit, the trace, would leave to the smallest. In the first round of a window, of which only the scale
is used, the unit is a bound.

A client that has no such row, because it was not in all rounds of the window or because its entries are too
large for the unit, says so: no square is negative, but its entry on the diagonal is, by more than all others
can make good. The server then forgets the window.

An honest server's units and weights follow from totals. Those of a malicious one could leave a single client
with a row of its own, or find out by bisection how long rows are, or take all u_i but one's far away: so the
sum is refused where the server may be malicious.

The server's side is a window of the last rounds, in means and inner products. Where u is common, residuals
and images of the iteration are the server's own. Where every client has a u_i, the iteration is that of all
of them together. The server knows the means of their u_i, z_i and residuals, and the mean inner products of
their residuals, the Gram matrix, but no single one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from protocols.anderson import Anderson, AndersonSafeguard, combined
from protocols.queries import LARGEST
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import LInf, Part

GRAM: Final = "gram"
_BITS: Final = 64
_RELATIVE_BITS: Final = 40
_LARGEST: Final = (
    8.0  # in squares of the unit: how much one client's may exceed all clients' of the round before
)


@dataclass(frozen=True, kw_only=True)
class GramRow:
    """Rows of `memory` + 1 entries, of at most `clients` clients."""

    memory: int
    clients: int

    def __post_init__(self) -> None:
        left = _BITS - 1 - np.log2(self.clients) - np.log2(self.signal)
        if left < _RELATIVE_BITS:
            raise ParameterError(
                f"with {self.clients} clients in a sum, inner products have less than {_RELATIVE_BITS} bits: "
                "set memory to 0, or have fewer clients",
                parameter="memory",
            )

    @property
    def signal(self) -> float:
        """What a client without a row subtracts from the diagonal: more than all entries together."""
        return (self.clients + 1) * _LARGEST

    def part(self) -> Part:
        return Part(name=GRAM, size=self.memory + 1, bits=_BITS, bound=LInf(self.signal))

    def of(self, centred: Vector, residuals: Sequence[Vector], units: Vector, share: float) -> Vector | None:
        """Return a client's row: b_i, `centred`, with its last residuals, oldest first, and with itself.

        None if an entry is too large. `units` are those of all places of the row, and `share` is the weight
        of the client.
        """
        row = np.zeros(self.memory + 1)
        with np.errstate(all="ignore"):
            scaled = centred / units[-1]
            row[-1] = share * float(scaled @ scaled)
            for place, residual in enumerate(reversed(residuals), start=2):
                row[-place] = share * float(scaled @ (residual / units[-place]))
        return row if bool(np.all(np.abs(row) <= _LARGEST)) else None

    def none(self) -> Vector:
        """Return what a client without a row sends."""
        row = np.zeros(self.memory + 1)
        row[-1] = -self.signal
        return row


def completed(
    entries: Vector, past: Sequence[Vector], change: Vector, apart: Vector, *, beta: float, gamma: float
) -> Vector:
    """Return the new row of the mean Gram matrix; `past` are the mean residuals, oldest first.

    `entries`  the clients' mean row, in full units.
    `change`   mean(z) - c.
    `apart`    mean(u) - mean(z).
    """
    row = np.empty(len(past) + 1)
    for place, residual in enumerate(reversed(past), start=2):
        row[-place] = entries[-place] - gamma * beta * float(change @ residual)
    cross = 2 * beta * float(change @ apart) + beta**2 * float(change @ change)
    row[-1] = entries[-1] - gamma**2 * cross
    return row


# Whether the server knows the mean of all u_i: yes; not since the cohort changed; not yet, but the cohort is
# what it was, and the mean is asked for next.
KNOWN: Final = "known"
LOST: Final = "lost"
ASKED: Final = "asked"


@dataclass(frozen=True)
class AndersonWindow:
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
    guard: AndersonSafeguard = field(default_factory=AndersonSafeguard)
    count: int = 0
    mean: str = KNOWN
    unit: float = 0.0

    def restarted(self, count: int, *, unit: float = 0.0, mean: str = KNOWN) -> AndersonWindow:
        """Return an empty window for a cohort of that many. The state of the safeguard is kept."""
        return AndersonWindow(guard=self.guard, count=count, mean=mean, unit=unit)

    def kept(self, memory: int) -> tuple[Vector, ...]:
        """Return the mean residuals of the rounds that stay when another one is added, oldest first."""
        return self.residuals[-memory:]

    def centre(self, mean: Vector) -> Vector:
        """Return c, the centre of Gram rows: the last means, combined as the last images are."""
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
    ) -> AndersonWindow:
        """Return the window with one more round: its products with those of `kept`, then with itself."""
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

    def _combining(self, anderson: Anderson, gram: Vector, norm: float) -> AndersonWindow:
        accepted, guard = True, self.guard
        if anderson.safeguard:
            accepted, guard = self.guard.judge(norm, patience=anderson.patience)
        weights = tuple(float(each) for each in anderson.weights(gram)) if accepted else ()
        return replace(self, weights=weights, guard=guard)

    def _bordered(self, row: Vector) -> Vector:
        """Return the Gram matrix with a new round, and without the oldest if the window is full."""
        size, kept = len(self.residuals), len(row) - 1
        gram = np.zeros((kept + 1, kept + 1))
        if kept:
            gram[:kept, :kept] = np.reshape(self.gram, (size, size))[size - kept :, size - kept :]
        gram[kept, :] = gram[:, kept] = row
        return gram

    def lengths(self, least: float) -> Vector:
        """Return the length of all clients' residuals together in each kept round, at least `least`."""
        size = len(self.residuals)
        squares = np.array(self.gram[:: size + 1] if size else ()) * self.count
        return np.asarray(np.sqrt(np.maximum(squares, least**2)), np.float64)

    def units(self, memory: int, least: float) -> Vector:
        """Return the units of the next round's rows: those of the kept rounds, then its own."""
        found = np.full(memory + 1, self.unit)
        kept = self.lengths(least)[-memory:]
        found[memory - len(kept) : memory] = kept
        return as_vector(np.minimum(found, LARGEST))

    def within(self, reach: float) -> AndersonWindow:
        """Return the window without its combination if that leads further than `reach` from the last image.

        Clipped residuals all have the same length, near or far. Weights from them are meaningless, and a
        safeguard would not see a residual grow.
        """
        if not self.weights or np.linalg.norm(self.point() - self.images[-1]) <= reach:
            return self
        return replace(self, weights=())

    def point(self) -> Vector:
        """Return where the iteration continues, in the mean: at the combination, or at the last image."""
        return as_vector(combined(self.weights or (1.0,), self.images))
