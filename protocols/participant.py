"""One client across rounds: decodes queries, answers them, and keeps the memory of completed rounds.

What a client computes in a round, such as a personal model, becomes its memory only once it knows that the
round was completed and that it was counted at least once in every kind of sum that it answered. (Of several
sums over the same vector, the last may fail and the others stand.) Until then it holds both, old and new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm, ClientRound
from protocols.learner import Learner
from protocols.queries import RoundInfo
from protocols.serialisation import Vector, is_finite, pack, unpack
from secagg.errors import SERVER, MalformedMessage
from secagg.trust_levels import Trust

_NEVER = -1


@dataclass(frozen=True)
class _Saved:
    """A participant on disk: its memory, and its next memory if round `number` was completed.

    `unsure` are the kinds of sums that it answered then without knowing whether it was counted.
    """

    number: int
    memory: bytes
    pending: bytes | None
    unsure: tuple[str, ...]


class Participant:
    """A client of `algorithm`. Raises `ParameterError` if the algorithm is unsafe under `trust`.

    The caller calls `answer` for every query, `confirmed` when an answer is known to be in its sum, and
    `abandoned` when its sum was given up. It may call `apply_history` when a round is over; otherwise the
    next query carries the history. `member` is the client's id: it identifies the entry that says that the
    client was counted in a sum whose end it missed.
    """

    def __init__(
        self, algorithm: AnyAlgorithm, learner: Learner, *, trust: Trust | str, member: int | None = None
    ) -> None:
        algorithm.check_trust(Trust.parse(trust))
        self.learner = learner
        self._algorithm = algorithm
        self._memory: Any = algorithm.first_memory()
        self._number = _NEVER
        self._round: ClientRound[Any] | None = None
        self._pending: Any = None  # from before a restart: what round `_number` would leave
        self._binding = frozenset(each.query.kind for each in algorithm.sums() if each.binds)
        self._member = member
        self._last: str | None = None  # the kind of the last answer, if that matters to memory
        self._was_counted = False  # in an earlier sum of that kind
        self._answered: set[str] = set()  # kinds of sums of this round, and in which of them it was counted
        self._counted: set[str] = set()

    @property
    def memory(self) -> Any:
        """The memory of completed rounds. It never leaves this client."""
        return self._memory

    def personal(self, model: Vector) -> Vector:
        """Return the model that this client would use, given the common one."""
        return self._algorithm.personal(self._memory, model, self.learner)

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        """Return the values that a query asks for, or None if this client has no answer.

        There is none if training has diverged, or if a restart lost the state of this round. Raises
        `MalformedMessage` for a query that no honest server sends. `round_number` is that of the sum itself:
        it separates groups, and values trained for one must not be used in another. `invited` is how many
        clients are asked.
        """
        round_info, query = self._algorithm.query_decoder.decode(kind, payload)
        if self._algorithm.needs_all_clients and invited != self._algorithm.clients:
            raise MalformedMessage(SERVER, f"{invited} clients are asked, not all {self._algorithm.clients}")
        if round_number != round_info.number:
            raise MalformedMessage(SERVER, f"a query of round {round_info.number} in a sum of {round_number}")
        if round_info.number < self._number:
            raise MalformedMessage(
                SERVER, f"a query of round {round_info.number}, after one of {self._number}"
            )
        self.open(round_info)
        if self._round is None:
            return None
        values = self._round.answer(query)
        if not all(np.isfinite(each).all() for each in values.values()):
            self._last = None
            return self._nothing(kind)
        self._last = kind if kind in self._binding else None
        self._was_counted = kind in self._counted
        self._answered |= {kind} & self._binding
        return values

    def _nothing(self, kind: str) -> Mapping[str, ArrayLike] | None:
        """Return the answer of a client whose training has diverged.

        The server sees who is silent, which says something about the data. In a sum with noise that would
        reveal what noise is to protect, so zeros are sent. Without noise silence is better than a weight of
        zero, with which a client could be left out of a total unseen.
        """
        assert self._algorithm.table is not None  # there was a query
        spec = self._algorithm.table[kind]
        if not spec.is_private:
            return None
        return {
            part.name: np.zeros(part.size, np.uint64 if part.counts else np.float64) for part in spec.parts
        }

    def confirmed(self) -> None:
        """Note that the last answer is in its sum."""
        if self._last is not None:
            self._counted.add(self._last)

    def abandoned(self) -> None:
        """Note that the last sum was given up, with all clients' answers. The round may go on without it."""
        if self._last is not None and not self._was_counted:
            self._answered.discard(self._last)
            self._counted.discard(self._last)

    def open(self, round_info: RoundInfo) -> None:
        """Begin that round, unless it has begun."""
        if round_info.number > self._number:
            self.apply_history(round_info)
            self._number = round_info.number
            self._round = self._algorithm.client(self.learner, self._memory)
            self._answered, self._counted = set(), set()

    def apply_history(self, round_info: RoundInfo) -> None:
        """Read which earlier rounds were completed, and keep or discard the memory of the last one."""
        if round_info.number <= self._number:
            return
        self._counted |= {
            each.kind
            for each in round_info.unacknowledged
            if (each.member, each.round) == (self._member, self._number)
        }
        if round_info.completed(self._number) and self._answered <= self._counted:
            self._memory = self._made()
        self._round = self._pending = None

    def _made(self) -> Any:
        """Return the new memory if the current round is completed; unchanged if this client took no part."""
        if self._round is None:
            return self._memory if self._pending is None else self._pending
        if self._binding and not self._answered:
            return self._memory
        made = self._round.memory()
        if not isinstance(made, self._algorithm.memory_type):
            raise TypeError(
                f"memory() returned a {type(made).__name__}, but the algorithm's memory_type is "
                f"{self._algorithm.memory_type.__name__}"
            )
        return made if is_finite(made) else self._memory  # a personal model may diverge, too

    def insecure_rewind(self, number: int) -> None:
        """Prepare to take part in round `number` again, with the memory as it is."""
        if self._number >= number:
            self._number = number - 1
            self._round = self._pending = None

    # --- restarts ---

    def save(self) -> bytes:
        """Return all that has to survive a restart. It is private: it contains personal models."""
        made, unsure = self._made(), tuple(sorted(self._answered - self._counted))
        pending = None if made is self._memory else pack(made)
        return pack(_Saved(self._number, pack(self._memory), pending, unsure))

    def restore(self, saved: bytes) -> None:
        """Continue from the result of `save`. Raises `RecordError` if it is something else."""
        record = unpack(_Saved, saved)
        kind = self._algorithm.memory_type
        memory: Any = unpack(kind, record.memory)
        self._pending = None if record.pending is None else unpack(kind, record.pending)
        self._memory, self._number = memory, record.number
        self._round = None
        self._answered, self._counted = set(record.unsure), set()
