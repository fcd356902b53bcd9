"""Randomness by purpose: what is drawn for one thing changes nothing that is drawn for another."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np


def stream(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """The generator of that purpose, under that seed; of that round, or whatever `more` counts."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])


def insecure_seed(seed: int) -> bytes:
    """What makes rounding and keys repeatable, and everything computable by whoever reads this line."""
    return hashlib.sha256(f"secagg simulation {seed}".encode()).digest()
