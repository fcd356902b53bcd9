"""Shamir's secret sharing of 32-byte strings over the prime field of 2^256 + 297.

A secret is the constant of a random polynomial of degree `threshold - 1`. Holder `x` (1, 2, ...) gets the
value of the polynomial at `x`. Any `threshold` values determine the secret, and fewer reveal nothing about
it. The prime is the smallest above 2^256, so every 32-byte string is a field element.

Shares may be wrong on purpose. `interpolate` is fast, but does not notice this. `correct_errors` is a
Reed-Solomon decoder (Gao 2003): of m shares, up to (m - threshold) / 2 may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
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


def correct_errors(shares: Mapping[int, int], threshold: int) -> tuple[bytes, set[int]] | None:
    """Return the secret, and the holders whose share is wrong; None if too many are wrong. `shares` maps
    holders to shares. Of m shares, up to (m - `threshold`) / 2 may be wrong."""
    points = list(shares)
    vanishing = [1]
    for x in points:
        vanishing = _extend(vanishing, x, 0)
    interpolant = _newton(points, [shares[x] for x in points])
    quotient = _gao(vanishing, interpolant, (len(points) + threshold) // 2)
    if quotient is None or len(quotient) > threshold:
        return None
    secret = _to_secret(quotient[0] if quotient else 0)
    return None if secret is None else (secret, _holders_off(quotient, shares))


def off_polynomial(agreed: Mapping[int, int], shares: Mapping[int, int]) -> set[int]:
    """Return the holders in `shares` whose share is not on the polynomial through all shares in `agreed`."""
    return _holders_off(_newton(list(agreed), list(agreed.values())), shares)


# Polynomials below are lists of coefficients, the constant first, without trailing zeros.


def _holders_off(polynomial: Sequence[int], shares: Mapping[int, int]) -> set[int]:
    values = _evaluate(polynomial[::-1], shares)
    return {x for x, value in zip(shares, values, strict=True) if value != shares[x]}


def _gao(vanishing: list[int], interpolant: list[int], stop: int) -> list[int] | None:
    """Return the polynomial of degree below the threshold that goes through all but a few shares, or None.
    `vanishing` is zero at all points, and `interpolant` goes through all shares. Euclid's algorithm on these
    two stops at a remainder of at most `stop` coefficients. The result is remainder over cofactor."""
    before, now = vanishing, interpolant
    cofactor_before, cofactor = list[int](), [1]
    while len(now) > stop:
        quotient, remainder = _divide(before, now)
        before, now = now, remainder
        product = _multiply(quotient, cofactor)
        cofactor_before, cofactor = cofactor, _subtract(cofactor_before, product)
    message, rest = _divide(now, cofactor)
    return None if rest else message


def _newton(points: Sequence[int], values: Sequence[int]) -> list[int]:
    """Return the coefficients, constant first, of the polynomial with the given `values` at `points`."""
    table = list(values)
    for level in range(1, len(points)):
        for i in range(len(points) - 1, level - 1, -1):
            run = points[i] - points[i - level]
            table[i] = (table[i] - table[i - 1]) * _inverse(run) % PRIME
    result: list[int] = []
    for x, difference in zip(reversed(points), reversed(table), strict=True):
        result = _extend(result, x, difference)
    return result


@lru_cache(maxsize=1024)
def _inverse(run: int) -> int:
    """Return the inverse of `run`, a difference of points, modulo the prime. Cached, as few values occur."""
    return pow(run, -1, PRIME)


def _trim(polynomial: list[int]) -> list[int]:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial


def _extend(polynomial: Sequence[int], x: int, value: int) -> list[int]:
    """Return `polynomial` (constant first) times (z - x), plus `value`, where z is the variable."""
    pairs = zip([value, *polynomial], [*polynomial, 0], strict=True)
    return _trim([(below - x * here) % PRIME for below, here in pairs])


def _multiply(a: Sequence[int], b: Sequence[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1 if a and b else 0)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return _trim([value % PRIME for value in out])


def _subtract(a: Sequence[int], b: Sequence[int]) -> list[int]:
    size = max(len(a), len(b))
    padded = ([*a, *[0] * (size - len(a))], [*b, *[0] * (size - len(b))])
    return _trim([(x - y) % PRIME for x, y in zip(*padded, strict=True)])


def _divide(a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return quotient and remainder of the polynomials `a` / `b` (constant first); `b` is not zero."""
    remainder, inverse = list(a), pow(b[-1], -1, PRIME)
    quotient = [0] * max(len(a) - len(b) + 1, 0)
    for shift in range(len(quotient) - 1, -1, -1):
        factor = remainder[shift + len(b) - 1] * inverse % PRIME
        quotient[shift] = factor
        for i, value in enumerate(b):
            remainder[shift + i] = (remainder[shift + i] - factor * value) % PRIME
    return _trim(quotient), _trim(remainder)
