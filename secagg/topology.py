"""The graph of a session: which clients are neighbours, and so share pair masks and hold secret shares.
`plan` chooses the kind of graph and the threshold for a number of clients. `lay_out` also draws the graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from secagg.errors import ParameterError
from secagg.graph_parameters import (
    CHEAP_COMPLETE,
    GraphChoice,
    ServerClass,
    graph_parameters,
    least_connected,
    most_dropped,
)
from secagg.keys import Random
from secagg.session_params import SessionParams, check_ring_trust
from secagg.trust_levels import MAX_COMPLETE, Trust, dropouts_allowed


@dataclass(frozen=True)
class GraphPlan:
    """A graph that is not drawn yet: its kind, the neighbours per client, and the secret-sharing threshold.

    `least`  the fewest survivors that keep privacy: the threshold or, if more, what keeps a ring connected.
    `spare`  the most drop-outs that leave `threshold` holders of each client's shares (on a ring, except with
             a probability below 2^-`liveness_bits`).
    """

    is_ring: bool
    neighbours: int
    threshold: int
    least: int
    spare: int


def plan(clients: int, params: SessionParams) -> GraphPlan:
    """Choose the kind of graph, the neighbours per client and the threshold for `clients` clients. Raises
    `ParameterError` if no graph is safe for them."""
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
    return GraphPlan(True, found.neighbours, found.threshold, least, spare)


def _complete(clients: int, threshold: int) -> GraphPlan:
    return GraphPlan(False, clients - 1, threshold, threshold, clients - threshold)


def _may_be_ring(clients: int, params: SessionParams) -> bool:
    if params.graph is GraphChoice.AUTO:
        return params.trust is Trust.CURIOUS and clients > CHEAP_COMPLETE
    return params.graph is GraphChoice.RING


@dataclass(frozen=True)
class Topology:
    """A graph and its secret-sharing threshold. A sum is unmasked only if it has at least `least` clients."""

    graph: Graph
    threshold: int
    least: int

    @property
    def is_ring(self) -> bool:
        return isinstance(self.graph, RingGraph)

    def stranded(self, present: AbstractSet[int]) -> set[int]:
        """On a ring, return whom to remove from `present`, until all others have at least `threshold` present
        members around them, themselves included. On a complete graph, return an empty set."""
        if not self.is_ring:
            return set()  # on a complete graph, only the number of clients matters
        stays, lonely = set(present), set(present)
        while lonely:
            around = self.graph.present_around(stays)
            lonely = {position for position in stays if around[position] < self.threshold}
            stays -= lonely
        return set(present) - stays


def lay_out(params: SessionParams, present: int, random: Random) -> Topology:
    """Choose the graph and the threshold for `present` clients, and return both. On a ring, the order of the
    clients is drawn from `random`. Raises `ParameterError` if no graph is safe for them."""
    planned = plan(present, params)
    graph: Graph = CompleteGraph(present)
    if planned.is_ring:
        graph = RingGraph.draw(present, planned.neighbours, random)
    return Topology(graph, planned.threshold, max(planned.least, params.min_contributors))


_TICKET_BYTES = 16  # two of a million members get the same ticket with probability 2^-89


class Graph(Protocol):
    """A graph of the members of a cohort. A member is named by its position, its index in the cohort."""

    @property
    def neighbours(self) -> int: ...

    def neighbourhood(self, position: int) -> Sequence[int]:
        """Return the positions of the member at `position` and of its neighbours, ascending."""

    def places(self, position: int) -> Sequence[int]:
        """Return, for each p in `neighbourhood(position)`, the index of `position` in `neighbourhood(p)`."""

    def present_around(self, present: Collection[int]) -> Sequence[int]:
        """Return, for each position, how many of `present` are in its neighbourhood (itself included)."""

    def joins(self, present: Collection[int]) -> bool:
        """Return whether the members in `present` form a connected graph."""


class CompleteGraph:
    """The graph in which each member is a neighbour of all others."""

    def __init__(self, size: int) -> None:
        self._positions = range(size)

    @property
    def neighbours(self) -> int:
        return len(self._positions) - 1

    def neighbourhood(self, position: int) -> Sequence[int]:  # noqa: ARG002  # the same one for all
        return self._positions

    def places(self, position: int) -> Sequence[int]:
        return [position] * len(self._positions)

    def present_around(self, present: Collection[int]) -> Sequence[int]:
        return [len(present)] * len(self._positions)

    def joins(self, present: Collection[int]) -> bool:  # noqa: ARG002  # any two are joined
        return True


class RingGraph:
    """The members on a circle in `order`, each joined to its nearest `neighbours`, half on each side. Raises
    `ParameterError` unless `neighbours` is even, at least 2 and below the number of members."""

    def __init__(self, order: Sequence[int], neighbours: int) -> None:
        size = len(order)
        if neighbours % 2 or not 2 <= neighbours < size:
            raise ParameterError(f"a ring of {size} needs an even number of neighbours, 2 to {size - 1}")
        self._order = np.array(order, np.int32)
        self._half = neighbours // 2
        window = np.arange(-self._half, self._half + 1)
        around = self._order[(np.arange(size)[:, None] + window) % size]
        self._rows: NDArray[np.int32] = np.empty_like(around)
        self._rows[self._order] = np.sort(around, axis=1)

    @classmethod
    def draw(cls, size: int, neighbours: int, random: Random) -> RingGraph:
        """Return a ring of `size` members in uniformly random order, with `neighbours` neighbours each."""
        pool = random(_TICKET_BYTES * size)
        tickets = [pool[start : start + _TICKET_BYTES] for start in range(0, len(pool), _TICKET_BYTES)]
        return cls(sorted(range(size), key=tickets.__getitem__), neighbours)

    @property
    def neighbours(self) -> int:
        return 2 * self._half

    def neighbourhood(self, position: int) -> Sequence[int]:
        return tuple(self._rows[position].tolist())

    def places(self, position: int) -> Sequence[int]:
        theirs = self._rows[self._rows[position]]
        found: list[int] = np.argmax(theirs == position, axis=1).tolist()
        return found

    def present_around(self, present: Collection[int]) -> Sequence[int]:
        around = self._present(present)
        # Three copies of the circle in a row, so that a window around its ends needs no special case.
        sums = np.concatenate(([0], np.cumsum(np.concatenate((around, around, around)))))
        starts = len(around) + np.arange(len(around)) - self._half
        counts = np.empty(len(around), np.int64)
        counts[self._order] = sums[starts + 2 * self._half + 1] - sums[starts]
        return counts.tolist()

    def joins(self, present: Collection[int]) -> bool:
        """Return whether the members in `present` are connected. They are not if the ring has two gaps, each
        of at least `neighbours` / 2 absent members."""
        places = np.flatnonzero(self._present(present))
        if len(places) < 2:
            return True
        steps = np.diff(places, append=places[0] + len(self._order))
        return int(np.count_nonzero(steps > self._half)) < 2

    def _present(self, present: Collection[int]) -> NDArray[np.int64]:
        """Return, in the order of the circle, 1 for each member in `present` and 0 for the others."""
        marks = np.zeros(len(self._order), np.int64)
        marks[list(present)] = 1
        return marks[self._order]
