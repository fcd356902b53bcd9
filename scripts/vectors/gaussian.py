"""Vectors of the discrete Gaussian: from a seed to samples, at variances of every method."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.insecure_seeds import SeededRandom
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import discrete_gaussian

SIZE: Final = 100_000
_SHOWN: Final = 64
_VARIANCES: Final = ("1/4", "1/2", "2", "7/3", "4", "100", "10000", "1000000", "169000000", "1000000000000")


class Counted:
    """A key stream that counts its bytes."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)
        self.bytes = 0

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        self._stream.fill(buffer)
        self.bytes += len(buffer)


def gaussian() -> dict[str, Any]:
    """The whole file."""
    return {
        "about": "Seeds and their samples of the discrete Gaussian; see README.md.",
        "size": SIZE,
        "laws": [_law(Fraction(variance)) for variance in _VARIANCES],
    }


def _law(variance: Fraction) -> dict[str, Any]:
    seed = SeededRandom(b"gaussian", str(variance).encode())(32)
    stream = Counted(seed)
    samples = discrete_gaussian(variance).sample(stream, SIZE)
    return {
        "variance": str(variance),
        "seed": seed.hex(),
        "first": samples[:_SHOWN].reshape(-1, 8).tolist(),
        "sha256": sha256(samples.astype("<i8").tobytes()).hexdigest(),
        "stream_bytes": stream.bytes,
    }
