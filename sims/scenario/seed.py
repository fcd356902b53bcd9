"""What follows from the seed of a scenario where keys, rounding and noise do (`insecure_seed`)."""

from __future__ import annotations

import hashlib

from secagg.hashing import digest
from secagg.keys import Identity


def insecure_seed(seed: int) -> bytes:
    """What makes rounding and keys repeatable, and everything computable by whoever reads this line."""
    return hashlib.sha256(f"secagg simulation {seed}".encode()).digest()


def insecure_server(seed: int) -> Identity:
    """Who signs the ledger of such a run; anybody can."""
    return Identity.from_secret(digest("insecure identity of a server", insecure_seed(seed)))
