"""The median and the trimmed mean of the clients' updates in every coordinate, by bisection on counts.

"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" proposes both as robust aggregates.
Here they are computed from counts: the number of clients with a value of at most a threshold.

All coordinates are bisected at once, each in its own range. After k halvings of [-reach, reach], an order
statistic is known to lie in a bracket of width reach * 2^(1 - k). The middle of the bracket is wrong by at
most half of that. A count needs only as many bits as the number of clients. An exact median reveals one
client's value in every coordinate, but not which client's. Fewer halvings reveal less.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.learner import Learner
from protocols.parameter_fields import parameter
from protocols.rounds import Fact, Outcome, Query, Round, Steps
from protocols.serialisation import Vector, as_vector
from secagg.errors import (
    SERVER,
    CohortChanged,
    CorruptTotal,
    MalformedMessage,
    ParameterError,
    SumFailed,
    TooFewClients,
)
from secagg.sum_spec import Count, LInf, Part, SumSpec, Total, bits_for_cohort

INSIDE = "inside"


@dataclass(frozen=True)
class Inside(Query):
    """Asks for the sum of the clients' values that are above `low` and at most `high`, in each coordinate."""

    kind: ClassVar[str] = "inside"
    low: Vector
    high: Vector


@dataclass(frozen=True, kw_only=True)
class OrderStatistics(Algorithm[ModelState, NoMemory]):
    """The base class of median and trimmed mean of updates. Clients are counted, so all have equal weight."""

    two_statistics: ClassVar[bool] = False

    reach: float | None = parameter(
        None, "largest size of an update in a coordinate; one beyond it counts as that"
    )
    steps: int = parameter(
        16, "halvings of [-reach, reach], one sum each: updates are told apart to reach * 2^(1 - steps)"
    )

    def check(self) -> None:
        self.bisection  # noqa: B018  # raises if the range is invalid

    @abstractmethod
    def ranks(self, clients: int) -> tuple[int, ...]:
        """Return the ranks of the wanted order statistics of `clients` values; rank 1 is the least value."""

    @cached_property
    def bisection(self) -> Bisection:
        return Bisection(
            dim=self.dim, clients=self.clients, reach=self.reach, steps=self.steps, two=self.two_statistics
        )

    def sums(self) -> tuple[Sum, ...]:
        spec = SumSpec(parts=self.bisection.parts(), times=self.steps, group=GROUP)
        borders = "one threshold" if self.steps == 1 else f"each of up to {self.steps} thresholds"
        reveals = (
            f"in every coordinate, the number of updates below {borders}; this locates some client's value "
            f"to within {self.bisection.resolution:g}, but not whose it is"
        )
        seldom = {"model": 1} if self.two_statistics else {"model": 1, "upper": 0}
        needed = None if self.two_statistics else 1
        return (Sum(query=Below, spec=spec, reveals=reveals, needed=needed, seldom=seldom),)

    def round(self, state: ModelState) -> Round[ModelState]:
        found = yield from self.bisection.run(state.model, self.ranks)
        update = yield from self._update(found)
        facts: dict[str, Fact] = {
            "halvings": found.steps,
            "stopped": "all halvings were made" if found.failure is None else str(found.failure),
            "resolution": self.bisection.limit * 2.0 ** (1 - found.steps),
        }
        return Outcome(ModelState(as_vector(state.model + update)), facts)

    @abstractmethod
    def _update(self, found: BisectionResult) -> Steps[Vector]:
        """Return the vector to add to the model, given the bisection's result. It may yield a query first."""

    def client(self, learner: Learner, memory: NoMemory) -> CountingClient:  # noqa: ARG002
        return CountingClient(self.bisection, learner)


@dataclass(frozen=True, kw_only=True)
class MedianByCounts(OrderStatistics):
    """The model moves by the median of the updates in each coordinate; of two middle values, by the lower.
    Unless updates exceed `reach`, the error is at most reach * 2^-steps, half the width of the last bracket.
    If a client drops out meanwhile, the model moves by the value closest to zero in each bracket."""

    def ranks(self, clients: int) -> tuple[int, ...]:
        return ((clients + 1) // 2,)

    def _update(self, found: BisectionResult) -> Steps[Vector]:
        yield from ()  # no further sum is needed
        (median,) = found.brackets
        return median.middle if found.failure is None else median.nearest_to_zero


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(OrderStatistics):
    """The model moves by a mean of the updates, in each coordinate without the largest and the smallest ones.

    Two bisections in the same sums bracket the smallest and the largest value that is kept. Then one more sum
    adds up the values between the two brackets. Values within a bracket count as the bracket's middle, and
    the counts tell how many of them are kept, so ties do not matter. The error is at most reach * 2^-steps
    plus the rounding error of one sum.

    In the last sum, clients contribute zero outside a range that the server chooses. A malicious server could
    choose it so that it contains the value of only one client, so the algorithm is refused under malicious
    trust. If a client drops out before that sum, the round is given up.
    """

    two_statistics: ClassVar[bool] = True

    trim: float = parameter(0.1, "the part that is left out at each end, rounded down to whole clients")
    bits: int = parameter(32, "of every coordinate in the last sum")

    def check(self) -> None:
        super().check()
        checks.real("trim", self.trim, 0)
        if self.trim >= 0.5:
            raise ParameterError(
                f"trim must be less than a half, or no client is left; not {self.trim!r}", parameter="trim"
            )
        checks.whole("bits", self.bits, 2, 64)

    def ranks(self, clients: int) -> tuple[int, ...]:
        left_out = int(self.trim * clients)
        return left_out + 1, clients - left_out

    def sums(self) -> tuple[Sum, ...]:
        part = Part(name=INSIDE, size=self.dim, bits=self.bits, bound=LInf(self.bisection.limit))
        reveals = "in every coordinate, the sum of the updates within a range that the server chooses"
        spec = SumSpec(parts=(part,), group=GROUP)
        return *super().sums(), Sum(query=Inside, spec=spec, reveals=reveals, least_weight=0.0)

    def _update(self, found: BisectionResult) -> Steps[Vector]:
        if found.failure is not None:
            raise found.failure
        lower, upper = found.brackets
        total = yield Inside(as_vector(lower.high), as_vector(upper.low))
        apart = lower.high <= upper.low  # otherwise both brackets are the same
        edges = (lower.within - lower.rank + 1) * lower.middle + (upper.rank - upper.under) * upper.middle
        mean = (np.asarray(total[INSIDE], np.float64) + edges) / (upper.rank - lower.rank + 1)
        return np.where(apart, mean, lower.middle)


class CountingClient(ClientRound[NoMemory]):
    """A client that trains at a round's first query, which has the model. All answers use that update."""

    def __init__(self, bisection: Bisection, learner: Learner) -> None:
        self._bisection = bisection
        self._learner = learner
        self._values: Vector | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Below) and query.model is not None and self._values is None:
            self._values = self._bisection.values(self._learner.train(query.model) - query.model)
        values = self._values
        if values is None:
            raise MalformedMessage(SERVER, "a question about an update, before the model to train from")
        if isinstance(query, Below):
            return self._bisection.contribution(values, query)
        assert isinstance(query, Inside)
        return {INSIDE: np.where((values > query.low) & (values <= query.high), values, 0.0)}


GROUP: Final = "values"
LOWER: Final = "lower"
UPPER: Final = "upper"
MOST_STEPS: Final = 52  # with more halvings, float64 could not represent the borders

# Returns, for a number of clients, the ranks that are searched, in rising order; rank 1 is the least value.
Ranks: TypeAlias = Callable[[int], tuple[int, ...]]
Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Below(Query):
    """Asks each client, in each coordinate, whether its update is at most `lower`, and at most `upper` if
    given. Clients train the update from `model`, which only a round's first query carries."""

    kind: ClassVar[str] = "below"
    step: int
    model: Vector | None
    lower: Vector
    upper: Vector | None


@dataclass(frozen=True, eq=False)
class Bracket:
    """The interval in which the order statistic of rank `rank` lies, in each coordinate: low < value <= high.
    The value may equal `low` only if `low` is the least value possible. `under` clients have a value of at
    most `low`, and `within` clients a value of at most `high`."""

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
        """The value in the bracket that is closest to zero, in each coordinate."""
        return np.asarray(np.clip(0.0, self.low, self.high), np.float64)

    def halved(self, counts: Counts) -> Bracket:
        """Return the half with the order statistic; `counts` values are at most the bracket's middle."""
        left = counts >= self.rank
        return Bracket(
            rank=self.rank,
            low=np.where(left, self.low, self.middle),
            high=np.where(left, self.middle, self.high),
            under=np.where(left, self.under, counts),
            within=np.where(left, counts, self.within),
        )


@dataclass(frozen=True)
class BisectionResult:
    """A bracket for each wanted rank after `steps` halvings. If bisecting ended early, `failure` says why."""

    brackets: tuple[Bracket, ...]
    steps: int
    failure: SumFailed | None = None


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """Finds one or two order statistics of at most `clients` clients' values, in each of `dim` coordinates.

    `reach`  largest absolute value; larger values are clipped to it.
    `steps`  number of halvings, one sum each.
    `two`    whether two order statistics are searched, in the same sums.
    """

    dim: int
    clients: int
    reach: float | None
    steps: int
    two: bool = False

    def __post_init__(self) -> None:
        checks.bound("reach", self.reach, "the largest size of an update in a coordinate, such as 0.1")
        checks.whole("steps", self.steps, 1, MOST_STEPS)

    limit = checks.CheckedBound("reach")

    @property
    def resolution(self) -> float:
        """The width of a bracket after all halvings: reach * 2^(1 - steps)."""
        return self.limit * 2.0 ** (1 - self.steps)

    @property
    def names(self) -> tuple[str, ...]:
        return (LOWER, UPPER) if self.two else (LOWER,)

    def parts(self) -> tuple[Part, ...]:
        bits = bits_for_cohort(Count(1), self.clients)
        return tuple(Part(name=name, size=self.dim, bits=bits, bound=Count(1)) for name in self.names)

    # --- a client's side ---

    def values(self, update: Vector) -> Vector:
        """Return the values that are counted: `update` with every coordinate clipped to [-reach, reach]."""
        return np.clip(update, -self.limit, self.limit)

    def contribution(self, values: Vector, query: Below) -> Mapping[str, ArrayLike]:
        """Return, by part name, 1 for each value up to the query's threshold, and 0 for the others. If a
        value is not finite, return all values unchanged, so that `Participant` declines to answer."""
        if not np.isfinite(values).all():
            return dict.fromkeys(self.names, values)
        borders = (query.lower, query.upper if query.upper is not None else query.lower)
        pairs = zip(self.names, borders, strict=False)
        return {name: (values <= border).astype(np.uint64) for name, border in pairs}

    # --- the server's side ---

    def run(self, model: Vector, ranks: Ranks) -> Steps[BisectionResult]:
        """Bracket order statistics of the clients' updates of `model`. `ranks` maps a number of clients to
        ranks. A drop-out after the first sum only ends this early. Other failures raise `SumFailed`."""
        total = yield self._query(0, model, [np.zeros(self.dim) for _ in self.names])
        reach, none = np.full(self.dim, self.limit), np.zeros(self.dim, np.int64)
        all_clients = np.full(self.dim, total.count)
        widest = [Bracket(rank, -reach, reach, none, all_clients) for rank in ranks(total.count)]
        brackets = self._halved(widest, total)
        for step in range(1, self.steps):
            try:
                total = yield self._query(step, None, [bracket.middle for bracket in brackets])
            except (CohortChanged, TooFewClients) as failure:
                return BisectionResult(tuple(brackets), step, failure)
            brackets = self._halved(brackets, total)
        return BisectionResult(tuple(brackets), self.steps)

    def _query(self, step: int, model: Vector | None, borders: list[Vector]) -> Below:
        lower, upper = (*map(as_vector, borders), None)[:2]
        assert lower is not None
        return Below(step, model, lower, upper)

    def _halved(self, brackets: list[Bracket], total: Total) -> list[Bracket]:
        halved = []
        for name, bracket in zip(self.names, brackets, strict=True):
            counts = total[name].astype(np.int64)
            if (counts < bracket.under).any() or (counts > bracket.within).any():
                raise CorruptTotal("counts do not rise with the border: some client does not count as agreed")
            halved.append(bracket.halved(counts))
        return halved
