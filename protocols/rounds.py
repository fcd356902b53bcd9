"""Rounds as generators of queries, which sums answer; what rounds return, and their numbers and history.

A round is a generator. It yields queries, receives the totals of clients' answers, and returns the new state:

    def round(self, state: State) -> Round[State]:
        total = yield Update(state.model)
        return Outcome(State(state.model + total["update"] / total.count))

So every `yield` of an algorithm is a sum, and the algorithm receives no other data from clients. If a sum
fails, its `yield` raises an exception. If the algorithm does not catch it, the state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, cast

from protocols.serialisation import RecordError
from secagg.errors import SumFailed
from secagg.sum_spec import Total

S = TypeVar("S")
Fact: TypeAlias = int | float | str
_REMEMBERED: Final = 63  # earlier rounds whose completion is recorded


@dataclass(frozen=True)
class Query:
    """The base class of queries to clients. Subclasses are frozen dataclasses; `kind` names the kind of sum.

    >>> @dataclass(frozen=True)
    ... class Assign(Query):
    ...     kind: ClassVar[str] = "assign"
    ...     centres: Vector
    """

    kind: ClassVar[str]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """The result of a round: the new state, and `facts`, named values for reports and logs.

    >>> Outcome("the next state", {"moved": 0.5}).facts["moved"]
    0.5
    """

    state: S
    facts: Mapping[str, Fact] = field(default_factory=dict)


Round: TypeAlias = Generator[Query, Total, Outcome[S]]
# A part of a round, to be used with `yield from`.
Steps: TypeAlias = Generator[Query, Total, S]
Ask: TypeAlias = Callable[[Query], Total]


def run_round(steps: Generator[Query, Total, S], ask: Ask) -> S:
    """Run the generator `steps`: send it the result of `ask` for every query that it yields.

    If `ask` raises `SumFailed`, the generator's `yield` raises it. Returns the generator's return value.

    >>> from protocols.fedavg import FedAvg
    >>> algorithm = FedAvg(dim=2, clients=3, clip=1.0, weighted=False)
    >>> total = Total({"update": np.array([3.0, 6.0])}, count=3, invited=3)
    >>> run_round(algorithm.round(algorithm.start(np.zeros(2))), lambda query: total).state.model
    array([1., 2.])
    """
    advance: Callable[[Any], Query] = steps.send
    value: object = None
    with closing(steps):
        while True:
            try:
                query = advance(value)
            except StopIteration as stop:
                return cast(S, stop.value)
            try:
                advance, value = steps.send, ask(query)
            except SumFailed as failure:
                advance, value = steps.throw, failure


@dataclass(frozen=True)
class UnacknowledgedAnswer:
    """An answer of client `member` that is in a sum. The client disconnected before it could learn this."""

    member: int
    round: int
    kind: str


@dataclass(frozen=True)
class RoundInfo:
    """The number of a round, and which earlier rounds were completed. Every query carries a `RoundInfo`: it
    tells clients that answered in an earlier round whether to keep the memory computed then.

    `number`   number of this round. It rises with every round, completed or not, and is never used twice.
    `history`  bit k says whether round `number - 1 - k` was completed, for the last 63 rounds.
    `unacknowledged`  counted answers whose clients do not know this yet. The server's `SumChannel` adds them.

    The constructor raises `RecordError` for an impossible number or history.

    >>> info = RoundInfo().next(completed=True)
    >>> info.number, info.completed(0)
    (1, True)
    """

    number: int = 0
    history: int = 0
    unacknowledged: tuple[UnacknowledgedAnswer, ...] = ()

    def __post_init__(self) -> None:
        if self.number < 0 or not 0 <= self.history < 1 << min(self.number, _REMEMBERED):
            raise RecordError(
                f"a round has a number from 0, and a history of as many bits, {_REMEMBERED} at most"
            )

    def with_unacknowledged(self, unacknowledged: Iterable[UnacknowledgedAnswer]) -> RoundInfo:
        """Return a copy with those entries of `unacknowledged` whose rounds are among the last 63."""
        remembered = tuple(each for each in unacknowledged if self._remembers(each.round))
        return replace(self, unacknowledged=remembered)

    def next(self, *, completed: bool) -> RoundInfo:
        history = (self.history << 1 | completed) & ((1 << _REMEMBERED) - 1)
        return RoundInfo(self.number + 1, history)

    def completed(self, number: int) -> bool:
        """Return whether round `number` was completed. Rounds before the last 63 count as completed."""
        if not self._remembers(number):
            return 0 <= number < self.number
        return bool(self.history >> (self.number - 1 - number) & 1)

    def _remembers(self, number: int) -> bool:
        return 0 <= self.number - 1 - number < _REMEMBERED
