"""Noise for the verifier: who adds how much, what of it is surplus, its samples, and what they are added to.

Written from section 5.6 of docs/protocol.md, with whole numbers, fractions and decimals; it shares no code
with the package. Floats only tell where a client's values are on the grid, and what a rotated total is.
"""

from bisect import bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import count, takewhile
from math import ceil, floor, fsum, isqrt, sqrt
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.verifier_tools import need

UNITS = 2**128
LARGEST_VARIANCE = 2**20  # of the samples that are made here
BLOCK_BYTES = 2**17


class Stream:
    """The key stream of a seed."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()

    def numbers(self, size: int, amount: int) -> list[int]:
        """So many little-endian numbers of `size` bytes."""
        data = self._cipher.update(bytes(size * amount))
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


# --- components --------------------------------------------------------------------------------------


def removable(promise: dict[str, Any]) -> int:
    """Components that can be removed, each of which has a seed."""
    missing, most = int(promise["dropouts"]), int(promise["clients"])
    if not promise["removable"] or not missing:
        return 0
    return 1 + (max(missing, ceil(Fraction(200 * missing, most - missing))) - 1).bit_length()


def components(promise: dict[str, Any], roster: int) -> list[Fraction]:
    """What everyone in the roster adds, as parts of the variance."""
    least = roster - promise["dropouts"]
    honest = least - promise["colluders"]
    seeds = removable(promise)
    if not seeds:
        return [Fraction(1, honest)]
    stays = Fraction(least, honest) / roster
    unit = (Fraction(1, honest) - stays) / 2 ** (seeds - 1)
    return [stays, unit, *(2**level * unit for level in range(seeds - 1))]


def surplus(promise: dict[str, Any], roster: int, survivors: int) -> list[int]:
    """The numbers of the components that are removed."""
    shares, seeds = components(promise, roster), removable(promise)
    if not seeds:
        return []
    units = ceil((shares[0] * roster / survivors - shares[0]) / shares[1])
    if units == 2 ** (seeds - 1):
        return []
    stay = [2 + level for level in range(seeds - 1) if units >> level & 1]
    return [number for number in range(1, 1 + seeds) if number not in stay]


def kept(promise: dict[str, Any], roster: int, survivors: int) -> Fraction:
    """What honest survivors leave in the total, as a part of the variance: never less than all of it."""
    removed = surplus(promise, roster, survivors)
    stay = [share for at, share in enumerate(components(promise, roster)) if at not in removed]
    return sum(stay, Fraction(0)) * int(survivors - promise["colluders"])


# --- samples -----------------------------------------------------------------------------------------


@cache
def thresholds(variance: Fraction) -> list[int]:
    """In ascending order. As many are below zero as above it."""
    with localcontext(prec=70):
        twice = 2 * Decimal(variance.numerator) / Decimal(variance.denominator)
        weights = list(takewhile(lambda weight: weight > Decimal("1e-60"), (_exp(k, twice) for k in count())))
        whole = 2 * sum(weights) - 1
        beyond, tails = Decimal(0), []
        for weight in reversed(weights):
            tails.append(int((UNITS * beyond / whole).to_integral_value()))
            beyond += weight
    far = [tail for tail in tails if tail]
    return [*far, *(UNITS - tail for tail in reversed(far))]


def _exp(k: int, twice: Decimal) -> Decimal:
    return (-k * k / twice).exp()


def draw(stream: Stream, variance: Fraction, size: int) -> list[int]:
    """The next samples of a stream, in blocks."""
    need(variance <= LARGEST_VARIANCE, "samples of a larger variance, which are made in another way")
    steps = thresholds(variance)
    known = max(16, len(steps).bit_length() + 5)
    width = 2 if known == 16 else 4
    block, samples = BLOCK_BYTES // width, list[int]()
    while len(samples) < size:
        words = stream.numbers(width, min(block, size - len(samples)))
        samples += _block(stream, words, 8 * width, known, steps)
    return samples


def _block(stream: Stream, words: list[int], bits: int, known: int, steps: list[int]) -> list[int]:
    passed = []
    for word in words:
        least = word >> bits - known << 128 - known
        passed.append((bisect_right(steps, least), bisect_right(steps, least + (UNITS >> known) - 1)))
    samples = []
    for word, (fewest, most) in zip(words, passed, strict=True):
        if fewest != most:
            upper, lower = stream.numbers(8, 2)
            rest = (upper << 64 | lower) % (UNITS >> bits)
            fewest = bisect_right(steps, (word << 128 - bits) + rest)
        samples.append(fewest - len(steps) // 2)
    return samples


@cache
def layer(seed: bytes, laws: tuple[tuple[Fraction, int], ...]) -> list[list[int]]:
    """One component of the noise: (variance, size) for each part that has any, from one stream."""
    stream = Stream(seed)
    return [draw(stream, variance, size) for variance, size in laws]


# --- the grid ----------------------------------------------------------------------------------------


def width(part: dict[str, Any]) -> int:
    """Elements on the wire."""
    rotated = "noise" in part and part["bound"] == "L2"
    return 1 << (part["size"] - 1).bit_length() if rotated else int(part["size"])


def largest_norm2(part: dict[str, Any]) -> int:
    """The square of the norm that rounded numbers may have."""
    scale, limit, size = Fraction(part["noise"]["scale"]), Fraction(part["limit"]), width(part)
    if part["bound"] == "Count":
        most = min(part.get("total", size * part["limit"]), size * part["limit"])
        full, rest = divmod(most, part["limit"])
        return int((full * limit**2 + rest**2) * scale**2)
    norm = limit * scale if part["bound"] == "L2" else _root(size * (limit * scale) ** 2)
    edge = _root(Fraction(size))
    largest = floor(min(norm**2 + Fraction(size, 4) + norm + edge / 2, (norm + edge) ** 2))
    return largest if part["bound"] == "L2" else min(largest, size * ceil(limit * scale) ** 2)


def _root(value: Fraction) -> Fraction:
    return Fraction(isqrt(value.numerator * value.denominator << 128), value.denominator << 64)


def grid_points(part: dict[str, Any], values: list[Any], seed: bytes) -> list[float]:
    """Where a client's values are on the grid before they are rounded."""
    limit, scale = part["limit"], part["noise"]["scale"]
    if part["bound"] == "LInf":
        return [max(-limit, min(limit, value)) * scale for value in values]
    if part["bound"] == "Count":
        return [value * scale for value in values]
    norm = sqrt(fsum(value * value for value in values))
    padded = [value * min(1.0, limit / norm if norm else 1.0) for value in values]
    padded += [0.0] * (width(part) - len(values))
    signed = [sign * value for sign, value in zip(signs(seed, len(padded)), padded, strict=True)]
    return [each * scale / sqrt(len(padded)) for each in hadamard(signed)]


def signs(seed: bytes, size: int) -> list[int]:
    bits = Stream(seed).numbers(1, (size + 7) // 8)
    return [-1 if bits[at // 8] >> at % 8 & 1 else 1 for at in range(size)]


def hadamard(vector: list[Any]) -> list[Any]:
    rows = range(len(vector))
    return [sum(-x if (i & j).bit_count() % 2 else x for j, x in enumerate(vector)) for i in rows]


def total_of(part: dict[str, Any], residues: list[int], roster: int, seed: bytes) -> list[float]:
    """The numbers that the residues of a total stand for."""
    ring, scale = 2 ** part["bits"], part["noise"]["scale"]
    below = ring // 2
    if part["bound"] == "Count":
        below = (ring - 1 - int(scale) * roster * part["limit"]) // 2
    whole = [residue - ring if residue >= ring - below else residue for residue in residues]
    if part["bound"] != "L2":
        return [each / scale for each in whole]
    turned = zip(signs(seed, len(whole)), hadamard(whole), strict=True)
    return [sign * each / (scale * sqrt(len(whole))) for sign, each in turned][: part["size"]]
