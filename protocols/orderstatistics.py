"""The median and the trimmed mean of the clients' updates, in every coordinate, by bisection on counts.

"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" has both as robust aggregates. As
sums they are counts. Mind what they reveal: the median is, in each coordinate, the value of some client, and
it is released to the resolution that is asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.bisection import GROUP, Below, Bisection, Found
from protocols.learner import Learner
from protocols.record import Vector, as_vector
from protocols.vocabulary import Fact, Outcome, Query, Round, Steps
from secagg.errors import SERVER, MalformedMessage, ParameterError
from secagg.spec import LInf, Part, SumSpec

INSIDE = "inside"


@dataclass(frozen=True)
class Inside(Query):
    """The sum of the values that are above `low` and at most `high`, in each coordinate."""

    kind: ClassVar[str] = "inside"
    low: Vector
    high: Vector


@dataclass(frozen=True, kw_only=True)
class OrderStatistics(Algorithm[ModelState, NoMemory]):
    """Clients train from the common model; what follows are counts of their updates. All count the same.

    `reach`  largest size of an update in a coordinate; one beyond it counts as that.
    `steps`  halvings of [-reach, reach], one sum each: updates are told apart to reach * 2^(1 - steps).
    """

    two_statistics: ClassVar[bool] = False

    reach: float | None = None
    steps: int = 16

    def check(self) -> None:
        self.bisection  # noqa: B018  # raises what is wrong with the range

    @abstractmethod
    def ranks(self, clients: int) -> tuple[int, ...]:
        """Which of so many clients' values are searched, counted from the least."""

    @cached_property
    def bisection(self) -> Bisection:
        return Bisection(
            dim=self.dim, clients=self.clients, reach=self.reach, steps=self.steps, two=self.two_statistics
        )

    def sums(self) -> tuple[Sum, ...]:
        spec = SumSpec(parts=self.bisection.parts(), times=self.steps, group=GROUP)
        borders = "one border" if self.steps == 1 else f"each of up to {self.steps} borders"
        reveals = (
            f"in every coordinate, how many updates are below {borders}; so to within "
            f"{self.bisection.resolution:g}, what some client has there, though not which one"
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
    def _update(self, found: Found) -> Steps[Vector]:
        """How the model moves."""

    def client(self, learner: Learner, memory: NoMemory) -> CountingClient:  # noqa: ARG002
        return CountingClient(self.bisection, learner)


@dataclass(frozen=True, kw_only=True)
class MedianByCounts(OrderStatistics):
    """The model moves by the median of the updates in each coordinate; of an even number, the lower one.

    It is exact to half of the last bracket, reach * 2^-steps. If a client leaves on the way, the model moves
    by the shortest update that the counts so far allow, which is zero where they leave that open.
    """

    def ranks(self, clients: int) -> tuple[int, ...]:
        return ((clients + 1) // 2,)

    def _update(self, found: Found) -> Steps[Vector]:
        yield from ()  # the counts have said it all
        (median,) = found.brackets
        return median.middle if found.failure is None else median.nearest_to_zero


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(OrderStatistics):
    """The model moves by a mean of updates, in each coordinate without the largest and the smallest ones.

    `trim`  the part that is left out at each end, rounded down to whole clients.
    `bits`  of every coordinate in the last sum.

    Two bisections, side by side in the same sums, bracket the smallest and the largest value that stay. Then
    one more sum adds up what lies between the brackets. Within them, clients cannot be told apart: each that
    stays counts as the middle of its bracket, and counts say how many these are, so ties at the edges do not
    matter. The result is exact to reach * 2^-steps, and the rounding of one sum.

    In the last sum, clients contribute zero outside a range that the server chose. A malicious one could
    choose it such that one client is alone in it, so such servers are refused. If a client leaves before that
    sum, the round is given up.
    """

    two_statistics: ClassVar[bool] = True

    trim: float = 0.1
    bits: int = 32

    def check(self) -> None:
        super().check()
        checks.real("trim", self.trim, 0)
        if self.trim >= 0.5:
            raise ParameterError(
                f"trim must be less than a half, or nobody is left; not {self.trim!r}", parameter="trim"
            )
        checks.whole("bits", self.bits, 2, 64)

    def ranks(self, clients: int) -> tuple[int, ...]:
        left_out = int(self.trim * clients)
        return left_out + 1, clients - left_out

    def sums(self) -> tuple[Sum, ...]:
        part = Part(name=INSIDE, size=self.dim, bits=self.bits, bound=LInf(self.bisection.limit))
        reveals = "in every coordinate, the sum of the updates within a range that the server chose"
        spec = SumSpec(parts=(part,), group=GROUP)
        return *super().sums(), Sum(query=Inside, spec=spec, reveals=reveals, least_weight=0.0)

    def _update(self, found: Found) -> Steps[Vector]:
        if found.failure is not None:
            raise found.failure
        lower, upper = found.brackets
        total = yield Inside(as_vector(lower.high), as_vector(upper.low))
        apart = lower.high <= upper.low  # otherwise both are the same bracket, and nothing lies between
        edges = (lower.within - lower.rank + 1) * lower.middle + (upper.rank - upper.under) * upper.middle
        mean = (np.asarray(total[INSIDE], np.float64) + edges) / (upper.rank - lower.rank + 1)
        return np.where(apart, mean, lower.middle)


class CountingClient(ClientRound[NoMemory]):
    """Trains once, when the first question brings the model; all sums are over the update it comes to."""

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
