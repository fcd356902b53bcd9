"""Order statistics of the clients' values in every coordinate, by counting: how many are at most this?

All coordinates are halved at once, each in its own range. After k halvings of [-reach, reach], an order
statistic is known to lie within reach * 2^(1 - k); the middle of that is off by half as much at most. A count
takes no more bits than the number of clients does.

What a total reveals is no less than a count, and an order statistic is the value of some client: an exact
median tells, in every coordinate, what one of them has, though not whose it is. Fewer halvings tell less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.record import Vector, as_vector
from protocols.vocabulary import Query, Steps
from secagg.errors import CohortChanged, CorruptTotal, SumFailed, TooFewClients
from secagg.spec import Count, Part, Total, bits_for_cohort

GROUP: Final = "values"
LOWER: Final = "lower"
UPPER: Final = "upper"
MOST_STEPS: Final = 52  # more halvings, and the borders would be no float64 any more

# From the number of clients to the ranks that are searched, in rising order; 1 is the rank of the least.
Ranks: TypeAlias = Callable[[int], tuple[int, ...]]
Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Below(Query):
    """In each coordinate, is your value at most this? `upper` is a second such question, if there are two.

    Values are the differences to `model`, which comes with the first question of a round and no other.
    """

    kind: ClassVar[str] = "below"
    step: int
    model: Vector | None
    lower: Vector
    upper: Vector | None


@dataclass(frozen=True, eq=False)
class Bracket:
    """Where the statistic of one rank is, in each coordinate: above `low` and at most `high`.

    Only at -reach, where nothing is below, it may be `low` itself. `under` clients have at most `low`, and
    `within` at most `high`.
    """

    rank: int
    low: Vector
    high: Vector
    under: Counts
    within: Counts

    @property
    def middle(self) -> Vector:
        return (self.low + self.high) / 2

    @property
    def nearest_to_zero(self) -> Vector:
        """The shortest update that the counts allow."""
        return np.asarray(np.clip(0.0, self.low, self.high), np.float64)

    def halved(self, counts: Counts) -> Bracket:
        """After so many had at most the middle."""
        left = counts >= self.rank
        return Bracket(
            rank=self.rank,
            low=np.where(left, self.low, self.middle),
            high=np.where(left, self.middle, self.high),
            under=np.where(left, self.under, counts),
            within=np.where(left, counts, self.within),
        )


@dataclass(frozen=True)
class Found:
    """Brackets of all ranks after `steps` halvings; `failure` is why there were not more."""

    brackets: tuple[Bracket, ...]
    steps: int
    failure: SumFailed | None = None


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """Searches one or two order statistics of `dim` coordinates over at most `clients` clients.

    `reach`  values beyond +-`reach` count as that.
    `steps`  halvings, one sum each.
    `two`    whether two are searched, side by side in the same sums.
    """

    dim: int
    clients: int
    reach: float | None
    steps: int
    two: bool = False

    def __post_init__(self) -> None:
        checks.bound("reach", self.reach, "the largest size of an update in a coordinate, such as 0.1")
        checks.whole("steps", self.steps, 1, MOST_STEPS)

    @property
    def limit(self) -> float:
        assert self.reach is not None  # checked above
        return self.reach

    @property
    def resolution(self) -> float:
        """How wide a bracket is in the end."""
        return self.limit * 2.0 ** (1 - self.steps)

    @property
    def names(self) -> tuple[str, ...]:
        return (LOWER, UPPER) if self.two else (LOWER,)

    def parts(self) -> tuple[Part, ...]:
        bits = bits_for_cohort(Count(1), self.clients)
        return tuple(Part(name=name, size=self.dim, bits=bits, bound=Count(1)) for name in self.names)

    # --- a client's side ---

    def values(self, update: Vector) -> Vector:
        """What is counted of an update."""
        return np.clip(update, -self.limit, self.limit)

    def contribution(self, values: Vector, query: Below) -> Mapping[str, ArrayLike]:
        """One where a value is at most the border, and zero elsewhere.

        Values that are no numbers are passed on as they are: whoever asks for them sees that and declines.
        """
        if not np.isfinite(values).all():
            return dict.fromkeys(self.names, values)
        borders = (query.lower, query.upper if query.upper is not None else query.lower)
        pairs = zip(self.names, borders, strict=False)
        return {name: (values <= border).astype(np.uint64) for name, border in pairs}

    # --- the server's side ---

    def run(self, model: Vector, ranks: Ranks) -> Steps[Found]:
        """Raises `SumFailed` only if there is no sum at all."""
        total = yield self._query(0, model, [np.zeros(self.dim) for _ in self.names])
        brackets = [self._widest(rank, total.count) for rank in ranks(total.count)]
        brackets = self._halved(brackets, total)
        for step in range(1, self.steps):
            try:
                total = yield self._query(step, None, [bracket.middle for bracket in brackets])
            except (CohortChanged, TooFewClients) as failure:
                return Found(tuple(brackets), step, failure)
            brackets = self._halved(brackets, total)
        return Found(tuple(brackets), self.steps)

    def _query(self, step: int, model: Vector | None, borders: list[Vector]) -> Below:
        lower, upper = (*map(as_vector, borders), None)[:2]
        assert lower is not None
        return Below(step, model, lower, upper)

    def _widest(self, rank: int, clients: int) -> Bracket:
        reach = np.full(self.dim, self.limit)
        return Bracket(rank, -reach, reach, np.zeros(self.dim, np.int64), np.full(self.dim, clients))

    def _halved(self, brackets: list[Bracket], total: Total) -> list[Bracket]:
        halved = []
        for name, bracket in zip(self.names, brackets, strict=True):
            counts = total[name].astype(np.int64)
            if (counts < bracket.under).any() or (counts > bracket.within).any():
                raise CorruptTotal("counts do not rise with the border: some client does not count as agreed")
            halved.append(bracket.halved(counts))
        return halved
