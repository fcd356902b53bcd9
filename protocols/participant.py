"""A client's side of a run, over all rounds: `Participant` answers queries and stores the client's memory.

The memory that a client computes in a round, such as a personal model, replaces its old memory only once the
client knows two facts: the round was completed, and the client was counted at least once in every kind of sum
that it answered. (Once is enough: of several sums over the same vector, the last may fail while the others
are valid.) Until then the client stores both the old and the new memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm, ClientRound
from protocols.learner import Learner
from protocols.rounds import RoundInfo
from protocols.serialisation import Vector, is_finite, pack, unpack
from secagg.errors import SERVER, MalformedMessage
from secagg.trust_levels import Trust
from secagg.usable_values import zero_values

_NEVER = -1


@dataclass(frozen=True)
class _Saved:
    """The saved state of a participant. `pending` replaces `memory` if round `number` was completed. `unsure`
    lists the kinds of sums of that round for which the client does not know whether it was counted."""

    number: int
    memory: bytes
    pending: bytes | None
    unsure: tuple[str, ...]


class Participant:
    """A client of a run. The constructor raises `ParameterError` if `algorithm` is unsafe under `trust`.

    The caller calls `answer` for every query, `confirmed` when an answer is known to be in its sum, and
    `abandoned` when the sum was given up. The caller may also call `apply_history` when a round is over;
    otherwise the next query does the same. `member` is the client's id. A client that missed the end of a sum
    looks for this id in the next `RoundInfo`, which lists such clients if they were counted.
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
        self._pending: Any = None  # after a restart: the next memory if round `_number` was completed
        self._binding = frozenset(each.query.kind for each in algorithm.sums() if each.binds)
        self._member = member
        self._last: str | None = None  # the kind of the last answer, if memory depends on it
        self._was_counted = False  # whether the client was counted in an earlier sum of that kind
        self._answered: set[str] = set()  # the kinds of sums that the client answered in this round
        self._counted: set[str] = set()  # the kinds of sums in which it was counted

    @property
    def memory(self) -> Any:
        """What the client remembers from completed rounds, such as a personal model. It is never sent."""
        return self._memory

    def personal(self, model: Vector) -> Vector:
        """Return this client's personal model, or the common one, `model`, if the client has none."""
        return self._algorithm.personal(self._memory, model, self.learner)

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        """Return the values that a query asks for, by part name, or None if this client has no answer. This
        is so if a restart lost the state of this round, or if training has diverged and the sum has no noise;
        with noise, it returns zeros.

        Raises `MalformedMessage` for a query that no honest server sends. `round_number` is the round of the
        sum, which must be that of the query: values that were trained for one round must not be used in
        another. `invited` is the number of clients that receive the query.
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
        """Return the answer of a client whose training has diverged: zeros if the sum has noise, else None.
        The server sees which clients do not answer, and could conclude that their training diverged. Noise is
        meant to hide such facts about a client's data, so in a sum with noise the client sends zeros. In a
        sum without noise it does not answer: zeros would be counted, but hide no other client's vector."""
        assert self._algorithm.table is not None  # there was a query
        spec = self._algorithm.table[kind]
        return zero_values(spec) if spec.is_private else None

    def confirmed(self) -> None:
        """Record that the last answer was counted in its sum."""
        if self._last is not None:
            self._counted.add(self._last)

    def abandoned(self) -> None:
        """Record that the sum of the last answer was given up for all clients. The round may continue."""
        if self._last is not None and not self._was_counted:
            self._answered.discard(self._last)
            self._counted.discard(self._last)

    def open(self, round_info: RoundInfo) -> None:
        """Apply the history and begin round `round_info.number`, unless it or a later round has begun."""
        if round_info.number > self._number:
            self.apply_history(round_info)
            self._number = round_info.number
            self._round = self._algorithm.client(self.learner, self._memory)
            self._answered, self._counted = set(), set()

    def apply_history(self, round_info: RoundInfo) -> None:
        """Do nothing unless `round_info` is of a later round than the client's last one, which is then over.
        Keep the memory that the client computed in that last round if the round was completed and the client
        was counted in every kind of sum that it answered; otherwise drop this memory."""
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
        """Return what the memory will be if the current round completes: still the old one if the client has
        answered nothing or the new one is not finite. Raises `TypeError` if the new one has a wrong type."""
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
        return made if is_finite(made) else self._memory  # a diverged personal model is discarded

    def insecure_rewind(self, number: int) -> None:
        """Forget that round `number`, or a later one, has begun, so that a simulation can repeat it with this
        client. Memory that the client has kept from completed rounds does not change."""
        if self._number >= number:
            self._number = number - 1
            self._round = self._pending = None

    # --- restarts ---

    def save(self) -> bytes:
        """Return the state that a restart needs, as bytes. They are private: they contain personal models."""
        made, unsure = self._made(), tuple(sorted(self._answered - self._counted))
        pending = None if made is self._memory else pack(made)
        return pack(_Saved(self._number, pack(self._memory), pending, unsure))

    def restore(self, saved: bytes) -> None:
        """Continue from the bytes that `save` returned. Raises `RecordError` if `saved` is something else."""
        record = unpack(_Saved, saved)
        kind = self._algorithm.memory_type
        memory: Any = unpack(kind, record.memory)
        self._pending = None if record.pending is None else unpack(kind, record.pending)
        self._memory, self._number = memory, record.number
        self._round = None
        self._answered, self._counted = set(record.unsure), set()
