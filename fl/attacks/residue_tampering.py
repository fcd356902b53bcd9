"""Attacks on secure sums: clients that add arbitrary residues (integers modulo 2^bits) to a sum.

These clients do not follow the protocol. Their residues are masked, and cannot be checked or clipped.
So a client can change a total by any amount, and robust algorithms do not help; clients that only corrupt
their updates (`updates_and_answers`) are limited by clipping. A simulation calls an attack with the kind of
the sum, a client's honest residues, and the bounds of the sum's parts; the result is sent instead of these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Final, Protocol

import numpy as np

from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.learner_wrapper import generator
from fl.samples import Array


class SumPartBounds(Protocol):
    """Bounds on what an honest client adds to one part (a named vector) of a secure sum, modulo 2^bits.

    `most`   the largest integer that an honest client's element may have.
    `norm`   the largest Euclidean norm of an honest client's integer vector; None if unbounded.
    `total`  the largest sum of an honest client's elements; None if unbounded.
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
    """An attack of a client that changes the residues (integers modulo 2^bits) that it adds to a secure sum.
    `parts` has the names of the parts of the sum to change; None for all parts."""

    parts: Collection[str] | None = None

    def __call__(
        self, _kind: str, residues: Sequence[Array], fields: Sequence[SumPartBounds], /
    ) -> tuple[Array, ...]:
        """Return what is sent instead of `residues`: an array per part. `fields` describes the parts."""
        return tuple(
            self.change(own.astype(np.uint64), part) if self.parts is None or part.name in self.parts else own
            for own, part in zip(residues, fields, strict=True)
        )

    @abstractmethod
    def change(self, own: Array, part: SumPartBounds) -> Array:
        """Return 64-bit integers to send for `part` instead of `own`; they count modulo 2^`part.bits`."""


@dataclass(kw_only=True)
class Overflow(Tampering):
    """Replaces the residues by uniformly random ones, so that the clients' total is uniformly random, too."""

    rng: np.random.Generator = field(repr=False)

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return self.rng.integers(0, (1 << part.bits) - 1, own.shape, np.uint64, endpoint=True)


@dataclass(kw_only=True)
class Wrap(Tampering):
    """Replaces the honest residues by half the modulus, 2^(bits - 1), which moves a total as far as possible.
    If an even number of clients do this, their residues add up to zero."""

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return np.full(own.shape, 1 << (part.bits - 1), np.uint64)


@dataclass(kw_only=True)
class LargestHonest(Tampering):
    """Replaces residues by the largest ones that an honest client could send, which clipping allows.

    If the norm is bounded, all elements get the same value. Otherwise elements get the largest allowed value,
    starting with the first element, until the bound on the total, if there is one, is reached.
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
    """Multiplies the honest residues by the integer `factor`, as if that many clients had sent them."""

    factor: int

    def __post_init__(self) -> None:
        if type(self.factor) is not int:
            raise TrainingError(f"factor must be a whole number, not {self.factor!r}")

    def change(self, own: Array, part: SumPartBounds) -> Array:
        return own * np.uint64(self.factor % (1 << part.bits))


TAMPERINGS: Final[Mapping[str, Callable[..., Tampering]]] = {
    "overflow": Overflow,
    "wrap": Wrap,
    "largest-honest": LargestHonest,
    "multiply": Multiply,
}


def tampering(name: str, who: Collection[int], seed: int, **parameters: Any) -> dict[int, Tampering]:
    """Return an attack called `name` (a key of `TAMPERINGS`) for each client in `who`, by client id. Make new
    ones for each simulation: some have a random state. An unknown name raises `TrainingError`."""
    if name not in TAMPERINGS:
        raise unknown_name("tampering", name, TAMPERINGS, parameter="kind")
    if name != "overflow":
        return {client: TAMPERINGS[name](**parameters) for client in who}
    return {client: Overflow(rng=generator(name, seed, client), **parameters) for client in who}
