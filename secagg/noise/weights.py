"""How likely the values of a Gaussian on the integers are, in whole numbers: no float takes part.

Numbers between 0 and 1 are held as multiples of 2^-320. The value k has weight exp(-k^2 / (2 variance)), and

    weight(k + 1) = weight(k) ratio(k)        ratio(0) = exp(-1 / (2 variance))
    ratio(k + 1)  = ratio(k) exp(-1 / variance)

Errors do not grow beyond their sum, because all factors are at most one. With every product cut to 320 bits,
ratio(k) is off by at most 3 (k + 1) units of 2^-320 and weight(k) by 4 (k + 1)^2; for k below 2^15, a sum of
weights is off by less than 2^48 units. Weights below 2^-192 are left out; the ones beyond them add up to less
than 2^-177, as long as the variance is at most 2^20. So a probability is off by less than 2^-175.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, takewhile
from typing import Final

UNIFORM_BITS: Final = 128  # of the uniform number that chooses a value
LARGEST_VARIANCE: Final = 1 << 20  # the errors above hold up to here

PRECISION: Final = 320
_GUARD: Final = 64
_ONE: Final = 1 << PRECISION
_NEGLIGIBLE: Final = 1 << (PRECISION - 192)


def exp_minus(x: Fraction) -> int:
    """2^320 exp(-x) for x from 0 on, off by less than 2."""
    if x >= PRECISION:
        return 0
    # Taylor's series converges fast near zero, and squaring leads back. A squaring doubles the error at most,
    # and there are up to 17 of them: 64 further bits are plenty.
    bits, squarings = PRECISION + _GUARD, int(x).bit_length() + 8
    near = (x.numerator << bits) // (x.denominator << squarings)
    power = _series(near, bits)
    for _ in range(squarings):
        power = power * power >> bits
    return power >> _GUARD


def _series(x: int, bits: int) -> int:
    """exp(-x) for x below 2^-8, both as multiples of 2^-bits."""
    total = term = 1 << bits
    order = 0
    while term:
        order += 1
        term = (term * x >> bits) // order
        total += term if order % 2 == 0 else -term
    return total


def tails(variance: Fraction, *, both_sides: bool) -> list[int]:
    """2^128 P[X > k], rounded, for k = 0, 1, ... until it is zero.

    X takes all whole numbers, or with `both_sides` false those from 0 on. A tail is off by at most half and
    less than 2^-40 more.
    """
    weights = _weights(variance)
    beyond = list(accumulate(reversed(weights[1:]), initial=0))
    beyond.reverse()  # now beyond[k] is the weight of everything above k
    total = weights[0] + beyond[0] * (2 if both_sides else 1)
    rounded = (((weight << UNIFORM_BITS + 1) + total) // (2 * total) for weight in beyond)
    return list(takewhile(bool, rounded))


def _weights(variance: Fraction) -> list[int]:
    weights, weight = [], _ONE
    ratio, step = exp_minus(1 / (2 * variance)), exp_minus(1 / variance)
    while weight > _NEGLIGIBLE:
        weights.append(weight)
        weight = weight * ratio >> PRECISION
        ratio = ratio * step >> PRECISION
    return weights
