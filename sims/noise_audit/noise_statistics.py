"""Tests of many vectors of noise, which should be independent discrete Gaussian samples of a known variance.

`NoiseStatistics` takes vectors one after another and keeps only sums over them, and few vectors, so that the
memory does not grow with their number. Its p-values are exact or upper bounds. For products of samples, which
correlations are sums of, Chernoff's method bounds the tail of any quadratic form in Gaussian samples without
a diagonal. It is also right for few samples, for which the normal distribution is not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2, norm

from sims.noise_audit.alarm_budget import NoiseTest
from sims.noise_audit.law_and_epsilon_bounds import SAMPLES_PER_BIN, Bins, below

Samples = NDArray[np.int64]

_MOST_KEPT: Final = 512  # vectors that are compared with each other, pair by pair
_MOST_KEPT_ELEMENTS: Final = 1 << 25
_FEW: Final = 64  # samples of which it matters that they are integers
_MEDIAN: Final = 0.6745  # of the absolute value of a standard normal number
_FAR: Final = (2.5, 3.0, 4.0, 5.0)  # standard deviations
_SPARE_BITS: Final = 60  # equal blocks by chance have a probability below 2^-60


def quadratic_form_p(value: NDArray[Any] | float, pairs: NDArray[Any] | float) -> NDArray[Any]:
    """Return upper bounds of the probabilities that |sum of `pairs` products of two standard Gaussian
    samples| is at least |`value`|. No product is a square, but samples may be in several products. The matrix
    of the quadratic form has a norm of at most 1 and the same eigenvalues as its negative."""
    # For eigenvalues +-k, log E exp(t x) = -sum over k > 0 of log(1 - 4 t^2 k^2) / 2. The sum of these k^2 is
    # pairs / 4. As the logarithm is concave, this is at most -(pairs / 8) log(1 - 4 t^2): all k are 1.
    doubled, pairs = 2 * np.abs(value), np.asarray(pairs, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        best = (np.sqrt(pairs**2 + 4 * doubled**2) - pairs) / (2 * doubled)
        exponent = (doubled * best + pairs / 2 * np.log1p(-(best**2))) / 4
    return np.asarray(np.minimum(1.0, 2 * np.exp(-np.where(doubled > 0, exponent, 0.0))))


def variance_p(ratio: NDArray[Any] | float, samples: int) -> NDArray[Any]:
    """Return two-sided p-values of mean squares of `samples` values that are `ratio` times as expected."""
    total = np.asarray(ratio) * samples
    return np.asarray(np.minimum(1.0, 2 * np.minimum(chi2.cdf(total, samples), chi2.sf(total, samples))))


def variance_p_of_elements(squares: NDArray[Any], variance: float, samples: int) -> NDArray[Any]:
    """Return two-sided p-values of sums of `squares` of few integer samples. An integer may be a Gaussian
    sample that was rounded by up to 1/2, so that the root of the sum grew less by up to sqrt(samples) / 2."""
    above = chi2.sf(np.square(np.maximum(0, np.sqrt(squares) - math.sqrt(samples) / 2)) / variance, samples)
    below = chi2.cdf(np.square(np.sqrt(squares) + math.sqrt(samples) / 2) / variance, samples)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))


def variance_p_of_sum(squares: NDArray[Any] | float, variance: float, samples: int) -> NDArray[Any]:
    """Return two-sided p-values of sums of `squares` of integer samples. Few of them may all be 0, which
    Gaussian samples never are."""
    if samples <= _FEW:
        return variance_p_of_elements(np.asarray(squares), variance, samples)
    return variance_p(np.asarray(squares) / (samples * variance), samples)


def normal_p(deviations: NDArray[Any] | float) -> NDArray[Any]:
    """Return two-sided p-values of standard normal `deviations`."""
    return np.asarray(2 * norm.sf(np.abs(deviations)))


def worst(p: NDArray[Any], tests: int = 0) -> float:
    """Return the p-value of the least of many p-values (`tests`, if they are not all given)."""
    return float(min(1.0, np.min(p) * (tests or np.size(p))))


def pmf_at_zero(variance: float) -> float:
    """Return the largest probability of a single value of the discrete Gaussian."""
    reach = math.ceil(40 * math.sqrt(variance)) if variance < 1e4 else 0
    if not reach:
        return 1 / math.sqrt(2 * math.pi * variance)
    return 1 / float(np.exp(-np.square(np.arange(-reach, reach + 1)) / (2 * variance)).sum())


def law_of(subject: str, values: Samples, variance: float) -> NoiseTest:
    """Return a test of variance and distribution together, of independent samples of one variance."""
    ratio = float(np.square(values.astype(np.float64)).mean()) / variance
    bins = Bins.of(variance, len(values))
    p = min(1.0, 2 * min(float(variance_p(ratio, len(values))), bins.p(bins.counts(values))))
    return NoiseTest(subject, "variance and chi-square", p, ratio * variance, variance)


class Repetitions:
    """Finds elements of vectors that depend on others at a fixed distance (shifts) or mirrored."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._length = 2 * width  # padded with zeros, so that shifts do not wrap around
        self._spectrum = np.zeros(self._length // 2 + 1)
        self._mirrored = np.zeros(self._length // 2 + 1, np.complex128)
        self._squares = np.zeros(width)
        self._vectors = 0

    def add(self, vector: NDArray[Any]) -> None:
        transform = np.fft.rfft(vector.astype(np.float64), self._length)
        self._spectrum += np.square(transform.real) + np.square(transform.imag)
        self._mirrored += np.square(transform)
        self._squares += np.square(vector.astype(np.float64))
        self._vectors += 1

    def tests(self, subject: str, variance: float) -> Iterator[NoiseTest]:
        width = self._width
        if width == 1:
            return
        lags = np.fft.irfft(self._spectrum, self._length)[1:width] / variance
        pairs = self._vectors * (width - np.arange(1, width))
        yield NoiseTest(subject, "elements at a fixed distance", worst(quadratic_form_p(lags, pairs)))
        products = np.fft.irfft(self._mirrored, self._length)[: 2 * width - 1]
        products[::2] -= self._squares  # an element times itself
        places = np.arange(2 * width - 1)
        pairs = self._vectors * ((np.minimum(places, 2 * width - 2 - places) + 1) // 2)
        p = quadratic_form_p(products[1:-1] / 2 / variance, np.maximum(pairs[1:-1], 1))
        yield NoiseTest(subject, "elements that mirror others", worst(p))


class EqualBlocks:
    """Finds blocks of vectors that are equal to others, up to the sign. `vectors` is how many there are."""

    def __init__(self, width: int, variance: float, vectors: int) -> None:
        pairs_bits = 2 * math.log2(max(2, width * vectors)) + 1
        bits_per_element = -math.log2(min(0.6, pmf_at_zero(2 * variance)))
        self._size = math.ceil((pairs_bits + _SPARE_BITS) / bits_per_element)
        self._blocks = width // self._size
        draw = np.random.default_rng(1)
        self._factors = draw.integers(1 << 62, size=(self._size, 2)).astype(np.uint64) * 2 + 1
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, vector: Samples) -> None:
        if self._blocks:
            rows = vector[: self._blocks * self._size].astype(np.uint64).reshape(self._blocks, self._size)
            hashes = rows @ self._factors
            negated = np.negative(hashes)
            self._hashes.append(np.where(hashes[:, :1] < negated[:, :1], hashes, negated))

    def tests(self, subject: str) -> Iterator[NoiseTest]:
        if self._hashes:
            hashes = np.concatenate(self._hashes)
            hashes = hashes[np.argsort(hashes[:, 0])]
            repeated = int((hashes[1:] == hashes[:-1]).all(axis=1).sum())
            p = 2.0**-_SPARE_BITS if repeated else 1.0
            yield NoiseTest(subject, "equal blocks", p, float(repeated), 0.0)


class PairsOfVectors:
    """Compares vectors with each other, pair by pair: those of the first sums, as many as are kept."""

    def __init__(self, width: int) -> None:
        self._room = min(_MOST_KEPT, max(2, _MOST_KEPT_ELEMENTS // width))
        self._kept: list[NDArray[np.float32]] = []

    def add(self, vector: NDArray[Any]) -> None:
        if len(self._kept) < self._room:
            self._kept.append(vector.astype(np.float32))

    def tests(self, subject: str, variance: float) -> Iterator[NoiseTest]:
        if len(self._kept) < 2:
            return
        rows = np.stack(self._kept)
        rows /= np.float32(math.sqrt(variance))
        products = np.triu(rows @ rows.T, 1).astype(np.float64)
        count, width = len(rows), rows.shape[1]
        p = quadratic_form_p(products[np.triu_indices(count, 1)], width)
        yield NoiseTest(subject, "pairs of vectors", worst(p))
        distances = np.arange(1, count)
        along = np.array([np.trace(products, offset=distance) for distance in distances])
        p = quadratic_form_p(along, width * (count - distances))
        yield NoiseTest(subject, "vectors at a fixed distance", worst(p))
        # Also noise that was used again with other signs: compare which elements are large.
        large = np.abs(rows) > np.float32(_MEDIAN)
        share = float(large.mean())
        centred = large - np.float32(share)
        sizes = (centred @ centred.T).astype(np.float64)[np.triu_indices(count, 1)]
        spread = max(share, 1 - share)  # of a product, for Hoeffding's inequality
        p = np.minimum(1.0, 2 * np.exp(-2 * np.square(sizes) / (width * spread**2)))
        yield NoiseTest(subject, "pairs of vectors without signs", worst(p))


class NoiseStatistics:
    """Tests `vectors` vectors of noise, all of one `variance` (grid points squared). `add` takes each of them
    with the client that drew it, or 0."""

    def __init__(self, subject: str, width: int, variance: float, vectors: int) -> None:
        self._subject, self._width, self.variance = subject, width, variance
        self._bins = Bins.of(variance, width * vectors)
        self._counts = np.zeros(len(self._bins.expected), np.int64)
        self._sums, self._squares = np.zeros(width), np.zeros(width)
        self._of_vectors: list[float] = []
        self._of_clients: dict[int, list[float]] = defaultdict(list)
        self._means: dict[int, list[float]] = defaultdict(list)
        self._positive = self._negative = 0
        self._run, self._largest = 0, 0.0
        self._far = np.zeros(len(_FAR), np.int64)  # samples beyond so many standard deviations
        self._modulus = _modulus(variance)
        self._last_bits = np.zeros(self._modulus, np.int64)
        self._repetitions = Repetitions(width)
        self._blocks = EqualBlocks(width, variance, vectors)
        self._pairs = PairsOfVectors(width)

    @property
    def samples(self) -> int:
        return self._width * len(self._of_vectors)

    def add(self, vector: Samples, client: int = 0) -> None:
        real = vector.astype(np.float64)
        squares = np.square(real)
        self._counts += self._bins.counts(vector)
        self._sums += real
        self._squares += squares
        square = float(squares.sum())
        self._of_vectors.append(square)
        self._of_clients[client].append(square)
        self._means[client].append(float(real.sum()))
        self._positive += int(np.count_nonzero(vector > 0))
        self._negative += int(np.count_nonzero(vector < 0))
        self._run = max(self._run, _longest_run(vector))
        sizes = np.abs(vector)
        self._largest = max(self._largest, float(sizes.max()))
        self._far += [np.count_nonzero(sizes > each) for each in self._far_points]
        self._last_bits += np.bincount(vector & (self._modulus - 1), minlength=self._modulus)
        self._repetitions.add(vector)
        self._blocks.add(vector)
        self._pairs.add(vector)

    def tests(self) -> Iterator[NoiseTest]:
        yield from self._variances()
        yield from self._means_and_law()
        yield from self._repetitions.tests(self._subject, self.variance)
        yield from self._blocks.tests(self._subject)
        yield from self._pairs.tests(self._subject, self.variance)

    def _variances(self) -> Iterator[NoiseTest]:
        subject, variance, vectors = self._subject, self.variance, len(self._of_vectors)
        mean = float(self._squares.sum()) / self.samples
        overall = float(variance_p(mean / variance, self.samples))
        yield NoiseTest(subject, "variance", overall, mean, variance)
        p = variance_p_of_elements(self._squares, variance, vectors)
        yield NoiseTest(subject, "variance of each element", worst(p))
        p = variance_p_of_sum(np.array(self._of_vectors), variance, self._width)
        yield NoiseTest(subject, "variance of each vector", worst(p))
        if len(self._of_clients) > 1:
            p = np.array(
                [
                    variance_p_of_sum(sum(each), variance, len(each) * self._width)
                    for each in self._of_clients.values()
                ]
            )
            yield NoiseTest(subject, "variance of each client", worst(p))

    def _means_and_law(self) -> Iterator[NoiseTest]:
        subject, deviation, vectors = self._subject, math.sqrt(self.variance), len(self._of_vectors)
        mean = float(self._sums.sum()) / self.samples
        p = float(normal_p(mean / deviation * math.sqrt(self.samples)))
        yield NoiseTest(subject, "mean", p, mean, 0.0)
        p_of_elements = normal_p(self._sums / (deviation * math.sqrt(vectors)))
        yield NoiseTest(subject, "mean of each element", worst(p_of_elements))
        means = [sum(each) / math.sqrt(len(each) * self._width) for each in self._means.values()]
        if len(means) > 1:
            yield NoiseTest(subject, "mean of each client", worst(normal_p(np.array(means) / deviation)))
        at_zero = pmf_at_zero(self.variance)
        signed = (self._positive - self._negative) / math.sqrt(self.samples * (1 - at_zero))
        yield NoiseTest(subject, "as many above zero as below", float(normal_p(signed)))
        yield NoiseTest(subject, "chi-square of the values", self._bins.p(self._counts))
        yield NoiseTest(subject, "values far from zero", worst(self._far_p()))
        if self._modulus > 1:
            even = self.samples / self._modulus
            statistic = float((np.square(self._last_bits - even) / even).sum())
            p = float(chi2.sf(statistic, self._modulus - 1)) if even >= SAMPLES_PER_BIN else 1.0
            yield NoiseTest(subject, "last bits of the values", p)
        p_run = min(1.0, self.samples * at_zero ** (self._run - 1))
        yield NoiseTest(subject, "longest run of one value", p_run, float(self._run))
        p_largest = min(1.0, 2 * self.samples * math.exp(-((self._largest / deviation) ** 2) / 2))
        yield NoiseTest(subject, "largest value", p_largest, self._largest)

    @property
    def _far_points(self) -> list[int]:
        return [math.ceil(each * math.sqrt(self.variance)) for each in _FAR]

    def _far_p(self) -> NDArray[Any]:
        """Return two-sided p-values of how many samples are far from zero."""
        beyond = np.array([2 * far_probability(each, self.variance) for each in self._far_points])
        above = binom.sf(self._far - 1, self.samples, beyond)
        return np.asarray(np.minimum(1.0, 2 * np.minimum(above, binom.cdf(self._far, self.samples, beyond))))


def _modulus(variance: float) -> int:
    """Return a power of two modulo which the discrete Gaussian is uniform, up to an error of 2^-100."""
    return 1 << max(0, min(4, math.floor(math.log2(max(1.0, math.sqrt(variance) / 2)))))


def far_probability(point: int, variance: float) -> float:
    """Return the probability that a sample exceeds `point`."""
    return 1 - float(below(np.array([point]), math.sqrt(variance))[0])


def _longest_run(vector: Samples) -> int:
    """Return the length of the longest run of equal elements."""
    ends = np.append(np.flatnonzero(np.diff(vector)), len(vector) - 1)
    return int(np.diff(ends, prepend=-1).max())
