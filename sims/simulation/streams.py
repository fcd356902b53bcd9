"""Randomness by purpose: what is drawn for one thing changes nothing that is drawn for another."""

from __future__ import annotations

import zlib

import numpy as np

from sims.scenario.settings import insecure_seed

__all__ = ["insecure_seed", "stream"]


def stream(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """The generator of that purpose, under that seed; of that round, or whatever `more` counts."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])
