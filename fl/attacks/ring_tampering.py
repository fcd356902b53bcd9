"""Attacks inside the ring: clients that put residues of their own choice into a sum.

Such a client does not keep to the protocol: nothing clips what it sends, and as it is masked like all else,
nobody can see it. Where an attack on updates moves a total by what clipping allows, this one moves it by
anything, and no robust algorithm helps. The attacks here are what simulated channels take as tampering:
called with the kind of a sum, a client's honest residues, and what is known of the fields that they are in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Final, Protocol

import numpy as np

from fl.attacks.learner_wrapper import generator
from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.samples import Array


class SumPartBounds(Protocol):
    """One part of a sum, of elements modulo 2^bits. Grid points below zero are counted down from 2^bits.

    `most`   grid points that an element of an honest client may reach.
    `norm`   that its whole vector may have as a Euclidean norm; None if there is no such bound.
    `total`  to which its elements may add up; None if there is no such bound.
    """

    @property
    def name(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def norm(self) -> int | None: ...
    @property
    def total(self) -> int | None: ...


@dataclass(kw_only=True)
class Tampering(ABC):
    """`parts` are the names of those that are changed; None for all."""

    parts: Collection[str] | None = None

    def __call__(
        self, _kind: str, residues: Sequence[Array], fields: Sequence[SumPartBounds], /
    ) -> tuple[Array, ...]:
        """What goes into a sum in place of `residues`, of whichever kind it is."""
        return tuple(
            self.change(own.astype(np.uint64), part) if self.parts is None or part.name in self.parts else own
            for own, part in zip(residues, fields, strict=True)
        )

    @abstractmethod
    def change(self, own: Array, part: SumPartBounds) -> Array:
        """The same number of 64-bit residues, of which the lowest `part.bits` bits count."""


@dataclass(kw_only=True)
class Overflow(Tampering):
    """Uniformly random residues: the total is uniformly random as well, and nothing is left of it."""

    rng: np.random.Generator = field(repr=False)

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return self.rng.integers(0, (1 << part.bits) - 1, own.shape, np.uint64, endpoint=True)


@dataclass(kw_only=True)
class Wrap(Tampering):
    """Half the modulus in place of one's own: a total near zero becomes one near the far end of the ring.

    It is its own inverse, so an even number of clients who do this cancel each other.
    """

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return np.full(own.shape, 1 << (part.bits - 1), np.uint64)


@dataclass(kw_only=True)
class LargestHonest(Tampering):
    """As much as clipping would have let through: what one client can do who keeps to the protocol.

    A vector whose norm is bounded has the same value in every coordinate; counts with a bound on their total
    are as large as they may be, from the first on.
    """

    def change(self, own: Array, part: SumPartBounds) -> Array:
        if part.norm is not None:
            return np.full(own.shape, isqrt(part.norm**2 // len(own)), np.uint64)
        if part.total is None:
            return np.full(own.shape, part.most, np.uint64)
        left = [min(part.most, max(0, part.total - k * part.most)) for k in range(len(own))]
        return np.array(left, np.uint64)


@dataclass(kw_only=True)
class Multiply(Tampering):
    """One's own residues times a whole number, as if so many clients had sent the same."""

    factor: int

    def __post_init__(self) -> None:
        if type(self.factor) is not int:
            raise TrainingError(f"residues are multiplied by a whole number, not {self.factor!r}")

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return own * np.uint64(self.factor % (1 << part.bits))


TAMPERINGS: Final[Mapping[str, Callable[..., Tampering]]] = {
    "overflow": Overflow,
    "wrap": Wrap,
    "largest-honest": LargestHonest,
    "multiply": Multiply,
}


def tampering(name: str, who: Collection[int], seed: int, **parameters: Any) -> dict[int, Tampering]:
    """Everybody in `who` does the same, with randomness of its own. Made anew for every channel."""
    if name not in TAMPERINGS:
        raise unknown_name("tampering", name, TAMPERINGS, parameter="kind")
    if name != "overflow":
        return {client: TAMPERINGS[name](**parameters) for client in who}
    return {client: Overflow(rng=generator(name, seed, client), **parameters) for client in who}
