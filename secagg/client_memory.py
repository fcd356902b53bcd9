"""The memory of a client beyond one session: answered queries, groups, sessions, and what they cost.

Masks protect one sum. Only memory keeps the same private vector from being summed over two different sets of
clients, in two sessions or after a restart; the same holds for a budget that is spent over a lifetime. An
entry is made before the masked input leaves and is never removed.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final, Protocol, Self

from secagg.client_budget import Budget, Spend, sum_charge
from secagg.errors import SERVER, SessionLive
from secagg.hashing import DIGEST_BYTES
from secagg.noise.accounting import Adjacency
from secagg.query_context import Question, content_digest
from secagg.sequence_rules import SetLog, SumId, SumSequence
from secagg.sum_spec import SumSpec

NEVER: Final = -1


@dataclass(frozen=True, kw_only=True)
class SumFacts:
    """Facts about an answered sum, for readers of the ledger. None of them is secret.

    `query` is the digest of the query's frame, broadcast included; `cohort` and `roster` are sizes.
    """

    session: bytes
    sum_index: int
    kind: str
    query: bytes
    spec: SumSpec
    cohort: int
    roster: int


@dataclass(frozen=True, kw_only=True)
class AnswerEntry:
    """One answer that is about to leave.

    `content`    what was asked, as `question.content_digest` has it.
    `charge`     its privacy cost, in units of 2^-40 rho; None for a sum without noise.
    `adjacency`  the adjacency to which that charge refers.
    `sequences`  the sequences of sums to which it belongs, and
    `roster`     the ids of the clients that were asked; empty if it belongs to none.
    """

    group: str
    round_number: int
    content: bytes
    charge: int | None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    facts: SumFacts | None = None
    sum_id: SumId | None = None
    sequences: tuple[SumSequence, ...] = ()
    roster: tuple[int, ...] = ()

    @classmethod
    def to(
        cls,
        question: Question,
        *,
        group: str,
        adjacency: Adjacency,
        sequences: tuple[SumSequence, ...] = (),
    ) -> Self:
        """Return the entry of an answer to `question`, at the cost of its planned noise."""
        query, spec, roster = question.query, question.spec, len(question.roster)
        return cls(
            group=group,
            round_number=query.round,
            content=content_digest(query.kind, query.payload),
            charge=sum_charge(spec, roster=roster, adjacency=adjacency),
            adjacency=adjacency,
            facts=SumFacts(
                session=question.cohort.session,
                sum_index=question.sum_index,
                kind=query.kind,
                query=question.digest,
                spec=spec,
                cohort=question.cohort.size,
                roster=roster,
            ),
            sum_id=question.sum_id,
            sequences=sequences,
            roster=question.member_ids(question.roster) if sequences else (),
        )


class Memory(Protocol):
    """What a client machine needs to remember.

    `check_owner` raises if it is the memory of another client; `public_key` is empty if nothing is signed.
    `remember_*` return when the entry is safe. `remember_answer` raises, and remembers nothing, if the budget
    does not allow it, or if its cost cannot be added to what was spent (see `Spend.plus`): to check first and
    to spend later would let two processes spend the same remainder. A memory that processes share also
    refuses there what one of them has answered meanwhile.
    `remember_survivors` is for the sequences of the answer. Nothing is revealed before it has returned.
    `note_confirmed` is for readers of the ledger, and never raises because it could not be written.
    `tag` returns a code for `data` under a key that only the owner of the memory can read.

    `ClientLedger` is one that outlives the process, `VolatileMemory` one that does not.
    """

    def check_owner(self, member: int, public_key: bytes) -> None: ...
    def open_session(self) -> None: ...
    def close_session(self) -> None: ...
    def knows_session(self, session: bytes) -> bool: ...
    def remember_session(self, session: bytes, members: tuple[int, ...] = ()) -> None: ...
    def last_round(self, group: str) -> int: ...
    def knows_query(self, content: bytes) -> bool: ...
    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None: ...
    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...]) -> None: ...
    def note_confirmed(self, session: bytes, sum_index: int, contributors: int) -> None: ...
    def tag(self, data: bytes) -> bytes: ...
    @property
    def sets(self) -> SetLog: ...
    @property
    def spend(self) -> Spend: ...
    @property
    def registry(self) -> tuple[int, bytes]: ...
    def remember_registry(self, version: int, digest: bytes) -> None: ...


class VolatileMemory:
    """Memory that ends with the process: for simulations and tests.

    >>> VolatileMemory().spend.unnoised
    0
    """

    def __init__(self) -> None:
        self._live = False
        self._sessions: set[bytes] = set()
        self._queries: set[bytes] = set()
        self._rounds: dict[str, int] = {}
        self._spend = Spend()
        self._registry = (NEVER, b"")
        self._sets = SetLog()
        self._tag_key = secrets.token_bytes(DIGEST_BYTES)

    def check_owner(self, member: int, public_key: bytes) -> None:
        """Accept any owner: this memory has no name to compare."""

    def open_session(self) -> None:
        if self._live:
            raise SessionLive(SERVER, "this identity already takes part in a session")
        self._live = True

    def close_session(self) -> None:
        self._live = False

    def knows_session(self, session: bytes) -> bool:
        return session in self._sessions

    def remember_session(self, session: bytes, _members: tuple[int, ...] = ()) -> None:
        """Remember a session. Its members need not be kept: sets of clients have their ids."""
        self._sessions.add(session)

    def last_round(self, group: str) -> int:
        """Return the highest round in which a sum of `group` was answered, or `NEVER`."""
        return self._rounds.get(group, NEVER)

    def knows_query(self, content: bytes) -> bool:
        return content in self._queries

    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None:
        budget.check(self._spend, answer.charge)
        self.take_answer(answer)

    def take_answer(self, answer: AnswerEntry) -> None:
        """Record an answer that was allowed when it left."""
        self._spend = self._spend.plus(answer.charge, answer.adjacency)
        self._queries.add(answer.content)
        self._rounds[answer.group] = max(answer.round_number, self.last_round(answer.group))
        if answer.sequences and answer.sum_id is not None:
            self._sets.answer(answer.sum_id, answer.sequences, answer.roster)

    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...]) -> None:
        self._sets.confirm(sum_id, survivors)

    def tag(self, data: bytes) -> bytes:
        return hmac.digest(self._tag_key, data, "sha256")

    @property
    def sets(self) -> SetLog:
        """The sets of clients of the sums that belong to sequences."""
        return self._sets

    def note_confirmed(self, session: bytes, sum_index: int, contributors: int) -> None:
        """Discard the note: it is never read."""

    @property
    def spend(self) -> Spend:
        return self._spend

    @property
    def registry(self) -> tuple[int, bytes]:
        """Version and digest of the newest registry seen, or `NEVER`."""
        return self._registry

    def remember_registry(self, version: int, digest: bytes) -> None:
        if version > self._registry[0]:
            self._registry = (version, digest)
