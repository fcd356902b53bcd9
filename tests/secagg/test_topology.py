"""Which graph a cohort gets, and who is left when its neighbours go."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.insecure_seeds import SeededRandom
from secagg.session_params import SessionParams
from secagg.topology import CompleteGraph, GraphPlan, RingGraph, Topology, lay_out, plan
from secagg.trust_levels import Trust


def planned(clients: int, **changes: Any) -> GraphPlan:
    settings: dict[str, Any] = {"trust": Trust.CURIOUS, "corrupt": clients // 10, "dropout": 0.1}
    return plan(clients, SessionParams(**{**settings, **changes}))


@pytest.mark.parametrize(
    ("clients", "ring"), [(3, False), (50, False), (128, False), (129, True), (1000, True)]
)
def test_small_cohorts_are_complete_and_large_ones_meet_on_a_ring(clients: int, ring: bool) -> None:
    assert planned(clients).is_ring == ring


@pytest.mark.parametrize("clients", [129, 1024])
def test_under_a_malicious_server_everybody_shares_with_everybody(clients: int) -> None:
    found = planned(clients, trust=Trust.MALICIOUS)
    assert (found.is_ring, found.neighbours) == (False, clients - 1)
    assert 2 * found.threshold > clients + clients // 10


def test_a_complete_graph_spares_all_but_a_threshold() -> None:
    assert planned(50) == GraphPlan(False, 49, 26, 26, 24)


def test_a_ring_has_the_finders_parameters() -> None:
    found = planned(1000)
    assert (found.neighbours, found.threshold) == (52, 28)
    # It falls apart with fewer, and a client may lose a threshold of holders with more drop-outs.
    assert (found.least, found.spare) == (636, 104)


def test_where_a_ring_would_take_nearly_everybody_the_graph_is_complete() -> None:
    assert not planned(130, corrupt=51, dropout=0.58).is_ring


def test_a_graph_may_be_asked_for() -> None:
    assert planned(50, graph=GraphChoice.RING).neighbours == 12
    assert planned(50, graph=GraphChoice.RING, min_neighbours=23).neighbours == 24
    assert not planned(500, graph=GraphChoice.COMPLETE).is_ring


def test_more_neighbours_than_any_client_serves_are_refused() -> None:
    with pytest.raises(ParameterError, match="would need 1388 neighbours; at most 1022 are allowed"):
        planned(3000, corrupt=1200, dropout=0.45)


def terms(**changes: Any) -> SessionParams:
    settings: dict[str, Any] = {
        "trust": Trust.CURIOUS,
        "sums": 1,
        "corrupt": 10,
        "dropout": 0.1,
        "min_cohort": 60,
        "max_cohort": 200,
        "min_contributors": 60,
        "graph": GraphChoice.AUTO,
    }
    return SessionParams(**{**settings, **changes})


def test_what_is_planned_is_drawn() -> None:
    small = lay_out(terms(), 100, SeededRandom(b"small"))
    assert isinstance(small.graph, CompleteGraph)
    assert (small.is_ring, small.threshold, small.least) == (False, 51, 60)
    large = lay_out(terms(), 200, SeededRandom(b"large"))
    assert isinstance(large.graph, RingGraph)
    assert large.is_ring
    assert large.least > 60  # fewer would not hold it together


def test_whoever_keeps_too_few_neighbours_is_stranded_and_may_strand_others() -> None:
    """A ring of ten in order, two neighbours each, all of whom are needed."""
    topology = Topology(RingGraph(range(10), 2), threshold=3, least=3)
    assert topology.stranded(set(range(10))) == set()
    # Without 5 nobody has everybody around it: 4 and 6 go first, then 3 and 7, and so on around the ring.
    assert topology.stranded(set(range(10)) - {5}) == set(range(10)) - {5}
    tolerant = Topology(RingGraph(range(10), 2), threshold=2, least=3)
    assert tolerant.stranded(set(range(10)) - {5}) == set()
    assert tolerant.stranded({0, 1, 2, 4}) == {4}


def test_on_the_complete_graph_nobody_is_stranded() -> None:
    assert Topology(CompleteGraph(5), threshold=4, least=4).stranded({0}) == set()
