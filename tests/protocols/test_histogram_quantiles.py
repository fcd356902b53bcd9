"""Quantiles read off a histogram, exact and noisy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.histogram_quantiles import one_hot, read_quantile
from secagg.distributed_noise import NoiseAssumptions
from secagg.mask_keystream import KeyStream
from secagg.noise.elementwise_calibration import calibrate_counts
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import SumSpec
from sims.noise_audit.unmasked_sums import UnmaskedSums

EDGES = np.linspace(0.0, 10.0, 65)
PARTS = [k / 10 for k in range(1, 10)]
BINS = 64
CLIENTS = 512


@given(st.floats(-100, 100))
def test_a_value_is_one_count_in_the_bin_it_lies_in(value: float) -> None:
    counts = one_hot(value, EDGES)
    (place,) = np.flatnonzero(counts)
    assert counts[place] == 1
    inside = min(max(value, 0.0), np.nextafter(10.0, 0.0))
    assert EDGES[place] <= inside < EDGES[place + 1]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.sampled_from(PARTS))
def test_without_noise_no_other_edge_is_closer(values: list[float], part: float) -> None:
    histogram = sum((one_hot(value, EDGES) for value in values), np.zeros(BINS, np.uint64))
    found = read_quantile(histogram, EDGES, part)
    below = np.array([np.mean([min(v, 9.999) < edge for v in values]) for edge in EDGES[1:]])
    place = int(np.flatnonzero(EDGES[1:] == found)[0])
    assert abs(below[place] - part) <= np.abs(below - part).min() + 1e-12


def test_a_known_count_is_used_instead_of_the_sum() -> None:
    histogram = [4.0, 4.0, -2.0, 2.0]
    assert read_quantile(histogram, [0, 1, 2, 3, 4], 0.5) == 1.0
    assert read_quantile(histogram, [0, 1, 2, 3, 4], 0.5, count=16) == 2.0


@pytest.mark.parametrize(
    ("histogram", "edges", "part", "text"),
    [
        ([1.0], [0.0], 0.5, "at least two finite numbers"),
        ([1.0], [0.0, np.inf], 0.5, "finite numbers"),
        ([1.0, 1.0], [0.0, np.nan, 1.0], 0.5, "finite numbers"),
        ([np.nan], [0.0, 1.0], 0.5, "histogram .* finite numbers"),
        ([np.inf, -np.inf], [0.0, 1.0, 2.0], 0.5, "histogram .* finite numbers"),
        ([1.0], [0.0, 1.0], np.nan, "from 0 to 1"),
        ([1.0, 1.0], [0.0, 1.0, 1.0], 0.5, "ascending order"),
        ([1.0, 1.0], [0.0, 1.0], 0.5, "a histogram of 1 bins"),
        ([1.0], [0.0, 1.0], 1.5, "from 0 to 1"),
        ([-1.0], [0.0, 1.0], 0.5, "too little"),
    ],
)
def test_what_cannot_be_read_is_refused(
    histogram: list[float], edges: list[float], part: float, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        read_quantile(histogram, edges, part)


@pytest.mark.parametrize("count", [np.nan, np.inf])
def test_a_count_has_to_be_finite(count: float) -> None:
    with pytest.raises(ValueError, match="count must be finite"):
        read_quantile([1.0], [0.0, 1.0], 0.5, count=count)


def test_a_value_has_to_be_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        one_hot(float("nan"), EDGES)


def quantile_errors(runs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean error for every part of all, in parts of all, of uniform data at epsilon 1."""
    plan = calibrate_counts(
        promise=NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0),
        goal=Goal(epsilon=1.0, delta=1e-5),
        bins=BINS,
        limit=1,
        total=1,
    )
    rehearsal = UnmaskedSums(SumSpec(parts=(plan.part("losses"),), promise=plan.promise), clients=CLIENTS)
    draws = KeyStream(b"uniform data".ljust(32))
    errors = np.zeros((runs, len(PARTS)))
    for run in range(runs):
        values = draws.words(CLIENTS) / 2.0**64 * 10
        counts = [{"losses": one_hot(value, EDGES)} for value in values]
        total, _ = rehearsal.run(counts.__getitem__)
        found = [read_quantile(total["losses"], EDGES, part) for part in PARTS]
        errors[run] = [abs(np.mean(values <= q) - part) for q, part in zip(found, PARTS, strict=True)]
    return np.asarray(errors.mean(axis=0))


def test_at_epsilon_1_a_noisy_histogram_of_512_finds_quantiles() -> None:
    """The mean over ten runs has a standard error of 0.006 at most, and the draws are fixed."""
    assert quantile_errors(10).max() < 0.05


@pytest.mark.slow
def test_over_100_runs_the_worst_mean_error_is_below_0_03() -> None:
    assert quantile_errors(100).max() <= 0.03
