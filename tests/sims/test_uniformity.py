"""The demo's statistics."""

import numpy as np
import pytest

from sims.demo.session_result_and_text import BUCKETS, Histogram


def test_p_value_agrees_with_the_printed_table() -> None:
    counts = (115, 85) * 10 + (100,) * 12

    off = Histogram(counts)

    assert off.chi_square == pytest.approx(45.0)  # the table: 5 % at 44.985 with 31 degrees of freedom
    assert off.p_value == pytest.approx(0.05, rel=5e-3)


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
