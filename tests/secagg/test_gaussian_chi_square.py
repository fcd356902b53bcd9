"""Samples of the discrete Gaussian, counted: values, serial pairs, and their lowest bits.

Seeds are fixed, and all comparisons of this file together raise a false alarm, over the choice of the seeds,
with a probability below 1e-6: there are fewer than 80 of them, each with a bound of 1e-8. (It is the bound of
a chi-square variable, which Pearson's statistic is very nearly: every cell expects 100 samples or more.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import discrete_gaussian
from tests.secagg.chance import chi_square_limit

CHANCE = 1e-8
LEAST = 100  # samples that a cell expects
CHUNK = 1 << 21
BLOCKS = (1 << 14, 1 << 15, 1 << 16)  # samples that laws draw at a time
LOW_BITS = 6
SIGMAS = [Fraction(1, 2), Fraction(2), Fraction(10), Fraction(1000), Fraction(13000), Fraction(10**6)]

Samples = NDArray[np.int64]
Counts = NDArray[np.int64]
Draw = Callable[[int], Samples]  # the next so many samples


class Cells:
    """A partition of the integers by size, into cells that are at least so likely."""

    def __init__(self, sigma: Fraction, least: float) -> None:
        self.width = max(1, int(sigma) // 13000)  # values that are never told apart
        reach = ceil(8 * sigma / self.width + 3)
        self.reach = reach * self.width
        # The middle of a run stands for all of it: the weights of 76 values, where a standard deviation has a
        # million, are 76 times that of the middle one to nine digits.
        middles = np.arange(-reach, reach) * self.width + (self.width - 1) / 2
        runs = np.exp(-np.square(middles / float(sigma)) / 2)
        runs /= runs.sum()
        self.cell_of_run = _merged(runs, least)
        self.shares: NDArray[np.float64] = np.bincount(self.cell_of_run, runs).astype(np.float64)

    def of(self, samples: Samples) -> NDArray[np.intp]:
        runs = (np.clip(samples, -self.reach, self.reach - 1) + self.reach) // self.width
        return self.cell_of_run[runs]


def _merged(shares: NDArray[np.float64], least: float) -> NDArray[np.intp]:
    """The cell of each share: neighbours are merged until they are large enough together."""
    cells, cell, gathered = [], 0, 0.0
    for share in shares.tolist():
        cells.append(cell)
        gathered += share
        if gathered >= least:
            cell, gathered = cell + 1, 0.0
    return np.minimum(cells, cell - 1)  # what is left over belongs to the last one


class Tally:
    """Everything that is counted of a law's samples."""

    def __init__(self, sigma: Fraction, size: int) -> None:
        self.size = 0
        self.values = Cells(sigma, LEAST / size)
        pairs = size // 4  # at least: blocks at the end have no partner
        self.halves = Cells(sigma, max(1 / 16, (LEAST / pairs) ** 0.5))
        cells = len(self.halves.shares)
        self.value_counts = np.zeros(len(self.values.shares), np.int64)
        self.pair_counts = {lag: np.zeros((cells, cells), np.int64) for lag in (1, *BLOCKS)}
        self.low_counts = np.zeros(1 << LOW_BITS, np.int64)

    def add(self, samples: Samples) -> None:
        self.size += len(samples)
        self.value_counts += np.bincount(self.values.of(samples), minlength=len(self.value_counts))
        self.low_counts += np.bincount(samples & ((1 << LOW_BITS) - 1), minlength=1 << LOW_BITS)
        cells = self.halves.of(samples)
        for lag, counts in self.pair_counts.items():
            # Every sample is in one pair at most, so that pairs are independent.
            whole = cells[: len(cells) // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
            codes = whole[:, 0] * len(counts) + whole[:, 1]
            counts += np.bincount(codes.ravel(), minlength=counts.size).reshape(counts.shape)

    def statistics(self) -> Iterator[tuple[str, float, int]]:
        """(what, Pearson's statistic, cells)"""
        yield "values", *_pearson(self.value_counts, self.values.shares)
        product = np.outer(self.halves.shares, self.halves.shares)
        for lag, counts in self.pair_counts.items():
            if counts.any():
                yield f"pairs {lag} apart", *_pearson(counts, product)
        if self.values.reach > 1000:  # or else the lowest bits are not nearly uniform
            uniform = np.full(1 << LOW_BITS, 2.0**-LOW_BITS)
            yield "lowest bits", *_pearson(self.low_counts, uniform)


def _pearson(counts: Counts, shares: NDArray[np.float64]) -> tuple[float, int]:
    expected = shares * counts.sum()
    assert expected.min() >= LEAST * 0.99
    return float((np.square(counts - expected) / expected).sum()), counts.size


def tally(sigma: Fraction, size: int, draw: Draw) -> Tally:
    found = Tally(sigma, size)
    while found.size < size:
        found.add(draw(min(CHUNK, size - found.size)))
    return found


def draw_of(variance: Fraction, seed: int = 0) -> Draw:
    law, stream = discrete_gaussian(variance), KeyStream(bytes([seed]) * 32)
    return lambda size: law.sample(stream, size)


def alarms(found: Tally) -> list[str]:
    return [what for what, value, cells in found.statistics() if value > chi_square_limit(cells, CHANCE)]


# --- the sampler ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", SIGMAS, ids=str)
def test_samples_are_as_likely_as_they_should_be(sigma: Fraction) -> None:
    found = tally(sigma, 10**6, draw_of(sigma**2))

    assert len([*found.statistics()]) >= 4
    assert alarms(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS, ids=str)
def test_many_samples_are_as_likely_as_they_should_be(sigma: Fraction) -> None:
    found = tally(sigma, 5 * 10**7 if sigma < 10**6 else 10**7, draw_of(sigma**2))

    assert alarms(found) == []


# --- what would be caught ------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "what"), [(Fraction(2), "values"), (Fraction(1000), "pairs 1 apart")])
@pytest.mark.parametrize("factor", [Fraction(99, 100), Fraction(101, 100)], ids=str)
def test_another_variance_is_noticed(sigma: Fraction, what: str, factor: Fraction) -> None:
    """Of 1 %. Pairs have fewer cells than single values have, and so a sharper eye for it."""
    found = tally(sigma, 1 << 23, draw_of(sigma**2 * factor))

    assert what in alarms(found)


def test_a_stream_that_starts_over_is_noticed() -> None:
    """Each block alone is as it should be."""
    law, block = discrete_gaussian(Fraction(4)), BLOCKS[2]

    def draw(size: int) -> Samples:
        blocks = [law.sample(KeyStream(bytes([k // 2]) * 32), block) for k in range(size // block)]
        return np.concatenate(blocks)

    assert alarms(tally(Fraction(2), 1 << 20, draw)) == [f"pairs {block} apart"]


def test_neighbours_that_know_each_other_are_noticed() -> None:
    fair = draw_of(Fraction(4))

    def draw(size: int) -> Samples:
        samples = fair(size)
        samples[1::200] = samples[::200]
        return samples

    assert "pairs 1 apart" in alarms(tally(Fraction(2), 1 << 22, draw))


def test_a_rare_loss_of_the_lowest_bit_is_noticed() -> None:
    fair = draw_of(Fraction(10**12))

    def draw(size: int) -> Samples:
        samples = fair(size)
        samples[::50] &= ~1
        return samples

    assert alarms(tally(Fraction(10**6), 1 << 21, draw)) == ["lowest bits"]
