"""Anderson acceleration of splittings: clients' rows of the Gram matrix, and the server's window of rounds.

In a round, client i sends z_i and maps its point u_i to T u_i = (1 - gamma) u_i + gamma ((1 - beta) z_i +
beta mean(z)). Its residual is r_i = u_i - T u_i = gamma (a_i - beta mean(z)), with a_i = u_i - (1 - beta)
z_i. A client does not know mean(z) of the current round. It uses a vector c instead, which all parties know:
the last mean of z, or the last means, combined with the same weights as u_i. With b_i = gamma (a_i - beta c)
it sends the inner products of b_i with its residuals r_s of earlier rounds s and with b_i itself. The server
adds the missing terms, which are products of d = mean(z) - c with means over clients:

    mean <r, r_s> = mean <b, r_s> - gamma beta <d, mean r_s>
    mean <r, r>   = mean |b|^2 - gamma^2 (2 beta <d, mean(u) - mean(z)> + beta^2 |d|^2)

Entries are divided by public units, one for each round. The unit of a round is the root of its diagonal entry
of the Gram matrix, summed over clients. The new round uses the unit of the last one. So a client's residuals
of earlier rounds are at most as long as their units, even if residuals fall fast, and small entries keep
their precision. The first round of a window has no earlier unit, so its unit is a rough upper limit.

A client may have no row, because it was not in all rounds of the window or because its entries are too large
for the unit. It then sends a negative diagonal entry, larger in size than the sum of all others. True
diagonal entries are squares, so a negative total tells the server to discard the window.

An honest server computes units and weights from totals. A malicious one could choose them so that only one
client has a row, or find the lengths of residuals by bisection, or move all u_i but one far away. So clients
refuse the sum if the server may be malicious.

If u is common to all clients, the server knows residuals and images (the next points T u) itself. Otherwise
it knows the means of the u_i, z_i and residuals, and the mean inner products, but those of no single client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from protocols.anderson import Anderson, AndersonSafeguard, combined
from protocols.query_encoding import LARGEST
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import LInf, Part

GRAM: Final = "gram"
_BITS: Final = 64
_RELATIVE_BITS: Final = 40
_LARGEST: Final = 8.0  # largest entry of one client, in squares of the unit


@dataclass(frozen=True, kw_only=True)
class GramRow:
    """The encoding of rows of a Gram matrix. A client's row has the inner products of its newest residual
    with its last `memory` residuals and with itself. The rows of at most `clients` clients are summed."""

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
        """A client without a Gram row sends minus this as last entry. All true ones together are smaller."""
        return (self.clients + 1) * _LARGEST

    def part(self) -> Part:
        return Part(name=GRAM, size=self.memory + 1, bits=_BITS, bound=LInf(self.signal))

    def of(self, centred: Vector, residuals: Sequence[Vector], units: Vector, share: float) -> Vector | None:
        """Return a client's row of the Gram matrix of its residuals, or None if an entry is too large to
        encode. Entries are the inner products of `centred`, its newest residual, with its earlier
        `residuals`, oldest first, and with itself; zeros in front fill up to `memory` + 1 entries. Each is
        divided by the `units` of both rounds and multiplied by `share`, the client's weight."""
        row = np.zeros(self.memory + 1)
        with np.errstate(all="ignore"):
            scaled = centred / units[-1]
            row[-1] = share * float(scaled @ scaled)
            for place, residual in enumerate(reversed(residuals), start=2):
                row[-place] = share * float(scaled @ (residual / units[-place]))
        return row if bool(np.all(np.abs(row) <= _LARGEST)) else None

    def none(self) -> Vector:
        """Return what a client without a Gram row sends. It makes the server discard its window of rounds."""
        row = np.zeros(self.memory + 1)
        row[-1] = -self.signal
        return row


def completed(
    entries: Vector, past: Sequence[Vector], change: Vector, apart: Vector, *, beta: float, gamma: float
) -> Vector:
    """Return the newest row of the mean Gram matrix of residuals, from the mean of the clients' rows, which
    were computed with a guess of the mean of z (the vectors that clients send).

    `entries`  the mean of the clients' rows, multiplied by the units in which they were sent.
    `past`     the mean residuals of the earlier rounds, oldest first.
    `change`   the mean of z, minus the guess of it.
    `apart`    the mean of the clients' points u, minus the mean of z.
    """
    row = np.empty(len(past) + 1)
    for place, residual in enumerate(reversed(past), start=2):
        row[-place] = entries[-place] - gamma * beta * float(change @ residual)
    cross = 2 * beta * float(change @ apart) + beta**2 * float(change @ change)
    row[-1] = entries[-1] - gamma**2 * cross
    return row


# Whether the server knows the mean of all u_i: KNOWN; LOST, since the cohort changed; ASKED, if the cohort
# has stayed the same since then, and the next query asks for the mean.
KNOWN: Final = "known"
LOST: Final = "lost"
ASKED: Final = "asked"


@dataclass(frozen=True)
class AndersonWindow:
    """The server's data of the last tau + 1 rounds of Anderson acceleration with the same clients, oldest
    first. A round maps each client's point u to T u, its next point; clients send vectors z, computed at u.

    `pairs`      number of rounds since the window began.
    `residuals`  the mean of u - T u in each round.
    `images`     the mean of T u in each round.
    `means`      the mean of z in each round; empty if u is common to all clients.
    `gram`       the mean inner products of the clients' residuals, row after row.
    `weights`    weights with which the next round combines the images; empty for a plain step.
    `guard`      the state of the safeguard, which rejects combinations if residuals do not fall.
    `count`      number of clients in the last sum; 0 before the first.
    `mean`       whether the mean of all u is "known", "lost" as clients changed, or "asked" for next.
    `unit`       estimated root of the sum of clients' squared residuals in the next round; 0 if u is common.
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
        """Return a window without rounds: `guard` stays, and other fields are as given or empty."""
        return AndersonWindow(guard=self.guard, count=count, mean=mean, unit=unit)

    def kept(self, memory: int) -> tuple[Vector, ...]:
        """Return the mean residuals of the last `memory` rounds; `memory` must be above 0."""
        return self.residuals[-memory:]

    def centre(self, mean: Vector) -> Vector:
        """Return a guess of the next mean of z, the vectors that clients send: the last means, combined with
        `weights`, or else `mean`."""
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
        """Return the window with one more round, in which `count` clients had the mean `residual` and
        `image`, and with new weights if there are enough rounds. `row` has the mean inner products of the
        clients' residuals with those of the last `anderson.memory` rounds, then with themselves. `mean` is
        the mean of the vectors z that they sent, or None if u is common."""
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
        """Return the Gram matrix with `row` as last row and column, without old rounds that `row` lacks."""
        size, kept = len(self.residuals), len(row) - 1
        gram = np.zeros((kept + 1, kept + 1))
        if kept:
            gram[:kept, :kept] = np.reshape(self.gram, (size, size))[size - kept :, size - kept :]
        gram[kept, :] = gram[:, kept] = row
        return gram

    def lengths(self, least: float) -> Vector:
        """Return for each round the root of the sum of all clients' squared residuals, at least `least`."""
        size = len(self.residuals)
        squares = np.array(self.gram[:: size + 1] if size else ()) * self.count
        return np.asarray(np.sqrt(np.maximum(squares, least**2)), np.float64)

    def units(self, memory: int, least: float) -> Vector:
        """Return `memory` + 1 divisors for the next Gram row: of the last rounds, then of the new round."""
        found = np.full(memory + 1, self.unit)
        kept = self.lengths(least)[-memory:]
        found[memory - len(kept) : memory] = kept
        return as_vector(np.minimum(found, LARGEST))

    def within(self, reach: float) -> AndersonWindow:
        """Return the window, without its weights if they combine images into a point further than `reach`
        from the last image. Such weights come from clipped residuals, which all have the same length, and are
        meaningless. The safeguard cannot reject them, because it does not see the true residuals grow."""
        if not self.weights or np.linalg.norm(self.point() - self.images[-1]) <= reach:
            return self
        return replace(self, weights=())

    def point(self) -> Vector:
        """Return the next mean of the points u: `images` combined with `weights`, or else the last image."""
        return as_vector(combined(self.weights or (1.0,), self.images))
