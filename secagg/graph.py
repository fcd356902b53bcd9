"""Who shares masks and secrets with whom.

On the complete graph everybody does with everybody. On a ring, members stand in a random order and each
is joined to the `neighbours / 2` on either side (Bell et al., Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, 2020). A *neighbourhood* is a member and its neighbours, in order of position;
the *place* of a member in it is the point, less one, at which it holds the others' shares.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from secagg.errors import ParameterError
from secagg.keys import Random

_TICKET_BYTES = 16  # two equal ones among a million members: 2^-89


class Graph(Protocol):
    """A graph over the positions of a cohort."""

    @property
    def neighbours(self) -> int: ...

    def neighbourhood(self, position: int) -> Sequence[int]:
        """The member at `position` and its neighbours, ascending."""
        ...

    def places(self, position: int) -> Sequence[int]:
        """For each of its neighbourhood in order: the place that the member at `position` has in theirs."""
        ...

    def present_around(self, present: Collection[int]) -> Sequence[int]:
        """For each position: how many of its neighbourhood are in `present`."""
        ...

    def joins(self, present: Collection[int]) -> bool:
        """Whether the members in `present` are connected with each other."""
        ...


class CompleteGraph:
    """Everybody is everybody's neighbour."""

    def __init__(self, size: int) -> None:
        self._everybody = range(size)

    @property
    def neighbours(self) -> int:
        return len(self._everybody) - 1

    def neighbourhood(self, position: int) -> Sequence[int]:  # noqa: ARG002  # the same one for all
        return self._everybody

    def places(self, position: int) -> Sequence[int]:
        return [position] * len(self._everybody)

    def present_around(self, present: Collection[int]) -> Sequence[int]:
        return [len(present)] * len(self._everybody)

    def joins(self, present: Collection[int]) -> bool:  # noqa: ARG002  # any two are joined
        return True


class RingGraph:
    """The members in `order` around a circle, each joined to the nearest `neighbours`, an even number."""

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
        """A ring in uniformly random order."""
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
        # A window that crosses the seam is one of the same circle walked once more.
        sums = np.concatenate(([0], np.cumsum(np.concatenate((around, around, around)))))
        starts = len(around) + np.arange(len(around)) - self._half
        counts = np.empty(len(around), np.int64)
        counts[self._order] = sums[starts + 2 * self._half + 1] - sums[starts]
        return counts.tolist()

    def joins(self, present: Collection[int]) -> bool:
        """A circle falls apart where it is broken twice: half the neighbours in a row are missing."""
        places = np.flatnonzero(self._present(present))
        if len(places) < 2:
            return True
        steps = np.diff(places, append=places[0] + len(self._order))
        return int(np.count_nonzero(steps > self._half)) < 2

    def _present(self, present: Collection[int]) -> NDArray[np.int64]:
        """Around the circle, one where somebody is present."""
        marks = np.zeros(len(self._order), np.int64)
        marks[list(present)] = 1
        return marks[self._order]
