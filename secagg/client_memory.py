"""The memory that a client keeps across sessions: answered queries, groups, sessions, and privacy costs.

Masks protect only one sum. If a client forgot its answers after a session or a restart, a server could sum
the same private vector again over another set of clients, or exceed the client's lifetime budget. So each
answer is recorded before the masked input is sent, and no entry is ever removed.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol, Self

from secagg.client_budget import Budget, Spend, sum_charge
from secagg.differencing_rules import SetLog, SumId, SumSequence
from secagg.errors import SERVER, SessionLive
from secagg.hashing import DIGEST_BYTES
from secagg.noise.zcdp_cost import Adjacency
from secagg.query_context import Question, content_digest
from secagg.sum_spec import SumSpec, Table

NEVER: Final = -1


@dataclass(frozen=True, kw_only=True)
class SumFacts:
    """Public facts about an answered sum, for auditors. Of the session's `cohort`, `roster` were asked."""

    session: bytes
    sum_index: int
    kind: str
    query: bytes  # the digest of the query's frame
    spec: SumSpec
    cohort: int
    roster: int  # those asked


@dataclass(frozen=True, kw_only=True)
class AnswerEntry:
    """The record of one answer to a query. It is stored before the answer is sent.

    `group`      `Table.remembered_group` of the sum: sums of the same vector (see `secagg.sum_group_rules`).
    `content`    the digest of the query's kind and payload (`query_context.content_digest`).
    `charge`     the privacy cost of the sum, in units of 2^-40 rho; None for a sum without noise.
    `adjacency`  the adjacency to which that charge refers.
    `sequences`  the sequences of sums to which the sum belongs (see `secagg.differencing_rules`).
    `roster`     the ids of the clients that were asked; empty if there are no sequences.
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
        table: Table,
        *,
        adjacency: Adjacency,
        sequences: tuple[SumSequence, ...] = (),
    ) -> Self:
        """Return the record of an answer to `question`. The privacy charge is computed from its noise."""
        query, spec, roster = question.query, question.spec, len(question.roster)
        return cls(
            group=table.remembered_group(query.kind),
            round_number=query.round,
            content=content_digest(query.kind, query.payload, table.terms),
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
    """The interface of a client's memory. `ClientLedger` keeps it on disk, `VolatileMemory` in the process.

    `check_owner` raises if the memory belongs to another client. `public_key` is empty without signatures.
    `check_process` raises in a process that was forked from the one that opened a memory on disk: two copies
    of a client could sign two survivor sets of one sum.
    The `remember_*` methods return only after the entry is stored safely.
    `remember_answer` raises, and stores nothing, if the budget does not allow the charge, or if the charge
    cannot be added to the spend (see `Spend.plus`). It checks and stores in one step, so that two processes
    together cannot exceed the budget. A memory shared by processes also raises for an answered query.
    `remember_survivors` stores a set of clients for the comparisons of `secagg.differencing_rules`. A client
    calls it before it reveals any share, or with no survivors if the sum ended without a total. Before it
    signs survivors that others have not confirmed, it calls it with `settled` false.
    `note_confirmed` records for auditors how many clients a sum had. It does not raise if it cannot write.
    `tag` returns a code of `data` under this client's secret key, to recognise values without storing them.
    """

    def check_owner(self, member: int, public_key: bytes) -> None: ...
    def hand_over(self, member: int, public_key: bytes) -> None: ...
    def check_process(self) -> None: ...
    def open_session(self) -> None: ...
    def close_session(self) -> None: ...
    def knows_session(self, session: bytes) -> bool: ...
    def remember_session(self, session: bytes) -> None: ...
    def last_round(self, group: str) -> int: ...
    def knows_query(self, content: bytes) -> bool: ...
    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None: ...
    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...], *, settled: bool) -> None: ...
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
    """A `Memory` of past answers and their cost that ends with the process, for simulations and tests.

    >>> VolatileMemory().knows_session(b"a session id")
    False
    """

    def __init__(self) -> None:
        self._live = False
        self._sessions: set[bytes] = set()
        self._queries: set[bytes] = set()
        self._rounds: dict[str, int] = {}
        self._spend = Spend()
        self._charges: Counter[str] = Counter()  # of sums with noise, by group
        self._registry = (NEVER, b"")
        self._sets = SetLog()
        self._tag_key = secrets.token_bytes(DIGEST_BYTES)

    def check_owner(self, member: int, public_key: bytes) -> None:
        """Accept any owner, because this memory does not record its owner."""

    def hand_over(self, member: int, public_key: bytes) -> None:
        """Accept any key, because this memory does not record its owner."""

    def check_process(self) -> None:
        """Accept any process: a fork has a memory of its own."""

    def open_session(self) -> None:
        if self._live:
            raise SessionLive(SERVER, "this identity already takes part in a session")
        self._live = True

    def close_session(self) -> None:
        self._live = False

    def knows_session(self, session: bytes) -> bool:
        return session in self._sessions

    def remember_session(self, session: bytes) -> None:
        self._sessions.add(session)

    def last_round(self, group: str) -> int:
        """Return the last round in which a sum of `group` (sums of one vector) was answered, or `NEVER`."""
        return self._rounds.get(group, NEVER)

    def knows_query(self, content: bytes) -> bool:
        return content in self._queries

    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None:
        budget.check(self._spend, answer.charge)
        self.take_answer(answer)

    def take_answer(self, answer: AnswerEntry) -> None:
        """Record `answer` without a check of the budget, for callers that have checked it before."""
        self._spend = self._spend.plus(answer.charge, answer.adjacency)
        self._charges[answer.group] += answer.charge or 0
        self._queries.add(answer.content)
        self._rounds[answer.group] = max(answer.round_number, self.last_round(answer.group))
        if answer.sequences and answer.sum_id is not None:
            self._sets.answer(answer.sum_id, answer.sequences, answer.roster)

    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...], *, settled: bool = True) -> None:
        self._sets.confirm(sum_id, survivors, settled=settled)

    def tag(self, data: bytes) -> bytes:
        return hmac.digest(self._tag_key, data, "sha256")

    @property
    def sets(self) -> SetLog:
        """The sets of clients of earlier sums. `differencing_rules` compares those of a new sum with them."""
        return self._sets

    def note_confirmed(self, session: bytes, sum_index: int, contributors: int) -> None:
        """Do nothing: no auditor reads this memory."""

    @property
    def spend(self) -> Spend:
        return self._spend

    def charge_of(self, group: str) -> int:
        """Return what the sums of `group` have cost so far, in units of 2^-40 rho."""
        return self._charges[group]

    @property
    def registry(self) -> tuple[int, bytes]:
        """The (version, digest) of the newest registry of identities seen; (`NEVER`, b"") if none was."""
        return self._registry

    def remember_registry(self, version: int, digest: bytes) -> None:
        if version > self._registry[0]:
            self._registry = (version, digest)
