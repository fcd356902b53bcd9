"""Shamir's secret sharing of 32-byte strings over the prime field of 2^256 + 297.

A secret is the constant of a random polynomial of degree `threshold - 1`. Holder `x` (1, 2, ...) gets the
value of the polynomial at `x`. Any `threshold` values determine the secret, and fewer reveal nothing about
it. The prime is the smallest above 2^256, so every 32-byte string is a field element.

Shares may be wrong on purpose. `interpolate` does not notice this: `share_tags` tells wrong shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb, prod
from typing import Final

PRIME: Final = (1 << 256) + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_DRAW_BYTES: Final = 48
_LAZY_STEPS: Final = 64  # steps of Horner's rule between two reductions


def deal(secret: bytes, *, threshold: int, holders: int, random: Callable[[int], bytes]) -> list[int]:
    """Return the shares of a 32-byte `secret`: the values at 1..`holders` of a random polynomial of degree
    `threshold` - 1, whose constant is the secret. Raises `ValueError` for an invalid length or threshold."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= holders:
        raise ValueError("a secret has 32 bytes, and 1 <= threshold <= holders")
    pool = random(_DRAW_BYTES * (threshold - 1))
    # Each random coefficient is made of 48 bytes. It is uniform up to a bias of 2^-127.
    starts = range(0, len(pool), _DRAW_BYTES)
    coefficients = [int.from_bytes(pool[start : start + _DRAW_BYTES], "big") % PRIME for start in starts]
    coefficients.append(int.from_bytes(secret, "big"))
    return _evaluate(coefficients, range(1, holders + 1))


def _evaluate(coefficients: Sequence[int], points: Iterable[int]) -> list[int]:
    """Return a polynomial's values at `points`, modulo the prime. `coefficients` end with the constant."""
    starts = range(0, len(coefficients), _LAZY_STEPS)
    chunks = [coefficients[start : start + _LAZY_STEPS] for start in starts]
    return [_horner(chunks, x) for x in points]


def _horner(chunks: Sequence[Sequence[int]], x: int) -> int:
    # `x` is small, so the value grows by a few bits in each step. To reduce it rarely is faster.
    value = 0
    for chunk in chunks:
        for coefficient in chunk:
            value = value * x + coefficient
        value %= PRIME
    return value


def shares_to_bytes(shares: Iterable[int]) -> bytes:
    """Return `shares` as bytes, one after another: 33 big-endian bytes for each."""
    return b"".join([share.to_bytes(SHARE_BYTES, "big") for share in shares])


def shares_from_bytes(data: bytes) -> list[int] | None:
    """Return the shares that `data` encodes, or None if one is incomplete or not a field element."""
    starts = range(0, len(data), SHARE_BYTES)
    shares = [int.from_bytes(data[start : start + SHARE_BYTES], "big") for start in starts]
    return shares if len(data) % SHARE_BYTES == 0 and max(shares, default=0) < PRIME else None


def lagrange_weights(points: Sequence[int]) -> list[int]:
    """Return weights w with f(0) = sum of w[i] * f(points[i]), modulo the prime, for every polynomial f of
    lower degree than there are points. The points are positive and all different. If no number from 1 to the
    largest point is missing, the weights are binomial coefficients with alternating signs. Each missing
    number m multiplies the weight of point x by (m - x) / m. This is fast if few numbers are missing: the
    factors are small, and all weights have the same denominator."""
    last = max(points)
    missing = set(range(1, last + 1)).difference(points)
    scale = pow(prod(missing), -1, PRIME)
    signed = (-scale, scale)
    return [comb(last, x) * prod([m - x for m in missing]) * signed[x % 2] % PRIME for x in points]


def interpolate(weights: Sequence[int], shares: Sequence[int]) -> bytes | None:
    """Return the secret, the sum of `shares` times their Lagrange weights, or None if it exceeds 32 bytes."""
    total = sum(weight * share for weight, share in zip(weights, shares, strict=True))
    return _to_secret(total % PRIME)


def _to_secret(value: int) -> bytes | None:
    return value.to_bytes(SECRET_BYTES, "big") if value < 1 << 256 else None
