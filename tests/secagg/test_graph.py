"""Who is whose neighbour, and what is left of a graph when some have gone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import ParameterError
from secagg.insecure_seeds import SeededRandom
from secagg.topology import CompleteGraph, Graph, RingGraph


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[int], RingGraph]:
    size = draw(st.integers(3, 24))
    order = draw(st.permutations(range(size)))
    neighbours = 2 * draw(st.integers(1, (size - 1) // 2))
    return order, RingGraph(order, neighbours)


@st.composite
def rings_with_some_present(draw: st.DrawFn) -> tuple[list[int], RingGraph, set[int]]:
    order, ring = draw(rings())
    return order, ring, draw(st.sets(st.integers(0, len(order) - 1)))


def distance(order: list[int], one: int, other: int) -> int:
    apart = abs(order.index(one) - order.index(other))
    return min(apart, len(order) - apart)


@given(rings())
def test_on_a_ring_neighbours_are_the_nearest(ring_in_order: tuple[list[int], RingGraph]) -> None:
    order, ring = ring_in_order
    for position in range(len(order)):
        near = [k for k in range(len(order)) if distance(order, position, k) <= ring.neighbours // 2]
        assert list(ring.neighbourhood(position)) == near
        assert len(near) == ring.neighbours + 1


@given(rings())
def test_the_place_of_a_member_is_its_index_in_each_neighbourhood(
    ring_in_order: tuple[list[int], RingGraph],
) -> None:
    order, ring = ring_in_order
    for position in range(len(order)):
        expected = [list(ring.neighbourhood(k)).index(position) for k in ring.neighbourhood(position)]
        assert ring.places(position) == expected


@given(rings_with_some_present())
def test_who_is_present_around_each_member_is_counted(
    situation: tuple[list[int], RingGraph, set[int]],
) -> None:
    order, ring, present = situation
    counted = [len(present.intersection(ring.neighbourhood(k))) for k in range(len(order))]
    assert ring.present_around(present) == counted


def reachable(graph: Graph, present: set[int]) -> set[int]:
    found: set[int] = set()
    edge = set(list(present)[:1])
    while edge:
        found |= edge
        edge = {k for one in edge for k in graph.neighbourhood(one) if k in present} - found
    return found


@given(rings_with_some_present())
def test_a_ring_holds_together_exactly_if_everybody_can_be_reached(
    situation: tuple[list[int], RingGraph, set[int]],
) -> None:
    _, ring, present = situation
    assert ring.joins(present) == (reachable(ring, present) == present)


@pytest.mark.parametrize(("size", "neighbours"), [(10, 3), (10, 0), (10, 10), (3, 4)])
def test_a_ring_has_an_even_number_of_neighbours_below_its_size(size: int, neighbours: int) -> None:
    with pytest.raises(ParameterError, match=f"a ring of {size} needs an even number"):
        RingGraph(range(size), neighbours)


def test_a_drawn_ring_is_in_random_order() -> None:
    """Each of the 2 pairs of neighbours of member 0 among 3 others is a third of the draws.

    A pair's count over 3000 draws is binomial with mean 1000 and deviation 25.8; six of these both ways on
    three pairs have a false-alarm rate below 1e-8. The seed is fixed.
    """
    random = SeededRandom(b"rings")
    drawn = Counter(RingGraph.draw(4, 2, random).neighbourhood(0) for _ in range(3000))
    assert set(drawn) == {(0, 1, 2), (0, 1, 3), (0, 2, 3)}
    assert all(abs(count - 1000) < 155 for count in drawn.values())


def test_on_the_complete_graph_everybody_is_everybodys_neighbour() -> None:
    graph = CompleteGraph(5)
    assert graph.neighbours == 4
    assert list(graph.neighbourhood(3)) == [0, 1, 2, 3, 4]
    assert graph.places(3) == [3] * 5
    assert graph.present_around({0, 4}) == [2] * 5
    assert graph.joins({0, 4})
