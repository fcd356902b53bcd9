"""The types that algorithms are written in: queries that are answered by sums, and rounds that ask them.

A round is a generator. It yields a query, receives the total of the clients' answers, and in the end returns
the new state:

    def round(self, state: State) -> Round[State]:
        total = yield Update(state.model)
        return Outcome(State(state.model + total["update"] / total.count))

So every `yield` of an algorithm is a sum, and nothing else ever reaches it from a client. A sum that fails is
an exception at its `yield`; an algorithm that does not catch it keeps the state it had.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, cast

from protocols.serialisation import RecordError, largest_of, pack, unpack, vectors_of
from secagg.errors import SERVER, LocalError, MalformedMessage, ParameterError, SumFailed
from secagg.sum_spec import Total

S = TypeVar("S")
Fact: TypeAlias = int | float | str
# The largest number of a query. A model with larger ones is of no use, and local steps from there overflow or
# not depending on a client's data: a client that then declines would reveal that. Such queries are refused.
LARGEST: Final = 2.0**40
_REMEMBERED: Final = 63  # earlier rounds whose completion is recorded


@dataclass(frozen=True)
class Query:
    """A query to all clients. Subclasses are frozen records, and `kind` is the name of their sum.

    >>> @dataclass(frozen=True)
    ... class Assign(Query):
    ...     kind: ClassVar[str] = "assign"
    ...     centres: Vector
    """

    kind: ClassVar[str]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """The result of a round. `facts` are for the report: why it stopped, how far it moved.

    >>> Outcome("the next state", {"moved": 0.5}).facts["moved"]
    0.5
    """

    state: S
    facts: Mapping[str, Fact] = field(default_factory=dict)


Round: TypeAlias = Generator[Query, Total, Outcome[S]]
# A part of a round that several algorithms share; to be used with `yield from`.
Steps: TypeAlias = Generator[Query, Total, S]
Ask: TypeAlias = Callable[[Query], Total]


def run_round(steps: Generator[Query, Total, S], ask: Ask) -> S:
    """Run a round: answer every query through `ask`, whose failures are raised at the round's `yield`.

    Returns what the generator returns; raises what it does not catch.

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
    """An answer that was counted in a sum, of a client that left before it was acknowledged."""

    member: int
    round: int
    kind: str


@dataclass(frozen=True)
class RoundInfo:
    """The number of a round, and which earlier rounds were completed.

    `number`   counts attempts. It rises with every round, completed or not, and is never used twice.
    `history`  bit k says whether round `number - 1 - k` was completed, for the last 63.
    `unacknowledged`  answers that were counted, of clients that do not know it yet. The channel adds them.

    Every query carries it: clients that answered in an earlier round learn from it whether the memory that
    they made then is to be kept.

    Raises `RecordError` for a number or a history that cannot be.

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
        """Return this with those of `unacknowledged` that are recent enough."""
        return replace(
            self, unacknowledged=tuple(each for each in unacknowledged if self._remembers(each.round))
        )

    def next(self, *, completed: bool) -> RoundInfo:
        history = (self.history << 1 | completed) & ((1 << _REMEMBERED) - 1)
        return RoundInfo(self.number + 1, history)

    def completed(self, number: int) -> bool:
        """Whether that earlier round was completed. One of too long ago counts as completed: most are."""
        if not self._remembers(number):
            return 0 <= number < self.number
        return bool(self.history >> (self.number - 1 - number) & 1)

    def _remembers(self, number: int) -> bool:
        return 0 <= self.number - 1 - number < _REMEMBERED


@dataclass(frozen=True)
class _QueryPayload:
    """The content of a query's payload."""

    round_info: RoundInfo
    query: bytes


def encode_query(round_info: RoundInfo, query: Query) -> bytes:
    """Return the payload of a query. It holds the round's number, so no two rounds have the same payload."""
    return pack(_QueryPayload(round_info, pack(query)))


def query_content(_kind: str, payload: bytes) -> bytes:
    """Return the query in a payload, without the information about the round.

    Return the whole payload if there is no query in it: a client refuses it when it decodes it.
    """
    try:
        return unpack(_QueryPayload, payload).query
    except RecordError:
        return payload


class QueryDecoder:
    """Decodes the queries of an algorithm, and checks the length of all vectors in them.

    `dim`      of every vector, except
    `lengths`  of those named here, by the kind of their query.
    """

    def __init__(
        self,
        queries: tuple[type[Query], ...],
        dim: int,
        lengths: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> None:
        kinds = [query.kind for query in queries]
        if len(set(kinds)) != len(kinds):
            raise ParameterError("two queries of an algorithm have the same kind")
        self._queries: Mapping[str, type[Query]] = MappingProxyType(dict(zip(kinds, queries, strict=True)))
        self._dim = dim
        self._lengths = lengths

    def decode(self, kind: str, payload: bytes) -> tuple[RoundInfo, Query]:
        """Return the query that a server sent. Raises `MalformedMessage` if it is not one."""
        try:
            letter = unpack(_QueryPayload, payload)
            query = unpack(self._queries[kind], letter.query)
            if encode_query(letter.round_info, query) != payload:
                raise RecordError("the same could be written shorter")
        except (KeyError, LocalError) as error:  # a record may reject values with any error
            raise MalformedMessage(SERVER, f"a query that cannot be read: {error}") from None
        for name, vector in vectors_of(query).items():
            length = self._lengths.get(kind, {}).get(name, self._dim)
            if len(vector) != length:
                raise MalformedMessage(SERVER, f"{name} has {len(vector)} elements, not {length}")
        if largest_of(query) > LARGEST:
            raise MalformedMessage(SERVER, f"numbers beyond {LARGEST:g}")
        return letter.round_info, query
