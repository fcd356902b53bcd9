"""Tests sums of vectors that are not zeros: beyond the bound, on it, and between grid points.

Every sum has a new random rotation. What a client sends is compared with `reference_encoding`: the difference
is noise and the error of rounding, whose means are 0 and whose variances are known. The same is done with
noise so small that it is always 0, which shows the rounding alone, and whether its norm stays in the bound.
The decoded total is compared with the sum of the inputs, after clipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.errors import SecaggError
from secagg.mask_keystream import SEED_BYTES
from secagg.residue_packing import Residues
from secagg.sum_spec import Count, Part, SumSpec
from sims.console_progress import OnProgress, quiet
from sims.noise_audit import reference_encoding as reference
from sims.noise_audit.alarm_budget import NoiseTest
from sims.noise_audit.faults import with_variance
from sims.noise_audit.noise_statistics import normal_p, variance_p, worst
from sims.noise_audit.unmasked_sums import UnmaskedSums, grid_points

Real = NDArray[np.float64]
Whole = NDArray[np.int64]

_FLOAT: Final = 1e-6  # the largest error of floats in grid points, relative to the largest element or 1
_SHORTENED: Final = 0.5  # grid points by which vectors on the bound may be too short on average
_NO_NOISE: Final = Fraction(1, 1 << 40)  # a variance with which a sample other than 0 never occurs
_INSIDE, _ONE_ELEMENT, _ALL_ELEMENTS, _ON_BOUND, _HALF_POINTS, _SMALL = range(6)
_SHAPES: Final = 6


def draw_input(
    part: Part, shape: int, draw: np.random.Generator, rotation: bytes, number: int
) -> NDArray[Any]:
    """Return an input for one part, of one of six shapes: within the bound, 10 times beyond it in one
    element, 1000 times in all, on the bound, on it and halfway between grid points, and very small."""
    if isinstance(part.bound, Count):
        return _counts(part, part.bound, shape, draw)
    limit = float(part.bound.limit)  # type: ignore[union-attr]  # residues have no noise
    vector = draw.normal(size=part.size) if part.is_rotated else draw.uniform(-1, 1, size=part.size)
    size = _norm(vector) if part.is_rotated else 1.0
    one = np.zeros(part.size)
    one[draw.integers(part.size)] = draw.choice([-1, 1])
    match shape:
        case _ if shape == _INSIDE:
            return vector * (0.8 * limit / size)
        case _ if shape == _ONE_ELEMENT:
            return one * (10 * limit)
        case _ if shape == _ALL_ELEMENTS:
            return vector * (1000 * limit / size)
        case _ if shape == _ON_BOUND:
            return vector * (limit / size) if part.is_rotated else np.sign(vector) * limit
        case _ if shape == _SMALL:
            return one * (0.05 * limit)
        case _:
            return _half_points(part, vector, rotation, number)


def _half_points(part: Part, vector: Real, rotation: bytes, number: int) -> Real:
    """Return a vector on the bound that lies halfway between grid points, as far as it is not scaled back:
    then its rounding varies most."""
    points = reference.on_grid(part, vector, rotation, number)
    reach = float(part.bound.limit) * part.noise.scale  # type: ignore[union-attr]
    longest = _norm(points) if part.is_rotated else float(np.abs(points).max())
    halves = np.floor(points * (reach / longest)) + 0.5
    return reference.real_vector(part, halves, rotation, number)


def _counts(part: Part, bound: Count, shape: int, draw: np.random.Generator) -> NDArray[np.uint64]:
    counts = np.zeros(part.size, np.uint64)
    left = part.size * bound.limit if bound.total is None else min(bound.total, part.size * bound.limit)
    if shape == _INSIDE:
        left = int(draw.integers(left + 1))
    for place in draw.permutation(part.size):
        counts[place] = most = min(left, bound.limit)
        left -= most
        if not left:
            break
    return counts


class _Differences:
    """Sums over the differences between encoded vectors of one part and the reference."""

    def __init__(self, part: Part, variance: float) -> None:
        self._part = part
        self._variance = variance  # of one client's noise; 0 if only the rounding is tested
        self._samples = self._vectors = 0
        self._squares = self._expected = self._spread = 0.0
        self._total = self._signed = self._signed_variance = self._sloped = self._sloped_variance = 0.0
        self._largest, self._largest_norm2 = 0.0, 0
        self._lengths: list[float] = []  # differences in the direction of the input

    def add(self, residues: Residues, points: Real, shape: int) -> float:
        """Add one encoded vector, and where it was on the grid before rounding. Return the sum of the
        variances of the rounding of its elements."""
        whole, offsets = _offsets(self._part, residues, points)
        difference = whole + offsets - points
        norm = _norm(points)
        if norm:
            self._lengths.append(float((difference * points).sum()) / norm)
        self._largest_norm2 = max(self._largest_norm2, _norm2(whole + offsets))
        self._largest = max(self._largest, float(np.abs(difference).max()))
        fractions = points - np.floor(points)
        rounding = fractions * (1 - fractions)
        if shape in (_INSIDE, _SMALL):  # The bound of the norm forbids some roundings of others.
            self._add_rounding(difference, points, fractions, rounding)
        return float(rounding.sum())

    def _add_rounding(self, difference: Real, points: Real, fractions: Real, rounding: Real) -> None:
        variances = rounding + self._variance
        self._samples += len(points)
        self._squares += float(np.square(difference).sum())
        self._expected += float(variances.sum())
        self._spread += float((rounding * np.square(1 - 2 * fractions)).sum())
        self._total += float(difference.sum())
        self._signed += float((difference * np.sign(points)).sum())
        self._signed_variance += float(variances[points != 0].sum())
        self._sloped += float((difference * (fractions - 0.5)).sum())
        self._sloped_variance += float((variances * np.square(fractions - 0.5)).sum())

    def tests(self) -> Iterator[NoiseTest]:
        """Yield tests of vectors with noise."""
        subject = "inputs with noise"
        if self._samples:
            ratio = self._squares / self._expected
            p = float(variance_p(ratio, self._samples))
            yield NoiseTest(
                subject, "variance", p, self._squares / self._samples, self._expected / self._samples
            )
            for name, value, variance in self._means():
                p = float(normal_p(value / math.sqrt(variance))) if variance else 1.0
                yield NoiseTest(subject, name, p, value / self._samples, 0.0)
        if self._lengths:
            lengths = np.array(self._lengths)
            deviation = math.sqrt(self._variance + 0.25)
            p = worst(normal_p(_beyond(lengths) / deviation))
            yield NoiseTest(subject, "length of each input", p)
            mean = float(lengths.mean())
            p = float(normal_p(_beyond(mean) / deviation * math.sqrt(len(lengths))))
            yield NoiseTest(subject, "length of all inputs", p, mean, 0.0)

    def tests_of_rounding(self) -> Iterator[NoiseTest]:
        """Yield tests of vectors without noise."""
        subject, part = "inputs without noise", self._part
        near = 1.0 if self._largest < 1 + _FLOAT * (1 + part.norm2**0.5) else 0.0
        yield NoiseTest(subject, "rounded to a neighbouring grid point", near, self._largest, 1.0)
        most = reference.most_norm2(part)
        within = 1.0 if self._largest_norm2 <= most and part.norm2 <= most else 0.0
        yield NoiseTest(
            subject, "squared norm within the bound", within, float(self._largest_norm2), float(most)
        )
        if self._samples:
            p = _bernstein_p(self._squares - self._expected, self._spread)
            yield NoiseTest(
                subject, "variance", p, self._squares / self._samples, self._expected / self._samples
            )
            for name, value, variance in self._means():
                p = _bernstein_p(value, variance)
                yield NoiseTest(subject, name, p, value / self._samples, 0.0)
        if self._lengths:
            # Hoeffding's inequality; at least 39 % of all roundings are within the bound of the norm.
            lengths = np.array(self._lengths)
            p = float(np.exp(-2 * np.square(_beyond(lengths))).min())
            yield NoiseTest(subject, "length of each input", min(1.0, 6 * p * len(lengths)))
            mean = float(lengths.mean())
            p = math.exp(-2 * len(lengths) * float(_beyond(mean)) ** 2)
            yield NoiseTest(subject, "length of all inputs", min(1.0, 6 * p), mean, 0.0)

    def _means(self) -> Iterator[tuple[str, float, float]]:
        """Yield sums whose mean is zero: (name, value, variance)."""
        yield "mean", self._total, self._expected
        yield "mean away from zero", self._signed, self._signed_variance
        yield "mean by the fraction of a grid point", self._sloped, self._sloped_variance


def _offsets(part: Part, residues: Residues, points: Real) -> tuple[Whole, Whole]:
    """Return `points` rounded to integers, and how much more the `residues` are, modulo 2^bits."""
    whole = np.rint(points).astype(np.int64)
    return whole, grid_points(part, (residues.astype(np.uint64) - whole.view(np.uint64)))


def _norm(vector: Real) -> float:
    # A dot product would call BLAS, whose threads keep spinning.
    return math.sqrt(float(np.square(vector).sum()))


def _norm2(whole: Whole) -> int:
    largest = int(np.abs(whole).max())
    return int(np.square(whole.astype(object) if largest**2 * len(whole) >= 1 << 63 else whole).sum())


def _beyond(lengths: Real | float) -> Real:
    """Return how much differences in length are larger than what vectors on the bound may be shortened by."""
    return np.asarray(np.maximum(0.0, np.abs(lengths) - _SHORTENED))


def _bernstein_p(value: float, variance: float) -> float:
    """Return an upper bound of the probability that a sum of independent numbers of mean 0 and absolute value
    of at most 1 is at least this far from 0."""
    tolerated = _FLOAT * (1 + abs(variance))
    beyond = max(0.0, abs(value) - tolerated)
    return min(1.0, 2 * math.exp(-(beyond**2) / (2 * (variance + tolerated + beyond / 3))))


class _Totals:
    """Sums over the differences between decoded totals of one part and the sums of clipped inputs."""

    def __init__(self, part: Part) -> None:
        assert part.noise is not None
        self._part, self._scale = part, part.noise.scale
        self._squares = self._expected = self._total = 0.0
        self._samples, self._largest = 0, 0.0
        self._lengths: list[float] = []
        self._decoded_wrongly = 0.0  # grid points

    def add(self, decoded: NDArray[Any], inputs: Real, variance: float) -> None:
        """Add a decoded total, the sum of its clipped inputs, and the variance of its elements."""
        difference = (decoded - inputs) * self._scale
        self._squares += float(np.square(difference).sum())
        self._expected += variance * len(inputs)
        self._samples += len(inputs)
        self._total += float(difference.sum())
        self._largest = max(self._largest, float(np.abs(difference).max()) / math.sqrt(variance))
        norm = _norm(inputs)
        if norm:
            self._lengths.append(float((difference * inputs).sum()) / norm / math.sqrt(variance))

    def compare(
        self, decoded: NDArray[Any], residues: Residues, points: Real, rotation: bytes, number: int
    ) -> None:
        """Compare a decoded total with what the reference decodes from the residues of the total, which
        should be near `points`."""
        whole, offsets = _offsets(self._part, residues, points)
        again = reference.real_vector(self._part, (whole + offsets).astype(np.float64), rotation, number)
        wrong = float(np.abs(decoded - again).max()) * self._scale
        self._decoded_wrongly = max(
            self._decoded_wrongly, wrong / (1 + float(np.abs(again).max()) * self._scale)
        )

    def tests(self) -> Iterator[NoiseTest]:
        subject, deviation = "decoded totals of inputs", math.sqrt(self._expected)
        right = 1.0 if self._decoded_wrongly < _FLOAT else 0.0
        yield NoiseTest(subject, "decoded like the reference", right, self._decoded_wrongly, 0.0)
        p = float(variance_p(self._squares / self._expected, self._samples))
        yield NoiseTest(subject, "variance", p, self._squares / self._samples, self._expected / self._samples)
        p = float(normal_p(self._total / deviation))
        yield NoiseTest(subject, "mean", p, self._total / self._samples, 0.0)
        p = min(1.0, 2 * self._samples * math.exp(-(self._largest**2) / 2))
        yield NoiseTest(subject, "largest difference", p, self._largest)
        if self._lengths:
            together = sum(self._lengths) / math.sqrt(len(self._lengths))
            yield NoiseTest(subject, "length of all totals", float(normal_p(together)), together, 0.0)


def sums_of_inputs(
    unmasked: UnmaskedSums, *, sums: int, seed: int = 0, progress: OnProgress = quiet
) -> dict[str, list[NoiseTest]]:
    """Compute `sums` sums of inputs with noise and test them. Return the tests by name of the part."""
    return _Inputs(unmasked, seed, noisy=True).run(sums, progress)


def roundings_of_inputs(
    unmasked: UnmaskedSums, *, sums: int, seed: int = 0, progress: OnProgress = quiet
) -> dict[str, list[NoiseTest]]:
    """Do the same for the sums of `without_noise`, and test the rounding and the bound of the norm."""
    return _Inputs(unmasked, seed, noisy=False).run(sums, progress)


def without_noise(spec: SumSpec) -> SumSpec:
    """Return the spec with noise so small that no sample is ever different from 0."""
    return with_variance(spec, _to_no_noise)


def _to_no_noise(part: Part) -> Fraction:
    return Fraction(1) if part.noise is None else _NO_NOISE / part.noise.variance


class _Inputs:
    """Sums of inputs of all shapes, over several rounds of random rotations."""

    def __init__(self, unmasked: UnmaskedSums, seed: int, *, noisy: bool) -> None:
        self._unmasked, self._noisy = unmasked, noisy
        self._draw = np.random.default_rng([seed, 2 if noisy else 1])
        self._parts = {
            number: (
                part,
                _Differences(part, unmasked.client_variance(part) if noisy else 0.0),
                _Totals(part),
            )
            for number, part in enumerate(unmasked.spec.parts)
            if part.noise is not None
        }

    def run(self, sums: int, progress: OnProgress) -> dict[str, list[NoiseTest]]:
        error = ""
        try:
            for done in range(sums):
                progress("inputs", done, sums)
                self._sum(done)
        except SecaggError as failure:
            error = str(failure)
        found = {}
        for part, differences, totals in self._parts.values():
            encodes = NoiseTest(
                "inputs", f"encoded without an error{error and ': '}{error}", float(not error)
            )
            tests = [encodes]
            if not error:
                if self._noisy:
                    tests += [*differences.tests(), *totals.tests()]
                else:
                    tests += differences.tests_of_rounding()
            found[part.name] = tests
        return found

    def _sum(self, done: int) -> None:
        """Compute one sum and add it to the statistics."""
        spec, unmasked = self._unmasked.spec, self._unmasked
        rotation = self._draw.bytes(SEED_BYTES)
        points = {number: np.zeros(part.width) for number, (part, _, _) in self._parts.items()}
        inputs = {number: np.zeros(part.size) for number, (part, _, _) in self._parts.items()}
        rounding = dict.fromkeys(self._parts, 0.0)
        sent: dict[str, NDArray[Any]] = {}

        def values(member: int) -> dict[str, NDArray[Any]]:
            sent.clear()
            for number, part in enumerate(spec.parts):
                if part.noise is None:
                    sent[part.name] = np.zeros(part.size, np.uint64 if part.counts else float)
                else:
                    sent[part.name] = draw_input(
                        part, (member + done) % _SHAPES, self._draw, rotation, number
                    )
            return sent

        def on_encoded(member: int, residues: Sequence[Residues]) -> None:
            for number, (part, differences, _) in self._parts.items():
                vector = sent[part.name]
                place = reference.grid_vector(part, vector, rotation, number)
                points[number] += place
                inputs[number] += reference.clipped(part, vector)
                rounding[number] += differences.add(residues[number], place, (member + done) % _SHAPES)

        total, residues = unmasked.run(values, rotation=rotation, on_encoded=on_encoded)
        for number, (part, _, totals) in self._parts.items():
            totals.compare(total[part.name], residues[number], points[number], rotation, number)
            variance = unmasked.variance(part) + rounding[number] / part.width
            totals.add(total[part.name], inputs[number], variance)
