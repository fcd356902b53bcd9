"""Whole numbers of a client's own, of either sign, summed exactly in as few bits as the cohort needs.

Counts on the wire are not below zero, so every client adds `most` to each of its numbers, and the server, who
knows how many clients there are, takes that away again. A client moves a total by `most` at the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols.record import Vector
from secagg.errors import CorruptTotal
from secagg.spec import Count, Part, Total, bits_for_cohort

VOTES: Final = "votes"
Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Votes:
    """`size` numbers from -`most` to `most` of each of at most `clients` clients.

    >>> votes = Votes(size=2, most=1, clients=10)
    >>> votes.part().bits  # from 0 to 20
    5
    >>> votes.contribution(np.array([-1.0, 1.0]))
    {'votes': array([0, 2], dtype=uint64)}
    """

    size: int
    most: int
    clients: int

    def part(self) -> Part:
        bound = Count(2 * self.most)
        return Part(name=VOTES, size=self.size, bits=bits_for_cohort(bound, self.clients), bound=bound)

    def contribution(self, votes: Vector) -> Mapping[str, ArrayLike]:
        """What a client adds. Votes that are no numbers are passed on: whoever asked for them declines."""
        if not np.isfinite(votes).all():
            return {VOTES: votes}
        return {VOTES: (votes + self.most).astype(np.uint64)}

    def total(self, total: Total) -> Whole:
        """What everybody's votes add up to."""
        shifted = np.asarray(total[VOTES]).astype(np.int64)
        if (shifted > 2 * self.most * total.count).any():
            raise CorruptTotal("votes add up to more than there are: some client does not vote as agreed")
        return shifted - self.most * total.count
