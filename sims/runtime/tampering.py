"""Clients that put residues of their own choice into a sum: after encoding, before masking.

They know of a sum what every client knows. The hidden count stays as it is: a client that changes it stops
the sum, as it could by leaving, and moves no total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg import ring
from secagg.encoding import Encoding
from secagg.errors import ParameterError
from secagg.hooks import ClientHooks, ServerHooks, Transform
from secagg.question import Question
from secagg.ring import Residues
from secagg.seeded import insecure_client_hooks, insecure_server_hooks
from secagg.spec import L2, Count, LInf, Part


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


def tampering_transform(tamper: Tamper) -> Transform:
    """Return the hook for a machine that keeps to the protocol in everything but what it sums."""

    def transform(question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        return tampered(tamper, question.query.kind, question.encoding, residues)

    return transform


def client_hooks(member: int, *, seed: bytes | None, number: int, tamper: Tamper | None) -> ClientHooks:
    """Return the hooks of a client in session `number`; with a seed it rounds alike in every session."""
    hooks = ClientHooks()
    if seed is not None:
        hooks = insecure_client_hooks(_of_session(seed, number), member, rounding=seed)
    return hooks if tamper is None else replace(hooks, transform=tampering_transform(tamper))


def server_hooks(*, seed: bytes | None, number: int) -> ServerHooks:
    """Return the hooks of the server in session `number`."""
    return ServerHooks() if seed is None else insecure_server_hooks(_of_session(seed, number))


def _of_session(seed: bytes, number: int) -> bytes:
    return seed + number.to_bytes(8, "big")
