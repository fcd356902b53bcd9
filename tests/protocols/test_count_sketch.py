"""Count sketches: linear, the same for all who have the seed, and right about what is large."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocols.sketched_sgd import CountSketch, heaviest
from secagg.errors import ParameterError

DIM = 5000


def sketch(**other: int) -> CountSketch:
    return CountSketch(**({"dim": DIM, "rows": 7, "columns": 400} | other))


def vectors(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=DIM) for _ in range(count)]


def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches() -> None:
    one, other, third = vectors(3)
    apart = sketch().of(one) - 2.5 * sketch().of(other) + sketch().of(third)
    assert sketch().of(one - 2.5 * other + third) == pytest.approx(apart, rel=1e-12, abs=1e-10)


def test_a_sketch_by_hand() -> None:
    """Every coordinate is in one column of every row, with one sign, whatever the others are."""
    small = sketch(dim=6, rows=2, columns=3)
    units = [small.of(unit) for unit in np.eye(6)]
    for unit in units:
        assert [np.count_nonzero(row) for row in unit.reshape(2, 3)] == [1, 1]
        assert set(np.abs(unit)) == {0.0, 1.0}
    values = np.array([3.0, -1.0, 0.5, 2.0, 0.0, 7.0])
    assert small.of(values) == pytest.approx(np.sum(values[:, None] * np.array(units), axis=0))
    read = [np.median([row @ vector for row, vector in rows_of(unit, small.of(values))]) for unit in units]
    assert small.estimate(small.of(values)) == pytest.approx(np.array(read))


def rows_of(unit: np.ndarray, table: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(unit.reshape(2, 3), table.reshape(2, 3), strict=True))


def test_all_who_have_the_seed_agree_and_others_do_not() -> None:
    (vector,) = vectors(1)
    assert np.array_equal(sketch().of(vector), sketch().of(vector))
    assert not np.array_equal(sketch().of(vector), sketch(seed=1).of(vector))
    # Both sides may have different versions: what was drawn once, worked out by hand, is drawn for ever.
    drawn = [CountSketch(dim=3, rows=1, columns=50).of(unit) for unit in np.eye(3)]
    assert [int(np.flatnonzero(each)[0]) for each in drawn] == [17, 34, 41]
    assert [each.sum() for each in drawn] == [1.0, -1.0, -1.0]


def test_columns_and_signs_are_drawn_evenly() -> None:
    """Chi-square of 400 columns: further than 8 standard deviations off is less likely than 1e-9."""
    drawn = sketch()
    for row in range(drawn.rows):
        filled = np.bincount(drawn._places[row], minlength=drawn.columns)
        statistic = float(np.sum((filled - DIM / 400) ** 2) / (DIM / 400))
        assert abs(statistic - 399) < 8 * math.sqrt(2 * 399)
        assert abs(int(drawn._signs[row].sum()) - DIM / 2) < 8 * math.sqrt(DIM / 4)
    assert not np.array_equal(drawn._places[0], drawn._places[1])


def failure_rate(rows: int, miss: float) -> float:
    """Half of the rows or more are off, each with a chance of at most `miss`."""
    least = math.ceil(rows / 2)
    return sum(math.comb(rows, k) * miss**k * (1 - miss) ** (rows - k) for k in range(least, rows + 1))


def test_heavy_coordinates_are_found() -> None:
    """By the bound of the sketch, the chance that any is misread by half of a heavy one is below 1e-6."""
    rng = np.random.default_rng(1)
    heavy, places = 4.0, np.sort(rng.choice(DIM, size=10, replace=False))
    vector = rng.normal(size=DIM)
    vector *= 2.0 / np.linalg.norm(vector)
    vector[places] = heavy * rng.choice([-1.0, 1.0], size=10)
    wide = sketch(rows=15, columns=2000)
    miss = float(np.sum(vector**2)) / wide.columns / (heavy / 2) ** 2
    assert DIM * failure_rate(wide.rows, miss) < 1e-6
    read = wide.estimate(wide.of(vector))
    assert np.array_equal(heaviest(read, 10), places)
    assert np.abs(read - vector).max() < heavy / 2


def test_one_row_is_off_as_much_as_the_bound_says_and_no_more() -> None:
    """The mean square of the error over many coordinates is |v|^2 / columns, and an eighth off at most."""
    (vector,) = vectors(1)
    errors = [
        (one.estimate(one.of(vector)) - vector) ** 2
        for one in (sketch(rows=1, seed=seed) for seed in range(8))
    ]
    assert np.mean(errors) == pytest.approx(np.sum(vector**2) / 400, rel=1 / 8)


def test_a_long_vector_is_read_as_a_short_one_is() -> None:
    """Blocks are a matter of memory alone."""
    long = CountSketch(dim=140_000, rows=3, columns=50)
    table = np.arange(150.0)
    read = long.estimate(table)
    for place in (0, 65_535, 65_536, 139_999):
        cells = table.reshape(3, 50)[np.arange(3), long._places[:, place]]
        signs = np.where(long._signs[:, place], -1, 1)
        assert read[place] == np.median(signs * cells)


def test_of_equal_ones_the_first_are_the_heaviest() -> None:
    assert heaviest(np.array([1.0, -2.0, 2.0, 0.0, 2.0]), 2).tolist() == [1, 2]
    assert heaviest(np.zeros(4), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"columns": 0}, {"columns": 1.5}, {"seed": -1}])
def test_shapes_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        sketch(**wrong)
