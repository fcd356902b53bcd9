"""Runs the server's side of an algorithm. Each round either completes or leaves the state unchanged."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from protocols.algorithm import Algorithm
from protocols.rounds import Fact, Outcome, Query, RoundInfo, run_round
from protocols.serialisation import Vector, pack, unpack
from secagg.errors import ParameterError, SumFailed
from secagg.sum_spec import Total

S = TypeVar("S")


class SumChannel(Protocol):
    """The interface by which a `Run` asks its clients: queries go out, totals come back."""

    def begin(self, round_info: RoundInfo) -> None:
        """Begin a round. Raises `SumFailed` if there are too few clients."""

    def ask(self, query: Query) -> Total:
        """Return the total of the clients' answers to `query`. Raises `SumFailed` if the sum fails."""

    def finish(self, round_info: RoundInfo) -> None:
        """End the round. `round_info` is that of the next round; it says whether this one was completed."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round. The numbers are computed from totals only.

    `sums`     number of successful sums, by kind.
    `clients`  number of clients in that of these sums which has the fewest; 0 if there is none.
    `facts`    the facts of the round's `Outcome`; empty if the round failed.
    `failure`  why the round was given up, with the state unchanged; None if the round completed.

    >>> RoundReport(number=3, sums={"update": 1}, clients=98).completed
    True
    """

    number: int
    sums: Mapping[str, int]
    clients: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    failure: SumFailed | None = None

    @property
    def completed(self) -> bool:
        return self.failure is None


@dataclass(frozen=True)
class _Saved:
    round_info: RoundInfo
    state: bytes


class Run(Generic[S]):
    """The server's side of an algorithm's rounds. Between rounds it keeps only `state` and `round_info`.

    If a sum fails, `round` does not raise but returns a `RoundReport` with the failure. The constructor and
    `round` raise `TypeError` or `ParameterError` for a state that does not fit the algorithm.

    >>> from protocols.fedavg import FedAvg
    >>> from protocols.quadratic_learner import QuadraticLearner
    >>> from sims.runtime import Setting, insecure_plain_sum
    >>> algorithm = FedAvg(dim=2, clients=3, clip=10.0)
    >>> learners = {k: QuadraticLearner(np.array([1.0, float(k)])) for k in range(3)}
    >>> run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.zeros(2)))
    >>> reports = [run.round() for _ in range(20)]
    >>> reports[-1].completed, reports[-1].sums
    (True, {'update': 1})
    >>> run.model.round(3)  # the mean of the clients' best models
    array([1., 1.])
    """

    def __init__(
        self, algorithm: Algorithm[S, Any], channel: SumChannel, state: S, round_info: RoundInfo | None = None
    ) -> None:
        self._algorithm = algorithm
        self._channel = channel
        self._check_state(state)
        self.state = state
        self.round_info = RoundInfo() if round_info is None else round_info

    @property
    def model(self) -> Vector:
        return self._algorithm.model(self.state)

    def round(self) -> RoundReport:
        """Run one round and return its report. If a sum failed, the report says why, and `state` is
        unchanged. Raises `TypeError` or `ParameterError` if the algorithm's round returns an unfit result."""
        round_info, log = self.round_info, _Log(self._channel)
        self.round_info = round_info.next(completed=False)  # even if the round fails, its number is used up
        try:
            self._channel.begin(round_info)
            steps = self._algorithm.round(self.state)
            if not isinstance(steps, Generator):
                raise TypeError(
                    "the round of an algorithm must be a generator; without sums, `yield from ()`"
                )
            outcome = run_round(steps, log.ask)
            if not isinstance(outcome, Outcome):
                raise TypeError(f"a round must return an Outcome, not a {type(outcome).__name__}")
            self._check_state(outcome.state)
        except SumFailed as failure:
            self._channel.finish(self.round_info)
            return RoundReport(round_info.number, log.sums, log.clients, failure=failure)
        self.state = outcome.state
        self.round_info = round_info.next(completed=True)
        self._channel.finish(self.round_info)
        return RoundReport(round_info.number, log.sums, log.clients, outcome.facts)

    def _check_state(self, state: S) -> None:
        """Raise `TypeError` or `ParameterError` if the state does not fit the algorithm."""
        kind = self._algorithm.state_type
        if not isinstance(state, kind):
            raise TypeError(f"a state must be a {kind.__name__}, the algorithm's state_type; see its start()")
        size = len(self._algorithm.model(state))
        if size != self._algorithm.dim:
            raise ParameterError(
                f"the model has {size} parameters, but the algorithm is for {self._algorithm.dim}"
            )

    def save(self) -> bytes:
        """Return the state that a restart needs, as bytes. Call it only between two rounds."""
        return pack(_Saved(self.round_info, pack(self.state)))

    @classmethod
    def resume(
        cls, algorithm: Algorithm[S, Any], channel: SumChannel, saved: bytes, *, interrupted: bool = False
    ) -> Self:
        """Return a run that continues from `saved`, the result of `save`. Raises `RecordError` for other
        bytes. If `interrupted`, a round may have begun after `save`, and its number is skipped: clients would
        refuse its queries, because repeated sums of different clients can reveal a single answer."""
        record = unpack(_Saved, saved)
        round_info = record.round_info.next(completed=False) if interrupted else record.round_info
        return cls(algorithm, channel, unpack(algorithm.state_type, record.state), round_info)


class _Log:
    """Passes queries to a channel. Keeps the number of sums by kind, and of clients in the last sum."""

    def __init__(self, channel: SumChannel) -> None:
        self._channel = channel
        self.sums: dict[str, int] = {}
        self.clients = 0

    def ask(self, query: Query) -> Total:
        total = self._channel.ask(query)
        self.clients = min(total.count, self.clients) if self.sums else total.count
        self.sums[query.kind] = self.sums.get(query.kind, 0) + 1
        return total
