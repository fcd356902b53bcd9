"""The graph and threshold of a session, chosen for the cohort that has come."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction

from secagg.errors import ParameterError
from secagg.finder import (
    CHEAP_COMPLETE,
    GraphChoice,
    ServerClass,
    graph_parameters,
    least_connected,
    most_dropped,
)
from secagg.graph import CompleteGraph, Graph, RingGraph
from secagg.keys import Random
from secagg.terms import LIVENESS_BITS, SECURITY_BITS, Terms, check_ring_trust
from secagg.thresholds import MAX_COMPLETE, Trust, choose_threshold, dropouts_allowed


@dataclass(frozen=True)
class Plan:
    """What a session among so many clients will look like.

    `least` is the number of survivors that privacy needs: a threshold of them, or enough to hold a ring
    together. `spare` is the number of drop-outs that leave everybody a threshold of holders, on a ring with
    the given probability.
    """

    is_ring: bool
    neighbours: int
    threshold: int
    least: int
    spare: int


def plan(
    clients: int,
    *,
    trust: Trust,
    corrupt: int,
    dropout: Fraction | float,
    graph: GraphChoice = GraphChoice.AUTO,
    min_neighbours: int = 2,
    security_bits: int = SECURITY_BITS,
    liveness_bits: int = LIVENESS_BITS,
) -> Plan:
    """Choose for `clients` clients. Raises `ParameterError` where nothing is safe for so few."""
    if graph is GraphChoice.RING:
        check_ring_trust(trust)
    if not _may_be_ring(clients, trust, graph):
        threshold = choose_threshold(clients, corrupt=corrupt, dropout=dropout, trust=trust)
        return _complete(clients, threshold)
    found = graph_parameters(
        clients,
        corrupt=corrupt,
        dropped=dropouts_allowed(clients, dropout),
        server=ServerClass.CURIOUS,
        graph=graph,
        sigma=security_bits,
        eta=liveness_bits,
        min_neighbours=min_neighbours,
    )
    if found.graph is GraphChoice.COMPLETE:
        return _complete(clients, found.threshold)
    if found.neighbours >= MAX_COMPLETE:
        raise ParameterError(
            f"a ring of {clients} would need {found.neighbours} neighbours; at most {MAX_COMPLETE - 2} "
            "are allowed: tolerate fewer colluders or drop-outs"
        )
    connected = least_connected(clients, found.neighbours, corrupt=corrupt, sigma=security_bits)
    least = max(found.threshold, connected)
    spare = most_dropped(clients, found.neighbours, found.threshold, eta=liveness_bits)
    return Plan(True, found.neighbours, found.threshold, least, spare)


def _complete(clients: int, threshold: int) -> Plan:
    return Plan(False, clients - 1, threshold, threshold, clients - threshold)


def _may_be_ring(clients: int, trust: Trust, graph: GraphChoice) -> bool:
    if graph is GraphChoice.AUTO:
        return trust is Trust.CURIOUS and clients > CHEAP_COMPLETE
    return graph is GraphChoice.RING


@dataclass(frozen=True)
class Topology:
    """A graph that was drawn. `least` is the number of clients below which no sum is unmasked."""

    graph: Graph
    threshold: int
    least: int

    @property
    def is_ring(self) -> bool:
        return isinstance(self.graph, RingGraph)

    def stranded(self, present: AbstractSet[int]) -> set[int]:
        """Who of `present` must go, because fewer than a threshold of its neighbourhood would stay."""
        if not self.is_ring:
            return set()  # there, the least number of clients is all that counts
        stays, lonely = set(present), set(present)
        while lonely:
            around = self.graph.present_around(stays)
            lonely = {position for position in stays if around[position] < self.threshold}
            stays -= lonely
        return set(present) - stays


def lay_out(terms: Terms, present: int, random: Random) -> Topology:
    """Choose and draw. Raises `ParameterError` where nothing is safe for so few."""
    planned = plan(
        present,
        trust=terms.trust,
        corrupt=terms.corrupt,
        dropout=terms.dropout,
        graph=terms.graph,
        min_neighbours=terms.min_neighbours,
        security_bits=terms.security_bits,
        liveness_bits=terms.liveness_bits,
    )
    graph: Graph = CompleteGraph(present)
    if planned.is_ring:
        graph = RingGraph.draw(present, planned.neighbours, random)
    return Topology(graph, planned.threshold, max(planned.least, terms.min_contributors))
