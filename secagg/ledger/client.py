"""A client's ledger: its memory, on disk, for as long as its identity lives.

    with ClientLedger.create(path, member=5) as ledger:     # once, for a new identity
    with ClientLedger.open(path, member=5) as ledger:       # from then on
        ClientMachine(member=5, memory=ledger, ...)

Several processes, and threads, may have it open. They see each other's entries, none of them can spend what
another one has spent, and one of them at a time can be in a session.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from secagg.client_budget import Budget, Spend
from secagg.client_memory import AnswerEntry, SumFacts, VolatileMemory
from secagg.errors import SERVER, ForeignLedger, LedgerError, RepeatedQuery, SessionLive
from secagg.ledger.chain import Body, Owner, describe
from secagg.ledger.ledger import Ledger
from secagg.noise.accounting import Adjacency


class ClientLedger(Ledger):
    """Implements `Memory`.

    A file that `create` makes once and `open` opens from then on; both raise `LedgerError`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with ClientLedger.create(Path(place, "ledger"), member=5) as ledger:
    ...         ledger.spend.unnoised
    0
    """

    def __init__(self, path: Path | str, owner: Owner) -> None:
        self._known = VolatileMemory()
        self._session_live = False
        super().__init__(path, owner)

    @classmethod
    def create(cls, path: Path | str, *, member: int, identity: bytes = b"") -> Self:
        """Create a ledger for a new identity. Raises `LedgerError` if there is one, or was one, at `path`."""
        return cls._create(path, Owner.client(member, identity))

    @classmethod
    def open(cls, path: Path | str, *, member: int, identity: bytes = b"") -> Self:
        """Open the ledger of `member`, verified from the first row to the last."""
        return cls(path, Owner.client(member, identity))

    # --- rows in ---

    def _take(self, body: Body) -> bool:
        match body["entry"]:
            case "session":
                self._known.remember_session(bytes.fromhex(body["session"]))
            case "answer":
                self._known.take_answer(_answer_of(body))
            case "registry":
                self._known.remember_registry(body["version"], bytes.fromhex(body["digest"]))
            case "confirmed":
                pass
            case _:
                return False
        return True

    @property
    def _now(self) -> VolatileMemory:
        """Everything known at this moment, to any process. What is asked of it is read in one step."""
        self._file.catch_up()
        return self._known

    # --- its owner ---

    def check_owner(self, member: int, public_key: bytes) -> None:
        """Where nothing is signed, a client shows no identity, and its id alone is compared.

        One ledger then serves the client under either trust level: its spend is one.
        """
        asking = Owner.client(member, public_key or self._owner.identity)
        if asking != self._owner:
            raise ForeignLedger(f"{self._path} belongs to {self._owner}, not to {asking}")

    # --- sessions ---

    def open_session(self) -> None:
        with self._file.mutex:
            if self._session_live or not self._file.lock():
                raise SessionLive(SERVER, "this identity already takes part in a session")
            self._session_live = True

    def close_session(self) -> None:
        with self._file.mutex:
            self._session_live = False
            self._file.unlock()

    def knows_session(self, session: bytes) -> bool:
        return self._now.knows_session(session)

    def remember_session(self, session: bytes) -> None:
        self._file.append(lambda: {"entry": "session", "session": session.hex()})

    # --- answers ---

    def last_round(self, group: str) -> int:
        return self._now.last_round(group)

    def knows_query(self, content: bytes) -> bool:
        return self._now.knows_query(content)

    @property
    def spend(self) -> Spend:
        return self._now.spend

    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None:
        """Charge for the answer, at once for all processes. The charge is never removed."""
        self._file.append(lambda: self._charged(answer, budget))

    def _charged(self, answer: AnswerEntry, budget: Budget) -> Body:
        known = self._known
        if known.knows_query(answer.content):
            raise RepeatedQuery(SERVER, "this query was answered before")
        budget.check(known.spend, answer.charge)
        after = known.spend.plus(answer.charge, answer.adjacency)
        return {
            "entry": "answer",
            "group": answer.group,
            "round": answer.round_number,
            "content": answer.content.hex(),
            "charge": answer.charge,
            "adjacency": str(answer.adjacency),
            "charge so far": after.charge,
            "unnoised so far": after.unnoised,
            "sum": None if answer.facts is None else _facts(answer.facts),
        }

    def note_confirmed(self, session: bytes, sum_index: int, contributors: int) -> None:
        """Note how many clients are in the sum. If the ledger cannot be written, the next charge raises."""
        body = {
            "entry": "confirmed",
            "session": session.hex(),
            "sum index": sum_index,
            "contributors": contributors,
        }
        with suppress(LedgerError):
            self._file.append(lambda: body)

    # --- registries ---

    @property
    def registry(self) -> tuple[int, bytes]:
        return self._now.registry

    def remember_registry(self, version: int, digest: bytes) -> None:
        if version > self.registry[0]:
            self._file.append(lambda: {"entry": "registry", "version": version, "digest": digest.hex()})

    # --- the end ---

    def close(self) -> None:
        """End the session and close the file."""
        with self._file.mutex:
            self._session_live = False
            super().close()


def _answer_of(body: Body) -> AnswerEntry:
    """Return what memory needs of a row; the rest is for readers."""
    return AnswerEntry(
        group=body["group"],
        round_number=body["round"],
        content=bytes.fromhex(body["content"]),
        charge=body["charge"],
        adjacency=Adjacency(body["adjacency"]),
    )


def _facts(facts: SumFacts) -> dict[str, Any]:
    return {
        "session": facts.session.hex(),
        "sum index": facts.sum_index,
        "kind": facts.kind,
        "query": facts.query.hex(),
        "spec": facts.spec.digest.hex(),
        "cohort": facts.cohort,
        "roster": facts.roster,
        "bytes": facts.spec.packed_bytes,
        **describe(facts.spec),
    }
