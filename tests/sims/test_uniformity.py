"""The demo's statistics."""

import numpy as np
import pytest

from sims.demo.uniformity import BUCKETS, Histogram, chi_square_tail


@pytest.mark.parametrize(
    ("value", "degrees", "tail"),
    # Critical values from the printed tables.
    [(3.841, 1, 0.05), (11.070, 5, 0.05), (44.985, 31, 0.05), (52.191, 31, 0.01), (14.458, 31, 0.995)],
)
def test_tail_of_chi_square(value: float, degrees: int, tail: float) -> None:
    assert chi_square_tail(value, degrees) == pytest.approx(tail, rel=1e-3)


def test_tail_at_zero_is_everything() -> None:
    assert chi_square_tail(0.0, 31) == 1.0


def test_equal_counts_are_not_suspicious() -> None:
    even = Histogram.of(np.arange(256, dtype=np.uint8), 8)

    assert even.counts == (256 // BUCKETS,) * BUCKETS
    assert even.bars == "█" * BUCKETS
    assert (even.chi_square, even.p_value) == (0.0, 1.0)


def test_unmasked_numbers_are() -> None:
    near_zero = np.array([3, 2**20 - 2, 1, 2**20 - 1] * 100, np.uint32)

    spikes = Histogram.of(near_zero, 20)

    assert spikes.total == 400
    assert spikes.bars == "█" + "▁" * (BUCKETS - 2) + "█"
    assert spikes.p_value < 1e-12
