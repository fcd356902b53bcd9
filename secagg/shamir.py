"""Shamir's secret sharing of 32-byte strings over the prime field of 2^256 + 297.

A secret is the constant of a random polynomial of degree `threshold - 1`; holder `x` (1, 2, ...) gets its
value there. Any `threshold` values determine the secret, fewer say nothing about it. The prime is the
smallest above 2^256, so every 32-byte string is a field element.

Reconstruction meets hostile values. `interpolate` is fast and believes them; `correct_errors` is the
Reed-Solomon decoder (Gao 2003) that finds the polynomial on which all but (m - threshold) / 2 of m lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

PRIME: Final = (1 << 256) + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_DRAW_BYTES: Final = 48


def deal(secret: bytes, *, threshold: int, holders: int, random: Callable[[int], bytes]) -> list[int]:
    """The values at 1..`holders` of a fresh polynomial through `secret`."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= holders:
        raise ValueError("a secret has 32 bytes, and 1 <= threshold <= holders")
    coefficients = _field_elements(threshold - 1, random)
    coefficients.append(int.from_bytes(secret, "big"))
    return [_evaluate(coefficients, x) for x in range(1, holders + 1)]


def _field_elements(count: int, random: Callable[[int], bytes]) -> list[int]:
    """Uniform below the prime up to a bias of 2^-127: 48 bytes each, reduced."""
    pool = random(_DRAW_BYTES * count)
    starts = range(0, len(pool), _DRAW_BYTES)
    return [int.from_bytes(pool[start : start + _DRAW_BYTES], "big") % PRIME for start in starts]


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    # The point is small, so the value grows by a few bits a step: reducing once at the end is faster.
    value = 0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value % PRIME


def share_to_bytes(share: int) -> bytes:
    return share.to_bytes(SHARE_BYTES, "big")


def share_from_bytes(data: bytes) -> int | None:
    """The share, or None where `data` is not the encoding of a field element."""
    share = int.from_bytes(data, "big")
    return share if share < PRIME and len(data) == SHARE_BYTES else None


def all_shares(data: bytes) -> bool:
    """Whether `data` is a row of shares, each a field element."""
    starts = range(0, len(data), SHARE_BYTES)
    return all(share_from_bytes(data[start : start + SHARE_BYTES]) is not None for start in starts)


def lagrange_weights(points: Sequence[int]) -> list[int]:
    """Weights w with f(0) = sum of w[i] * f(points[i]); computed once per set of holders."""
    weights = []
    for i, x in enumerate(points):
        numerator = denominator = 1
        for j, other in enumerate(points):
            if i != j:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def interpolate(weights: Sequence[int], shares: Sequence[int]) -> bytes | None:
    """The secret under `lagrange_weights`, or None where it is no 32-byte string."""
    total = sum(weight * share for weight, share in zip(weights, shares, strict=True))
    return _secret(total % PRIME)


def _secret(value: int) -> bytes | None:
    return value.to_bytes(SECRET_BYTES, "big") if value < 1 << 256 else None


def correct_errors(shares: Mapping[int, int], threshold: int) -> tuple[bytes, set[int]] | None:
    """(secret, holders whose share is wrong), or None where too many are wrong to tell."""
    points = list(shares)
    vanishing = [1]
    for x in points:
        vanishing = _multiply(vanishing, [-x % PRIME, 1])
    interpolant = _newton(points, [shares[x] for x in points])
    quotient = _gao(vanishing, interpolant, (len(points) + threshold) // 2)
    if quotient is None or len(quotient) > threshold:
        return None
    secret = _secret(quotient[0] if quotient else 0)
    wrong = {x for x in points if _evaluate(quotient[::-1], x) != shares[x]}
    return None if secret is None else (secret, wrong)


def off_polynomial(agreed: Mapping[int, int], shares: Mapping[int, int]) -> set[int]:
    """The holders in `shares` that are not on the polynomial through `agreed`."""
    polynomial = _newton(list(agreed), list(agreed.values()))
    return {x for x, value in shares.items() if _evaluate(polynomial[::-1], x) != value}


# Polynomials below are lists of coefficients, the constant first, without trailing zeros.


def _gao(vanishing: list[int], interpolant: list[int], stop: int) -> list[int] | None:
    """Run Euclid until the remainder has at most `stop` coefficients; the message is remainder / cofactor."""
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
    """The polynomial through all (points, values), by divided differences."""
    table = list(values)
    for level in range(1, len(points)):
        for i in range(len(points) - 1, level - 1, -1):
            run = points[i] - points[i - level]
            table[i] = (table[i] - table[i - 1]) * pow(run, -1, PRIME) % PRIME
    result: list[int] = []
    for x, difference in zip(reversed(points), reversed(table), strict=True):
        result = _subtract(_multiply(result, [-x % PRIME, 1]), [-difference % PRIME])
    return result


def _trim(polynomial: list[int]) -> list[int]:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial


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
    """(quotient, remainder) of polynomials; `b` is not zero."""
    remainder, inverse = list(a), pow(b[-1], -1, PRIME)
    quotient = [0] * max(len(a) - len(b) + 1, 0)
    for shift in range(len(quotient) - 1, -1, -1):
        factor = remainder[shift + len(b) - 1] * inverse % PRIME
        quotient[shift] = factor
        for i, value in enumerate(b):
            remainder[shift + i] = (remainder[shift + i] - factor * value) % PRIME
    return _trim(quotient), _trim(remainder)
