"""The graph and threshold of a session, chosen for the cohort that has come."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

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
from secagg.params import SessionParams, check_ring_trust
from secagg.thresholds import MAX_COMPLETE, Trust, dropouts_allowed


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


def plan(clients: int, params: SessionParams) -> Plan:
    """Choose for `clients` clients. Raises `ParameterError` if no choice is safe for them."""
    if params.graph is GraphChoice.RING:
        check_ring_trust(params.trust)
    if not _may_be_ring(clients, params):
        threshold = params.trust.choose_threshold(clients, corrupt=params.corrupt, dropout=params.dropout)
        return _complete(clients, threshold)
    found = graph_parameters(
        clients,
        corrupt=params.corrupt,
        dropped=dropouts_allowed(clients, params.dropout),
        server=ServerClass.CURIOUS,
        graph=params.graph,
        sigma=params.security_bits,
        eta=params.liveness_bits,
        min_neighbours=params.min_neighbours,
    )
    if found.graph is GraphChoice.COMPLETE:
        return _complete(clients, found.threshold)
    if found.neighbours >= MAX_COMPLETE:
        raise ParameterError(
            f"a ring of {clients} would need {found.neighbours} neighbours; at most {MAX_COMPLETE - 2} "
            "are allowed: tolerate fewer colluders or drop-outs"
        )
    connected = least_connected(clients, found.neighbours, corrupt=params.corrupt, sigma=params.security_bits)
    least = max(found.threshold, connected)
    spare = most_dropped(clients, found.neighbours, found.threshold, eta=params.liveness_bits)
    return Plan(True, found.neighbours, found.threshold, least, spare)


def _complete(clients: int, threshold: int) -> Plan:
    return Plan(False, clients - 1, threshold, threshold, clients - threshold)


def _may_be_ring(clients: int, params: SessionParams) -> bool:
    if params.graph is GraphChoice.AUTO:
        return params.trust is Trust.CURIOUS and clients > CHEAP_COMPLETE
    return params.graph is GraphChoice.RING


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


def lay_out(params: SessionParams, present: int, random: Random) -> Topology:
    """Choose and draw. Raises `ParameterError` if no choice is safe for `present` clients."""
    planned = plan(present, params)
    graph: Graph = CompleteGraph(present)
    if planned.is_ring:
        graph = RingGraph.draw(present, planned.neighbours, random)
    return Topology(graph, planned.threshold, max(planned.least, params.min_contributors))
