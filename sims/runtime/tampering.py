"""Clients that put residues of their own choice into a sum: after encoding, before masking.

What they are told of a sum is what every client knows. The hidden count stays as it is: whoever changes that
stops the sum, as it could by leaving, and moves no total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg import ring
from secagg.bitmap import PositionSet
from secagg.client import ClientMachine
from secagg.encoding import Encoded, Encoding
from secagg.errors import ParameterError
from secagg.masks import KeyStream
from secagg.messages import Query
from secagg.question import Question
from secagg.ring import Residues
from secagg.spec import L2, Count, LInf, Part
from secagg.testing.seeded import InsecureRepeatableClient


@dataclass(frozen=True)
class Field:
    """One part of a sum, of elements modulo 2^bits. Grid points below zero are counted down from 2^bits.

    `most`   grid points that an element of an honest client may reach.
    `norm`   that its whole vector may have as a Euclidean norm; None if there is no such bound.
    `total`  to which its elements may add up; None if there is no such bound.
    """

    name: str
    bits: int
    most: int
    norm: int | None = None
    total: int | None = None


# (kind of the sum, own residues of every part, what is known of the parts): what is sent instead.
Tamper: TypeAlias = Callable[
    [str, tuple[Residues, ...], tuple[Field, ...]], Sequence[NDArray[np.unsignedinteger[Any]]]
]


def tampered(
    tamper: Tamper, kind: str, encoding: Encoding, residues: Sequence[Residues]
) -> tuple[Residues, ...]:
    """A client's residues as it sends them, the hidden count included."""
    *own, count = residues
    known = tuple(_field(encoding, part) for part in encoding.spec.parts)
    changed = tuple(tamper(kind, tuple(own), known))
    if [np.shape(each) for each in changed] != [each.shape for each in own]:
        raise ParameterError("tampering must return as many residues of every part as it was given")
    return (*(_fitting(each, field.bits) for each, field in zip(changed, known, strict=True)), count)


def _fitting(values: NDArray[Any], bits: int) -> Residues:
    """A copy modulo 2^bits: masks are put on in place."""
    residues: Residues = np.array(values).astype(ring.dtype_for(bits))
    ring.reduce(residues, bits)
    return residues


def _field(encoding: Encoding, part: Part) -> Field:
    match part.bound:
        case L2(limit):
            most = _grid_points(encoding, part, limit)
            return Field(part.name, part.bits, most, norm=most)
        case LInf(limit):
            return Field(part.name, part.bits, _grid_points(encoding, part, limit))
        case Count(limit, total):
            scale = int(encoding.scale(part))
            return Field(part.name, part.bits, scale * limit, total=None if total is None else scale * total)
        case _:
            return Field(part.name, part.bits, (1 << part.bits) - 1)


def _grid_points(encoding: Encoding, part: Part, limit: float) -> int:
    """That a real value at its bound comes to."""
    return encoding.levels(part) if part.noise is None else int(limit * part.noise.scale)


# --- real machines ------------------------------------------------------------------------------------


class TamperingClient(ClientMachine):
    """A machine that keeps to the protocol in everything but what it sums."""

    def __init__(self, *, tamper: Tamper, **settings: Any) -> None:
        super().__init__(**settings)
        self._tamper = tamper

    def _make_question(self, query: Query, frame: bytes, roster: PositionSet) -> Question:
        question = super()._make_question(query, frame, roster)
        same: dict[str, Any] = {each.name: getattr(question, each.name) for each in fields(Question)}
        return _TamperedQuestion(**same, tamper=self._tamper)


class InsecureRepeatableTamperingClient(TamperingClient, InsecureRepeatableClient):
    """The same, drawn from a seed."""


@dataclass(frozen=True, eq=False)
class _TamperedQuestion(Question):
    tamper: Tamper

    @cached_property
    def encoding(self) -> Encoding:
        return _TamperedEncoding(super().encoding, self.query.kind, self.tamper)


class _TamperedEncoding(Encoding):
    """Another code only in how values become residues."""

    def __init__(self, honest: Encoding, kind: str, tamper: Tamper) -> None:
        self.__dict__.update(honest.__dict__)  # the same spec, cohort and rotation
        self._kind = kind
        self._tamper = tamper

    def encode(
        self, values: Mapping[str, ArrayLike], stream: KeyStream, *, noise: Sequence[KeyStream] = ()
    ) -> Encoded:
        encoded = super().encode(values, stream, noise=noise)
        return Encoded(tampered(self._tamper, self._kind, self, encoded.residues), encoded.clipped)
