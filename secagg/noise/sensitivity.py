"""How far one client can move a sum, after rounding, in grid points.

A real vector of norm C grid points is rounded at random until its norm is at most B, with

    B^2 = min { C^2 + d/4 + C + sqrt(d)/2,  (C + sqrt(d))^2 }

of which the first is equation (2) of "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation" at beta = exp(-1/2): at least 39 % of all roundings stay below it, whatever the vector.
What is enforced is a whole number, and so is the norm that is compared with it: no float decides.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, isqrt
from typing import Final

_FINE: Final = 1 << 64


def rounded_norm2(norm: Fraction, size: int) -> int:
    """The square of the largest norm of a rounded vector; before rounding, it is at most `norm`."""
    return floor(min(_at_random(norm, size), (norm + _root(Fraction(size))) ** 2))


def rounded_norm2_of_elements(limit: Fraction, size: int) -> int:
    """The same for a vector whose elements are at most `limit`, each for itself."""
    return min(rounded_norm2(_root(size * limit**2), size), size * ceil(limit) ** 2)


def counts_norm2(limit: int, total: int | None, size: int) -> int:
    """For whole numbers from 0 to `limit` that add up to at most `total`: as many as possible are large."""
    most = size * limit if total is None else min(total, size * limit)
    full, rest = divmod(most, limit)
    return full * limit**2 + rest**2


def _at_random(norm: Fraction, size: int) -> Fraction:
    return norm**2 + Fraction(size, 4) + norm + _root(Fraction(size)) / 2


def _root(value: Fraction) -> Fraction:
    """The square root, from below; both sides compute the same one."""
    return Fraction(isqrt(value.numerator * value.denominator * _FINE**2), value.denominator * _FINE)
