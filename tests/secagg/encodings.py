"""Encodings of a single part "x" for tests, and what becomes of its values, in Python's own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.input_encoding import Encoding
from secagg.mask_keystream import KeyStream
from secagg.residue_packing import Residues
from secagg.sum_spec import Bound, Part, SumSpec, Total

# A standard deviation of 1/100: other noise than zero has a chance below exp(-4900).
NO_NOISE = Fraction(1, 10_000)


def stream(number: int = 0) -> KeyStream:
    return KeyStream(number.to_bytes(32, "big"))


def encoding(bound: Bound, *, size: int = 3, bits: int = 32, cohort: int = 4) -> Encoding:
    part = Part(name="x", size=size, bits=bits, bound=bound)
    return Encoding(SumSpec(parts=(part,)), cohort=cohort)


def noisy(
    bound: Bound,
    *,
    size: int = 3,
    bits: int = 32,
    cohort: int = 4,
    scale: float = 1.0,
    variance: Fraction = NO_NOISE,
    seed: bytes = bytes(32),
) -> Encoding:
    """With noise that may be too little to notice, so that all else is seen."""
    part = Part(name="x", size=size, bits=bits, bound=bound, noise=Noise(scale=scale, variance=variance))
    promise = NoiseAssumptions(clients=cohort, dropouts=0, colluders=0)
    return Encoding(SumSpec(parts=(part,), promise=promise), cohort=cohort, rotation=seed)


def total_of(code: Encoding, vectors: Sequence[Any]) -> Total:
    """Encode every vector, add the residues as a server would, and decode."""
    accumulator = code.zeros()
    for number, vector in enumerate(vectors):
        for total, part in zip(accumulator, code.encode({"x": vector}, stream(number)).residues, strict=True):
            total += part
    return code.decode(accumulator, contributors=len(vectors), invited=code.cohort)


def signed(residues: Residues, bits: int) -> list[int]:
    """The integers nearest to zero that the residues stand for."""
    half = 1 << (bits - 1)
    return [(int(value) + half) % (1 << bits) - half for value in residues]


def encode_one(code: Encoding, vector: Any, number: int = 0) -> list[int]:
    return signed(code.encode({"x": vector}, stream(number)).residues[0], code.spec.parts[0].bits)
