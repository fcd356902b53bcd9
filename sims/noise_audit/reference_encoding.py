"""The encoding of a noisy part, computed again from docs/protocol.md (5.2 and 5.6), for comparison.

Nothing here calls the code that is tested: clip, rotation, scale and bound are written anew in numpy, as
plainly as possible. So a mistake in the code of clients or server shows as a difference.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg.sum_spec import L2, Count, LInf, Part

Real = NDArray[np.float64]


def clipped(part: Part, values: NDArray[Any]) -> Real:
    """Return what a client's vector counts as: within the bound of the part, and before any rounding."""
    real = np.asarray(values, np.float64)
    if isinstance(part.bound, LInf):
        return np.minimum(np.maximum(real, -part.bound.limit), part.bound.limit)
    if isinstance(part.bound, L2):
        largest = float(np.abs(real).max())
        if largest == 0.0:
            return real
        norm = math.sqrt(float(np.square(real / largest).sum())) * largest
        return real * (part.bound.limit / norm) if norm > part.bound.limit else real
    return real


def grid_vector(part: Part, values: NDArray[Any], rotation: bytes, number: int) -> Real:
    """Return where on the grid a client's vector lies before it is rounded: clipped, rotated and scaled.
    `number` is the index of the part in its sum, and `rotation` the public seed."""
    return on_grid(part, clipped(part, values), rotation, number)


def on_grid(part: Part, vector: Real, rotation: bytes, number: int) -> Real:
    """Return where on the grid a vector lies that is not clipped: rotated and scaled."""
    assert part.noise is not None
    if part.is_rotated:
        vector = np.pad(vector, (0, part.width - part.size)) * signs(rotation, number, part.width)
        vector = hadamard(vector) / math.sqrt(part.width)
    return vector * part.noise.scale


def real_vector(part: Part, points: Real, rotation: bytes, number: int) -> Real:
    """Return the vector whose `grid_vector` is `points`, without the padding. The inverse of a rotation."""
    assert part.noise is not None
    vector = points / part.noise.scale
    if part.is_rotated:
        vector = hadamard(vector) / math.sqrt(part.width) * signs(rotation, number, part.width)
    return np.asarray(vector[: part.size])


def signs(rotation: bytes, number: int, width: int) -> Real:
    """Return the random signs of the rotation of one part: bits of an AES-128-CTR key stream."""
    state = hashlib.sha256()
    for field in (b"secagg/1 rotation", rotation, number.to_bytes(4, "big")):
        state.update(len(field).to_bytes(8, "big") + field)
    seed = state.digest()
    cipher = Cipher(algorithms.AES128(seed[:16]), modes.CTR(seed[16:])).encryptor()
    stream = np.frombuffer(cipher.update(bytes(-(-width // 8))), np.uint8)
    bits = np.unpackbits(stream, bitorder="little")[:width]
    return np.where(bits, -1.0, 1.0)


def hadamard(vector: Real) -> Real:
    """Return the Walsh-Hadamard transform, without a factor."""
    half = 1
    while half < len(vector):
        pairs = vector.reshape(-1, 2, half)
        vector = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return vector


def most_norm2(part: Part) -> int:
    """Return the largest squared norm of one client's rounded vector, on which the privacy cost is based."""
    assert part.noise is not None
    scale, bound = Fraction(part.noise.scale), part.bound
    if isinstance(bound, Count):
        most = part.size * bound.limit if bound.total is None else min(bound.total, part.size * bound.limit)
        full, rest = divmod(most, bound.limit)
        return int((full * bound.limit**2 + rest**2) * scale**2)
    assert isinstance(bound, (L2, LInf))
    limit, width = Fraction(bound.limit) * scale, part.width
    root = Fraction(math.isqrt(width << 128), 1 << 64)
    norm = limit if isinstance(bound, L2) else _root(limit**2 * width)
    most_norm = math.floor(min(norm**2 + Fraction(width, 4) + norm + root / 2, (norm + root) ** 2))
    return most_norm if isinstance(bound, L2) else min(most_norm, width * math.ceil(limit) ** 2)


def _root(value: Fraction) -> Fraction:
    return Fraction(math.isqrt(int(value * (1 << 128))), 1 << 64)
