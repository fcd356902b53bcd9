"""Clipping: to a norm or coordinate by coordinate, never in silence, and never beyond what floats hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.input_encoding import Encoding
from secagg.sum_spec import L2, Bound, Count, LInf, Part, SumSpec
from tests.secagg.encodings import encode_one, encoding, stream, total_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_clipping_to_a_norm_scales_the_vector_and_is_reported() -> None:
    code = encoding(L2(1.0), size=2, bits=50)
    encoded = code.encode({"x": [3.0, 4.0]}, stream())
    assert encoded.clipped == {"x": pytest.approx(0.2, rel=1e-15)}
    assert total_of(code, [[3.0, 4.0]])["x"] == pytest.approx([0.6, 0.8], abs=1e-12)


def test_clipping_coordinates_leaves_the_others_and_is_reported() -> None:
    code = encoding(LInf(1.0), size=3, bits=50)
    encoded = code.encode({"x": [0.25, -4.0, 2.0]}, stream())
    assert encoded.clipped == {"x": 0.25}
    assert total_of(code, [[0.25, -4.0, 2.0]])["x"] == pytest.approx([0.25, -1.0, 1.0], abs=1e-12)


@given(st.lists(FINITE, min_size=1, max_size=5), st.floats(1e-12, 1e12), st.sampled_from([L2, LInf]))
@settings(deadline=None, max_examples=200)
@example([1e308] * 3, 1.0, LInf)
@example([5e-324, -5e-324], 1.0, L2)
@example([0.0], 1.0, L2)
def test_clipping_is_reported_exactly_when_the_bound_is_exceeded(
    vector: list[float], limit: float, bound: Any
) -> None:
    code = encoding(bound(limit), size=len(vector))
    encoded = code.encode({"x": vector}, stream())
    size = max(map(abs, vector)) if bound is LInf else math.hypot(*vector)
    if size > limit * (1 + 1e-12):
        assert set(encoded.clipped) == {"x"}
        if math.isfinite(size):
            assert encoded.clipped["x"] == pytest.approx(limit / size, rel=1e-9)
    elif size < limit * (1 - 1e-12):
        assert encoded.clipped == {}


@pytest.mark.parametrize("bound", [L2, LInf])
def test_a_vector_exactly_at_its_bound_is_not_clipped(bound: Any) -> None:
    assert encoding(bound(5.0), size=1).encode({"x": [-5.0]}, stream()).clipped == {}
    rounded = np.nextafter(5.0, 6.0)  # what scaling to the bound may come to
    assert encoding(bound(5.0), size=1).encode({"x": [-rounded]}, stream()).clipped == {}
    factor = encoding(bound(5.0), size=1).encode({"x": [-5.00001]}, stream()).clipped["x"]
    assert factor == pytest.approx(5 / 5.00001, abs=1e-15)


@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0)])
def test_huge_values_are_clipped_without_overflow(bound: Bound) -> None:
    code = encoding(bound, size=4, bits=40)
    vector = [1.7e308, -1.7e308, 1.7e308, 0.0]
    assert 0.0 <= code.encode({"x": vector}, stream()).clipped["x"] < 1e-300
    expected = [1, -1, 1, 0] if isinstance(bound, LInf) else np.array([1, -1, 1, 0]) / math.sqrt(3)
    assert total_of(code, [vector])["x"] == pytest.approx(expected, abs=1e-9)


def test_the_factor_of_a_huge_vector_is_not_zero() -> None:
    clipped = encoding(L2(1.0), size=4).encode({"x": [1.5e308] * 4}, stream()).clipped
    assert clipped["x"] == pytest.approx(1 / 1.5e308 / 2, rel=1e-6, abs=0)


@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0)])
def test_denormal_values_are_nearly_always_zero(bound: Bound) -> None:
    code = encoding(bound, size=2, bits=64, cohort=1)
    assert code.encode({"x": [5e-324, -5e-324]}, stream()).clipped == {}
    assert encode_one(code, [5e-324, -5e-324]) == [0, 0]


def test_only_the_part_that_exceeds_its_bound_is_clipped() -> None:
    parts = (
        Part(name="update", size=2, bits=32, bound=L2(1.0)),
        Part(name="weight", size=1, bits=32, bound=LInf(10.0)),
        Part(name="seen", size=1, bits=16, bound=Count(100)),
    )
    code = Encoding(SumSpec(parts=parts), cohort=3)
    encoded = code.encode({"seen": [7], "weight": [9.0], "update": [30.0, 40.0]}, stream())
    assert set(encoded.clipped) == {"update"}
    total = code.decode([*encoded.residues], contributors=1, invited=3)
    assert total["weight"] == pytest.approx([9.0], abs=1e-7)
    assert total["seen"].tolist() == [7]
