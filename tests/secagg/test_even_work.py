"""In sums with noise, a client does the same work whether or not its values are beyond their bounds: the
server sees when it answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import clipping_and_fixed_point, usable_values
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.input_encoding import Encoding
from secagg.mask_keystream import KeyStream
from secagg.noise import grid_encoding
from secagg.sum_spec import L2, Count, LInf, Part, SumSpec

# The modules that work on all elements of a part.
FILES = {module.__file__ for module in (clipping_and_fixed_point, grid_encoding, usable_values)}
PROMISE = NoiseAssumptions(clients=3, dropouts=0, colluders=0)
SIZE = 64


def private(bound: Count | L2 | LInf, size: int = SIZE) -> SumSpec:
    scale = 1.0 if isinstance(bound, Count) else 1000.0
    noise = Noise(scale=scale, variance=Fraction(100))
    return SumSpec(
        parts=(Part(name="x", size=size, bits=40, bound=bound, noise=noise),),
        promise=PROMISE,
    )


def lines_of(work: Callable[[], object]) -> list[tuple[str, int]]:
    """The lines of these modules that `work` runs, in order, each time."""
    lines: list[tuple[str, int]] = []

    def note(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


COUNTS = {"zeros": [0] * SIZE, "fewer": [1, 2] * 32, "all": [3] * SIZE, "more": [4] * SIZE}
REALS = {"zeros": [0.0] * SIZE, "small": [0.01] * SIZE, "large": [0.5] * SIZE, "huge": [-1e300] * SIZE}


@pytest.mark.parametrize(
    ("bound", "inputs"),
    [
        (Count(3), COUNTS),
        (Count(4, total=3 * SIZE), COUNTS),
        (L2(1.0), REALS),
        (LInf(0.1), REALS),
    ],
    ids=["counts", "total", "norm", "elements"],
)
def test_the_work_does_not_depend_on_what_is_clipped(
    bound: Count | L2 | LInf, inputs: dict[str, list[float]]
) -> None:
    spec = private(bound)
    encoding = Encoding(spec, cohort=3)

    def work(values: list[float]) -> None:
        array = np.array(values, None if isinstance(values[0], float) else np.int64)
        usable = usable_values.usable_values(spec, lambda: {"x": array})
        assert usable.zeros is None
        encoding.encode(usable.values, KeyStream(bytes(32)))

    work(inputs["zeros"])  # what is made once, such as the rotation, is there now
    done = {name: lines_of(partial(work, values)) for name, values in inputs.items()}

    assert done["zeros"]
    assert all(lines == done["zeros"] for lines in done.values())


@given(
    counts=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
    limit=st.integers(1, 2**28),
    more=st.integers(0, 2**64 - 2**28 - 1),
)
def test_scaled_counts_are_exact_however_large(counts: list[int], limit: int, more: int) -> None:
    spec = private(Count(limit, total=limit + more), len(counts))
    kept = usable_values.usable_values(spec, lambda: {"x": counts}).values["x"]

    sums = [sum(min(each, limit) for each in counts[: k + 1]) for k in range(len(counts))]
    most = max(sums[-1], limit + more)
    assert np.cumsum(kept).tolist() == [each * (limit + more) // most for each in sums]


@pytest.mark.parametrize("size", [2, 3, 1000])
def test_a_histogram_at_the_end_of_the_arithmetic_is_scaled_exactly(size: int) -> None:
    """The largest limit and total that noise allows, of which the products exceed 64 bits."""
    limit = 2**30
    total = min(size, 3) * limit - 1
    counts = np.random.default_rng(1).integers(limit // 2, limit, size, endpoint=True)
    kept = usable_values.usable_values(
        private(Count(limit, total=total), size), lambda: {"x": counts}
    ).values["x"]

    sums = np.cumsum(counts).astype(object)
    assert kept.dtype == np.uint64
    assert np.cumsum(kept).tolist() == (sums * total // max(sums[-1], total)).tolist()


@pytest.mark.parametrize("total", [2**31, 2**53 + 1, 2**63, 2**64 - 1])
def test_a_total_that_no_counts_reach_changes_nothing(total: int) -> None:
    usable = usable_values.usable_values(private(Count(10, total=total), 3), lambda: {"x": [10, 1, 10]})
    assert usable.values["x"].tolist() == [10, 1, 10]
    assert not usable.changed
