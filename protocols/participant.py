"""One client across rounds: it understands queries, answers them, and keeps what completed rounds leave.

What a client makes in a round, such as a personal model, becomes its memory only once it knows that the round
was completed and that all its answers were counted. Until then it holds both, the old and the new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm, ClientRound
from protocols.learner import Learner
from protocols.record import Vector, is_finite, pack, unpack
from protocols.vocabulary import Turn
from secagg.errors import SERVER, MalformedMessage
from secagg.thresholds import Trust

_NEVER = -1


@dataclass(frozen=True)
class _Saved:
    """A participant on disk: its memory, and what becomes of it if round `number` was completed."""

    number: int
    memory: bytes
    pending: bytes | None


class Participant:
    """A client of `algorithm`. Raises `ParameterError` if the algorithm is unsafe under `trust`.

    Whoever runs it calls `answer` for every query, `confirmed` when an answer is known to be in its sum, and
    may call `learn` when a round is over; otherwise it learns that from the next query.
    """

    def __init__(self, algorithm: AnyAlgorithm, learner: Learner, *, trust: Trust | str) -> None:
        algorithm.check_trust(Trust.parse(trust))
        self.learner = learner
        self._algorithm = algorithm
        self._memory: Any = algorithm.first_memory()
        self._number = _NEVER
        self._round: ClientRound[Any] | None = None
        self._pending: Any = None  # from before a restart: what round `_number` would leave
        self._binding = frozenset(each.query.kind for each in algorithm.sums() if each.binds)
        self._last_binds = False
        self._open_answers = 0
        self._answers = 0

    @property
    def memory(self) -> Any:
        """What completed rounds have left. It never leaves this client."""
        return self._memory

    def personal(self, model: Vector) -> Vector:
        """The model that this client would use, given the common one."""
        return self._algorithm.personal(self._memory, model, self.learner)

    def answer(
        self, kind: str, payload: bytes, *, round_number: int | None = None
    ) -> Mapping[str, ArrayLike] | None:
        """The values that a query asks for, or None if this client has nothing sensible to say.

        Training may have diverged, or a restart may have lost the notes of this round. Raises
        `MalformedMessage` for what no honest server would send. `round_number` is the one under which the
        sum itself runs: groups are kept apart by it, and what is trained for one belongs in no other.
        """
        turn, query = self._algorithm.phrasebook.decode(kind, payload)
        if round_number is not None and round_number != turn.number:
            raise MalformedMessage(SERVER, f"a query of round {turn.number} in a sum of {round_number}")
        if turn.number < self._number:
            raise MalformedMessage(SERVER, f"a query of round {turn.number}, after one of {self._number}")
        self.open(turn)
        if self._round is None:
            return None
        values = self._round.answer(query)
        if not all(np.isfinite(each).all() for each in values.values()):
            return None
        self._last_binds = kind in self._binding
        self._answers += self._last_binds
        self._open_answers += self._last_binds
        return values

    def confirmed(self) -> None:
        """The last answer is in its sum."""
        self._open_answers -= self._last_binds

    def open(self, turn: Turn) -> None:
        """Begin that round, unless it has begun."""
        if turn.number > self._number:
            self.learn(turn)
            self._number = turn.number
            self._round = self._algorithm.client(self.learner, self._memory)
            self._answers = self._open_answers = 0

    def learn(self, turn: Turn) -> None:
        """Hear what became of earlier rounds, and keep or forget what was made in the last one."""
        if turn.number <= self._number:
            return
        if turn.completed(self._number):
            self._memory = self._next_memory()
        self._round = self._pending = None

    def _next_memory(self) -> Any:
        """What remains of the current round if it is completed."""
        if self._round is not None and self._counted:
            made = self._round.memory()
            return made if is_finite(made) else self._memory  # a personal model may diverge, too
        return self._memory if self._pending is None else self._pending

    @property
    def _counted(self) -> bool:
        return self._open_answers == 0 and (self._answers > 0 or not self._binding)

    def insecure_forget(self, number: int) -> None:
        """Be ready to take part in round `number` again, with the memory as it is."""
        if self._number >= number:
            self._number = number - 1
            self._round = self._pending = None

    # --- restarts ---

    def save(self) -> bytes:
        """All that has to survive a restart. It is private: whoever reads it reads personal models."""
        upcoming = self._next_memory()
        pending = None if upcoming is self._memory else pack(upcoming)
        return pack(_Saved(self._number, pack(self._memory), pending))

    def restore(self, saved: bytes) -> None:
        """Go on from what `save` gave. Raises `RecordError` if it is something else."""
        record = unpack(_Saved, saved)
        kind = self._algorithm.memory_type
        memory: Any = unpack(kind, record.memory)
        self._pending = None if record.pending is None else unpack(kind, record.pending)
        self._memory, self._number = memory, record.number
        self._round = None
        self._answers = self._open_answers = 0
