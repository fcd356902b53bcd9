"""Noise: its components, its samples, the rotation and the totals (section 5.6)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from tests.second_implementation.crypto import KeyStream, tagged
from tests.second_implementation.encoding import u32
from tests.second_implementation.specs import Part, Promise, Residues, Spec, Table, clip

WHOLE = 1 << 128
DIGITS = 90


# --- Components


def levels(promise: Promise) -> int:
    """`levels` of the noise assumptions; the noise must be removable, with drop-outs."""
    lost = promise.dropouts
    return (max(lost, math.ceil(Fraction(200 * lost, promise.clients - lost))) - 1).bit_length()


def seeds_of(spec: Spec) -> int:
    """The number of removable components of a spec: its shared seeds per client."""
    promise = spec.promise
    return 1 + levels(promise) if promise and promise.removable and promise.dropouts else 0


def largest_seeds(table: Table) -> int:
    """R of a table (3.4)."""
    return max(seeds_of(spec) for spec in table.values())


def factors(promise: Promise, roster: int) -> list[Fraction]:
    """The variance of each component of a client, as a factor of the variance of the part."""
    honest = roster - promise.dropouts - promise.colluders
    if not (promise.removable and promise.dropouts):
        return [Fraction(1, honest)]
    base, unit = _shares(promise, roster)
    return [base / roster, unit] + [unit * (1 << level) for level in range(levels(promise))]


def _shares(promise: Promise, roster: int) -> tuple[Fraction, Fraction]:
    """`h` and `m` of the noise assumptions and a size of the roster."""
    honest = roster - promise.dropouts - promise.colluders
    base = Fraction(roster - promise.dropouts, honest)
    return base, (Fraction(1, honest) - base / roster) / (1 << levels(promise))


def surplus(spec: Spec, roster: int, survivors: int) -> list[int]:
    """The numbers of the components that are removed from the total."""
    promise = spec.promise
    if promise is None or not seeds_of(spec):
        return []
    base, unit = _shares(promise, roster)
    units = math.ceil((base / survivors - base / roster) / unit)
    if units == 1 << levels(promise):
        return []
    return [1] + [2 + level for level in range(levels(promise)) if not units >> level & 1]


# --- Samples


def _thresholds(tail: Sequence[int], both: bool) -> list[int]:
    """Ascending thresholds of 128 bits from q(0), q(1), ... without the final 0."""
    upper = [WHOLE - value for value in tail]
    return [*reversed(tail), *upper] if both else upper


@cache
def _law(step: int, variance: Fraction, both: bool) -> tuple[list[int], int]:
    """Thresholds and K of the integers with weights exp(-(step x)^2 / (2 variance)), of both signs or not."""
    with localcontext() as context:
        context.prec = DIGITS
        rate = Decimal(-step * step * variance.denominator) / Decimal(2 * variance.numerator)
        weights = [Decimal(1)]
        while weights[-1] > Decimal(10) ** -60:
            weights.append((rate * len(weights) ** 2).exp())
        whole = sum(weights) * (2 if both else 1) - (1 if both else 0)
        tail = []
        above = sum(weights[1:], Decimal(0))
        for weight in weights[1:]:
            tail.append(int((above / whole * WHOLE).to_integral_value()))
            above -= weight
    first = tail.index(0)
    return _thresholds(tail[:first], both), first if both else 0


def _table_samples(stream: KeyStream, count: int, thresholds: list[int], lowest: int) -> list[int]:
    """One block of samples by thresholds."""
    guide = max(16, 5 + len(thresholds).bit_length())
    size = 2 if guide == 16 else 4
    known = 8 * size
    samples = []
    pending = []
    for index, word in enumerate(stream.words(count, size)):
        least = word >> (known - guide) << (128 - guide)
        sample = bisect_right(thresholds, least)
        if sample != bisect_right(thresholds, least + (1 << (128 - guide)) - 1):
            pending.append((index, word))
        samples.append(sample - lowest)
    for index, word in pending:
        upper, lower = stream.words(2, 8)
        upper = word << (64 - known) | upper & ((1 << (64 - known)) - 1)
        samples[index] = bisect_right(thresholds, upper << 64 | lower) - lowest
    return samples


def _small(stream: KeyStream, count: int, variance: Fraction) -> list[int]:
    """Samples of a variance of at most 2^20."""
    thresholds, lowest = _law(1, variance, True)
    block = (1 << 17) // (2 if 5 + len(thresholds).bit_length() <= 16 else 4)
    samples: list[int] = []
    while len(samples) < count:
        samples += _table_samples(stream, min(block, count - len(samples)), thresholds, lowest)
    return samples


def _acceptance(variance: Fraction, width: int, j: int, distance: int) -> int:
    """`A`, the chance in 2^128 to accept a candidate."""
    with localcontext() as context:
        context.prec = DIGITS
        exponent = Fraction(-distance * (2 * width * j + distance)) / (2 * variance)
        value = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
        return int(value * WHOLE)


def _candidates(stream: KeyStream, count: int, variance: Fraction, width: int) -> list[int | None]:
    """Samples of a large variance, or nothing where a candidate was rejected."""
    thresholds, _ = _law(width, variance, False)
    steps = _table_samples(stream, count, thresholds, 0)
    found: list[int | None] = []
    chances = []
    for j, word in zip(steps, stream.words(count, 8), strict=True):
        sign, offset = word >> 63, word & (width - 1)
        found.append(-(width * j + offset + 1) if sign else width * j + offset)
        chances.append(_acceptance(variance, width, j, offset + sign))
    uppers = stream.words(count, 8)
    for index, (chance, upper) in enumerate(zip(chances, uppers, strict=True)):
        value = upper << 64
        if upper == chance >> 64:
            value |= stream.words(1, 8)[0]
        if value >= chance:
            found[index] = None
    return found


def _large(stream: KeyStream, count: int, variance: Fraction) -> list[int]:
    """Samples of a variance above 2^20."""
    width = 1
    while (2 * width) ** 2 <= variance / 4096:
        width *= 2
    samples: list[int] = []
    while len(samples) < count:
        block: list[int | None] = [None] * min(1 << 14, count - len(samples))
        while None in block:
            missing = [index for index, sample in enumerate(block) if sample is None]
            for index, sample in zip(
                missing, _candidates(stream, len(missing), variance, width), strict=True
            ):
                block[index] = sample
        samples += [sample for sample in block if sample is not None]
    return samples


def gaussian(stream: KeyStream, count: int, variance: Fraction) -> list[int]:
    """Discrete Gaussian samples of a variance from a key stream."""
    return _small(stream, count, variance) if variance <= 1 << 20 else _large(stream, count, variance)


def component(spec: Spec, roster: int, number: int, seed: bytes) -> Residues:
    """The samples of one component of a client's noise, for all noisy parts, from the seed of its stream."""
    assert spec.promise is not None
    factor = factors(spec.promise, roster)[number]
    stream = KeyStream(seed)
    noisy = [part for part in spec.parts if part.noisy]
    return {part.name: gaussian(stream, part.width, part.variance * factor) for part in noisy}


# --- Grid, rotation and totals


def rotation_seed(session: bytes, k: int, spec: Spec) -> bytes:
    """The seed of all rotations of a sum."""
    return tagged("rotation seed", session, u32(k), spec.digest)


def _signs(seed: bytes, index: int, width: int) -> list[int]:
    """The signs of the rotation of part number `index`."""
    bits = int.from_bytes(KeyStream(tagged("rotation", seed, u32(index))).read((width + 7) // 8), "little")
    return [-1 if bits >> place & 1 else 1 for place in range(width)]


def _hadamard(values: Sequence[float]) -> list[float]:
    """The orthonormal Hadamard transform."""
    width = len(values)
    return [
        math.fsum((-1) ** (i & j).bit_count() * value for j, value in enumerate(values)) / math.sqrt(width)
        for i in range(width)
    ]


def rotate(part: Part, index: int, seed: bytes, values: Sequence[float]) -> list[float]:
    """Values on the wire of part number `index`, before scaling and rounding."""
    if not part.rotated:
        return list(values)
    padded = [*values, *[0.0] * (part.width - part.size)]
    signs = _signs(seed, index, part.width)
    return _hadamard([sign * value for sign, value in zip(signs, padded, strict=True)])


def rotate_back(part: Part, index: int, seed: bytes, values: Sequence[float]) -> list[float]:
    """The inverse of `rotate`."""
    if not part.rotated:
        return list(values)
    signs = _signs(seed, index, part.width)
    return [sign * value for sign, value in zip(signs, _hadamard(values), strict=True)][: part.size]


def norm2(part: Part) -> int:
    """`N`, the square of the largest norm that a client's integers may have."""
    limit, scale = Fraction(part.limit), Fraction(part.scale)
    if part.bound == "Count":
        whole = int(part.limit) * part.size
        quotient, rest = divmod(min(whole if part.total is None else part.total, whole), int(part.limit))
        return int((quotient * limit**2 + rest**2) * scale**2)
    width = part.width
    square = (limit * scale) ** 2 * (width if part.bound == "LInf" else 1)
    norm, root = _root(square), _root(Fraction(width))
    bounds = [square + Fraction(width, 4) + norm + root / 2, square + 2 * _root(square * width) + width]
    if part.bound == "LInf":
        bounds.append(Fraction(width * math.ceil(limit * scale) ** 2))
    return math.floor(min(bounds))


def _root(value: Fraction) -> Fraction:
    """A square root, rounded down to a multiple of 2^-64 over the denominator."""
    return Fraction(math.isqrt(value.numerator * value.denominator << 128), value.denominator << 64)


def rounds_to(part: Part, index: int, seed: bytes, values: Sequence[float], rounded: Sequence[int]) -> bool:
    """Whether integers may be the values of a noisy part on its grid: rounding is random."""
    if part.bound == "Count":
        return [int(value * part.scale) for value in values] == list(rounded)
    grid = [part.scale * value for value in rotate(part, index, seed, clip(part, values))]
    close = all(abs(number - value) < 1 + 1e-6 for number, value in zip(rounded, grid, strict=True))
    return close and sum(number * number for number in rounded) <= norm2(part)


def decode_noisy(part: Part, index: int, seed: bytes, roster: int, residues: Sequence[int]) -> list[float]:
    """The numbers of a total of a noisy part, whose surplus noise was removed."""
    if part.bound == "Count":
        below = ((1 << part.bits) - 1 - int(part.scale) * roster * int(part.limit)) // 2
        start = (1 << part.bits) - below
        return [(value - (1 << part.bits) if value >= start else value) / part.scale for value in residues]
    values = [part.signed(residue) / part.scale for residue in residues]
    return rotate_back(part, index, seed, values)
