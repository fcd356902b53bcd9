"""A client's side of training, for one identity: it answers queries and keeps its state over restarts.

The owner passes it the questions and the events of a `secagg.net` client or of a machine. It keeps personal
models and other memory in a `StateStore`. The state is stored before an answer leaves, so that a client whose
process is killed at any moment knows what it has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from protocols.participant import Participant
from protocols.rounds import RoundInfo
from protocols.serialisation import Vector
from secagg.events import Abandoned, Asked, Confirmed

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


def no_schedule(_round: int) -> None:
    pass


class ClientRuntime:
    """Answers the queries of a run, as `participant` does, and stores the participant's state. `begin_round`
    is called with the number of each round before its first answer, for a schedule of learning rates. The
    constructor restores the stored state. It raises `RecordError` if that is not one of this run."""

    def __init__(
        self, participant: Participant, store: StateStore, begin_round: BeginRound = no_schedule
    ) -> None:
        self._participant = participant
        self._store = store
        self._begin_round = begin_round
        self._answering: int | None = None  # the sum that was answered last in this session
        if (saved := store.load()) is not None:
            participant.restore(saved)

    @property
    def participant(self) -> Participant:
        return self._participant

    def answer(self, asked: Asked) -> Mapping[str, ArrayLike] | None:
        """Return the values that `asked` asks for, by part name; None if this client has no answer. Raise
        `MalformedMessage` for a query that no honest server sends."""
        self._begin_round(asked.round)
        values = self._participant.answer(
            asked.kind, asked.payload, round_number=asked.round, invited=asked.invited
        )
        self._answering = asked.sum_index
        self._keep()
        return values

    def too_late(self) -> None:
        """Record that the last answer was not sent, because its sum was over."""
        self._participant.abandoned()
        self._keep()

    def on_event(self, event: object) -> None:
        """Record what an event of the client's machine says about the last answer."""
        match event:
            case Confirmed():
                self._participant.confirmed()
                self._keep()
            case Abandoned(sum_index) if sum_index == self._answering:
                self._participant.abandoned()
                self._keep()

    def finish(self, outcome: RunOutcome) -> Vector:
        """Apply the outcome of the last round. Return this client's personal model, or the common one."""
        self._participant.apply_history(outcome.round_info)
        self._keep()
        return self._participant.personal(outcome.model)

    def _keep(self) -> None:
        self._store.save(self._participant.save())
