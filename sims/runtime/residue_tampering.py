"""Simulates attackers that replace their encoded values, integers modulo 2^bits ("residues"), before masking.

An attacker is given the kind of the sum, its own residues, and the public limits of each part (`Field`). It
cannot change its hidden count, the 1 that each client adds so that remaining masks are detected: a wrong
count only makes the sum fail, which an attacker can also achieve by dropping out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from secagg import residue_packing
from secagg.errors import ParameterError
from secagg.input_encoding import Encoding
from secagg.machine_hooks import Transform
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Count, LInf, Part, Residue


@dataclass(frozen=True)
class Field:
    """Limits, in rounding steps, of one part (named vector) of a sum. A value v < 0 is residue 2^bits + v."""

    name: str
    bits: int
    most: int  # largest absolute value of an honest element, in steps of the rounding grid
    norm: int | None = None  # largest Euclidean norm of an honest vector; None if there is no such bound
    total: int | None = None  # largest sum of the elements; None if there is no such bound


# (kind of the sum, the attacker's own residues of every part, the parts) -> the residues to send instead.
Tamper: TypeAlias = Callable[
    [str, tuple[Residues, ...], tuple[Field, ...]], Sequence[NDArray[np.unsignedinteger[Any]]]
]


def tampered(
    tamper: Tamper, kind: str, encoding: Encoding, residues: Sequence[Residues]
) -> tuple[Residues, ...]:
    """Return the residues that an attacker sends instead of its own `residues`: one array per part, and the
    hidden count, which is not changed. Raise `ParameterError` if `tamper` changes the shape of an array."""
    *own, count = residues
    known = tuple(_field(encoding, part) for part in encoding.spec.parts)
    changed = tuple(tamper(kind, tuple(own), known))
    if [np.shape(each) for each in changed] != [each.shape for each in own]:
        raise ParameterError("tampering must return as many residues of every part as it was given")
    return (*(_fitting(each, field.bits) for each, field in zip(changed, known, strict=True)), count)


def _fitting(values: NDArray[Any], bits: int) -> Residues:
    """Return a copy of the values modulo 2^bits. It is a copy because masks are added in place later."""
    residues: Residues = np.array(values).astype(residue_packing.dtype_for(bits))
    residue_packing.reduce(residues, bits)
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
        case Residue():
            return Field(part.name, part.bits, (1 << part.bits) - 1)
        case _:
            assert_never(part.bound)


def _grid_points(encoding: Encoding, part: Part, limit: float) -> int:
    """Return `limit`, the bound of a part's values, as a number of steps of the rounding grid."""
    return encoding.levels(part) if part.noise is None else int(limit * part.noise.scale)


def tampering_transform(tamper: Tamper) -> Transform:
    """Return a hook that makes a `ClientMachine` send the residues that `tamper` returns."""

    def transform(question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        return tampered(tamper, question.query.kind, question.encoding, residues)

    return transform
