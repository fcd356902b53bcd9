"""A client's side of training, for one identity: it answers queries and keeps its state over restarts.

The owner passes it the questions and the events of a `secagg.net` client or of a machine. It keeps personal
models and other memory in a `StateStore`. The state is stored before an answer leaves, so that a client whose
process is killed at any moment knows what it has computed.

Answers are computed in one thread while events arrive in another, which must not wait. One thread at a time
uses the participant: what an event says is recorded as soon as the answer is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from numpy.typing import ArrayLike

from protocols.learner import calls_of, set_calls
from protocols.participant import Participant
from protocols.rounds import RoundInfo
from protocols.serialisation import Vector, pack, unpack
from secagg.events import Abandoned, Asked, Confirmed, Joined

BeginRound = Callable[[int], None]


class StateStore(Protocol):
    """Stores the state of a client durably. `load` returns the last state, or None if there is none."""

    def load(self) -> bytes | None: ...
    def save(self, state: bytes) -> None: ...


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run: `round_info` says which rounds were completed, and `model` is the final one."""

    round_info: RoundInfo
    model: Vector


@dataclass(frozen=True, repr=False)  # it contains personal models
class _Saved:
    participant: bytes
    calls: int | None  # of the learner


@dataclass(frozen=True, eq=False)
class _TooLate:
    """The answer to a question was not sent."""

    asked: Asked


def no_schedule(_round: int) -> None:
    pass


class ClientRuntime:
    """Answers the queries of a run, as `participant` does, and stores the participant's state. `begin_round`
    is called with the number of each round before its first answer, for a schedule of learning rates. The
    constructor restores the stored state. It raises `RecordError` if that is not one of this run. Without a
    `store`, the owner saves the participant between rounds, if at all."""

    def __init__(
        self, participant: Participant, store: StateStore | None = None, begin_round: BeginRound = no_schedule
    ) -> None:
        self._participant = participant
        self._store = store
        self._begin_round = begin_round
        self._asked: Asked | None = None  # the question that was answered last
        self._answering: int | None = None  # the index of its sum, if that is one of the current session
        self._in_use = Lock()  # held by the thread that uses the participant
        self._happened: deque[object] = deque()  # events that came meanwhile
        if store is not None and (saved := store.load()) is not None:
            record = unpack(_Saved, saved)
            participant.restore(record.participant)
            set_calls(participant.learner, record.calls)

    @property
    def participant(self) -> Participant:
        return self._participant

    def answer(self, asked: Asked) -> Mapping[str, ArrayLike] | None:
        """Return the values that `asked` asks for, by part name; None if this client has no answer. Raise
        `MalformedMessage` for a query that no honest server sends."""
        with self._alone():
            self._asked = self._answering = None
            self._begin_round(asked.round)
            values = self._participant.answer(
                asked.kind, asked.payload, round_number=asked.round, invited=asked.invited
            )
            self._asked, self._answering = asked, asked.sum_index
            self._keep()
            return values

    def too_late(self, asked: Asked) -> None:
        """Record that the answer to `asked` was not sent, because its sum was over. Do nothing if there is
        none: the sum was over before it was computed."""
        self.on_event(_TooLate(asked))

    def on_event(self, event: object) -> None:
        """Record what an event of the client's machine says about the last answer. If another thread computes
        an answer, that thread does so afterwards; this call never waits."""
        self._happened.append(event)
        self._catch_up()

    def announce(self, round_info: RoundInfo) -> None:
        """Record which of the rounds before `round_info.number` were completed. Wait for another thread that
        computes an answer."""
        with self._alone():
            self._participant.apply_history(round_info)
            self._keep()

    def finish(self, outcome: RunOutcome) -> Vector:
        """Apply the outcome of the last round. Return this client's personal model, or the common one. If
        that takes training, its learning rate is that of the last round, also for a client that was not in
        it."""
        self.announce(outcome.round_info)
        with self._alone():
            self._begin_round(max(outcome.round_info.number - 1, 0))
            return self._participant.personal(outcome.model)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context manager: no other thread uses the participant. Then record the events that came."""
        try:
            with self._in_use:
                yield
        finally:
            self._catch_up()

    def _catch_up(self) -> None:
        """Record the events that came, unless another thread uses the participant: it calls this at the end,
        after the lock is free, so that no event is left."""
        while self._happened and self._in_use.acquire(blocking=False):
            try:
                while self._happened:
                    self._record(self._happened.popleft())
            finally:
                self._in_use.release()

    def _record(self, event: object) -> None:
        match event:
            case Joined():
                self._answering = None  # another session, which counts its sums from 0
            case Confirmed(sum_index) if sum_index == self._answering:
                self._participant.confirmed()
                self._keep()
            case Abandoned(sum_index) if sum_index == self._answering:
                self._participant.abandoned()
                self._keep()
            case _TooLate(asked) if asked is self._asked:
                self._participant.abandoned()
                self._keep()

    def _keep(self) -> None:
        if self._store is not None:
            participant = self._participant
            self._store.save(pack(_Saved(participant.save(), calls_of(participant.learner))))
