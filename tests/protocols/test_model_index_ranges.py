"""Places of a flat vector: what is taken is what was put, and a text means what a slice of Python means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.checks import MissingBound
from protocols.model_index_ranges import IndexRanges, parse_index_ranges
from protocols.parameter_fields import index_range_parameters, meanings_of, parameter
from secagg.errors import ParameterError

DIM = 12
_EDGES = st.tuples(st.integers(0, DIM), st.integers(0, DIM))


@given(ranges=st.lists(_EDGES, max_size=6))
def test_ranges_in_any_order_are_the_places_that_they_cover(ranges: list[tuple[int, int]]) -> None:
    covered = np.zeros(DIM)
    for start, stop in ranges:
        covered[start:stop] = 1.0
    places = IndexRanges.of(DIM, ranges)
    np.testing.assert_array_equal(places.mask(), covered)
    np.testing.assert_array_equal(places.rest.mask(), 1 - covered)
    assert places.size == covered.sum()
    assert places.size + places.rest.size == DIM
    assert IndexRanges.parse(places.text, DIM) == places
    assert places.rest.rest == places
    vector = np.arange(1.0, DIM + 1)
    np.testing.assert_array_equal(places.take(vector), vector[covered > 0])
    np.testing.assert_array_equal(places.join(places.take(vector), places.rest.take(vector)), vector)
    changed = places.put(vector, -places.take(vector))
    np.testing.assert_array_equal(changed, np.where(covered > 0, -vector, vector))
    np.testing.assert_array_equal(vector, np.arange(1.0, DIM + 1))


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", ()),
        (":", ((0, DIM),)),
        ("-2:", ((10, 12),)),
        (" 3:5,5:7 , 1:2", ((1, 2), (3, 7))),
        (":4, 2:30", ((0, 12),)),
        ("-30:2", ((0, 2),)),
    ],
)
def test_a_text_is_read_as_python_reads_slices(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert IndexRanges.parse(text, DIM).ranges == ranges


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("output", "'output' is no range: write places of the model as \"0:320, -650:\", or name a layer"),
        ("1:2:3", "no range"),
        ("1", "no range"),
        ("1:2,", "no range"),
        ("4:4", "of 12 parameters, 4:4 has none"),
        ("12:14", "12:14 has none"),
        (5, "must be a text"),
        ("9" * 40 + ":", "no range"),
    ],
)
def test_another_text_is_refused_with_the_parameters_name(text: object, said: str) -> None:
    with pytest.raises(ParameterError, match=r"^personal") as caught:
        parse_index_ranges("personal", text, DIM, '"-10:"')
    assert said in str(caught.value)


def test_what_is_missing_is_told_as_a_bound_is() -> None:
    with pytest.raises(MissingBound, match="personal must be set: what stays with clients"):
        parse_index_ranges("personal", None, DIM, "what stays with clients")


def test_records_cannot_say_places_that_are_not_there() -> None:
    for ranges in (((0, DIM + 1),), ((3, 3),), ((2, 4), (3, 5)), ((2, 4), (4, 5)), ((-1, 2),)):
        with pytest.raises(ParameterError, match="in order"):
            IndexRanges(DIM, ranges)


def test_vectors_of_another_length_are_refused() -> None:
    places = IndexRanges.parse("2:4", DIM)
    with pytest.raises(ParameterError, match="12 numbers is meant, not one of 3"):
        places.take(np.zeros(3))
    with pytest.raises(ParameterError, match="there are 2 places, not 3"):
        places.put(np.zeros(DIM), np.zeros(3))


def test_parameters_that_are_places_are_known_by_their_class() -> None:
    @dataclass(frozen=True)
    class Example:
        clip: float = 1.0
        personal: str | None = parameter(None, "what stays", index_ranges=True)

    assert index_range_parameters(Example) == ("personal",)
    assert index_range_parameters(int) == ()
    assert meanings_of(Example) == {"personal": "what stays"}
    assert meanings_of(Example(2.0)) == {}
