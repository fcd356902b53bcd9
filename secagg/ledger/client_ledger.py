"""`ClientLedger`: a client's memory on disk, kept for the lifetime of the client's identity.

    with ClientLedger.create(path, member=5) as ledger:     # once, for a new identity
    with ClientLedger.open(path, member=5) as ledger:       # from then on
        ClientMachine(member=5, memory=ledger, ...)

Several processes and threads may open the same ledger. Each reads the entries of the others, so together they
cannot exceed the privacy budget. Only one of them at a time can take part in a session.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from secagg.client_budget import Budget, Spend
from secagg.client_memory import AnswerEntry, SumFacts, VolatileMemory
from secagg.differencing_rules import Rule, SetLog, SumId, SumSequence
from secagg.errors import SERVER, LedgerError, RepeatedQuery, SessionLive
from secagg.hand_over import HandOver
from secagg.keys import KEY_BYTES
from secagg.ledger.base_ledger import Ledger, Owner, describe
from secagg.ledger.chained_rows import Body
from secagg.ledger.file_location import sync_directory, tag_key_path
from secagg.noise.zcdp_cost import Adjacency


class ClientLedger(Ledger):
    """A client's `Memory` in a file. Call `create` for a new one, else `open`. Both may raise `LedgerError`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with ClientLedger.create(Path(place, "ledger"), member=5) as ledger:
    ...         ledger.spend.unnoised
    0
    """

    def __init__(self, path: Path | str, owner: Owner, **keys: Any) -> None:
        self._known = VolatileMemory()
        self._rosters: dict[SumId, tuple[int, ...]] = {}  # of answered sums whose survivors are not known
        self._tag_check = ""  # the tag of empty data, to recognise the key; empty if there is no key yet
        self._tag_key = b""
        self._session_live = False
        super().__init__(path, owner, **keys)

    @classmethod
    def create(cls, path: Path | str, *, member: int, identity: bytes = b"") -> Self:
        """Create and open the ledger of a new client; `identity` is its public key, or empty if it has none.
        Raises `LedgerError` if `path` has or had a ledger."""
        return cls._create(path, Owner.client(member, identity))

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        member: int,
        identity: bytes = b"",
        hand_overs: Iterable[HandOver] = (),
        authority: bytes | None = None,
    ) -> Self:
        """Open the ledger of client `member`, whose public key is `identity`, and verify its rows. If the
        client has a new key, `hand_overs` lead from its old key to it; `authority` is the public key that may
        have signed them instead of the old key. Raises `LedgerError` if the ledger is missing, damaged, or
        belongs to another client."""
        return cls(path, Owner.client(member, identity), hand_overs=hand_overs, authority=authority)

    # --- rows in ---

    def _take(self, body: Body) -> bool:
        match body["entry"]:
            case "session":
                self._known.remember_session(bytes.fromhex(body["session"]))
            case "answer":
                self._known.take_answer(self._answer_of(body))
            case "survivors":
                sum_id = (bytes.fromhex(body["session"]), body["sum index"])
                left = set(self._rosters[sum_id]) - set(body["dropped"])
                settled = body.get("settled", True)  # ledgers of version 1 have only settled survivors
                self._known.remember_survivors(sum_id, tuple(left), settled=settled)
                if settled:
                    del self._rosters[sum_id]
            case "tag key":
                self._tag_check = body["check"]
            case "registry":
                self._known.remember_registry(body["version"], bytes.fromhex(body["digest"]))
            case "confirmed":
                pass
            case _:
                return False
        return True

    @property
    def _now(self) -> VolatileMemory:
        """The client's memory (answers, costs, ...), after reading the rows that other processes appended."""
        self._file.catch_up()
        return self._known

    # --- its owner ---

    def check_owner(self, member: int, public_key: bytes) -> None:
        """Raise `ForeignLedger` if the ledger belongs to another client. If statements that were given to
        `offer` hand it over to `public_key`, it belongs to this key from now on. Under `curious_server` there
        are no signatures, `public_key` is empty, and only the id is compared. So a client uses the same
        ledger, and the same privacy budget, under both trust levels."""
        self._file.catch_up()
        self._claim(Owner.client(member, public_key or self._owner.identity))

    def hand_over(self, member: int, public_key: bytes) -> None:
        """Let the ledger belong to `public_key`, the new key of its owner, or raise `ForeignLedger` as
        `check_owner` does. A ledger that was made without a key needs none."""
        self.check_owner(member, public_key if self._owner.identity else b"")

    def check_process(self) -> None:
        """Raise `LedgerError` if this process was forked after opening the ledger."""
        self._file.check_process()

    # --- sessions ---

    def open_session(self) -> None:
        self._file.check_process()
        with self._file.mutex:
            if self._session_live or not self._file.lock():
                raise SessionLive(SERVER, "this identity already takes part in a session")
            self._session_live = True

    def close_session(self) -> None:
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

    def charge_of(self, group: str) -> int:
        """Return what the sums of `group` have cost so far, in units of 2^-40 rho."""
        return self._now.charge_of(group)

    def remember_answer(self, answer: AnswerEntry, budget: Budget) -> None:
        """Check the budget and record the answer in one step, with no write of others in between. Raises
        `PolicyError` (over budget), `RepeatedQuery`, or `ParameterError` (adjacency unlike earlier ones)."""
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
            **self._sequences(answer),
        }

    def _sequences(self, answer: AnswerEntry) -> dict[str, Any]:
        if not answer.sequences or answer.sum_id is None:
            return {}
        return {
            "sequences": [[str(each.rule), each.key.hex()] for each in answer.sequences],
            "members": list(answer.roster),
        }

    def remember_survivors(self, sum_id: SumId, survivors: tuple[int, ...], *, settled: bool = True) -> None:
        """Record whose inputs are in a sum answered with `sequences`. Call this before revealing a share."""
        dropped = sorted(set(self._rosters[sum_id]) - set(survivors))
        about = {"session": sum_id[0].hex(), "sum index": sum_id[1], "dropped": dropped, "settled": settled}
        self._file.append(lambda: {"entry": "survivors", **about})

    def _answer_of(self, body: Body) -> AnswerEntry:
        """Return the `AnswerEntry` (without `facts`) of a row. Store its roster, if any, in `_rosters`."""
        about: dict[str, Any] = {}
        if "sequences" in body:
            sum_id = (bytes.fromhex(body["sum"]["session"]), body["sum"]["sum index"])
            self._rosters[sum_id] = tuple(body["members"])
            about = {
                "sum_id": sum_id,
                "sequences": tuple(SumSequence(Rule(r), bytes.fromhex(k)) for r, k in body["sequences"]),
                "roster": self._rosters[sum_id],
            }
        return AnswerEntry(
            group=body["group"],
            round_number=body["round"],
            content=bytes.fromhex(body["content"]),
            charge=body["charge"],
            adjacency=Adjacency(body["adjacency"]),
            **about,
        )

    @property
    def sets(self) -> SetLog:
        return self._now.sets

    def tag(self, data: bytes) -> bytes:
        """Return a message authentication code of `data`, by which equal data is recognised later. The first
        call for a ledger creates the key, in a file beside it. Raises `LedgerError` if this file is missing,
        can be read by others or has a wrong key, or if another process creates the key just now."""
        self._file.catch_up()
        if not self._tag_key:
            if not self._tag_check:
                self._file.append(self._new_tag_key)
            self._tag_key = self._read_tag_key()
        return hmac.digest(self._tag_key, data, "sha256")

    def _read_tag_key(self) -> bytes:
        path = tag_key_path(self._path)
        try:
            if path.stat().st_mode & 0o077:
                raise LedgerError(f"{path} can be read by others; make it private with chmod 600")
            key = path.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be read ({error.strerror}); restore it with the ledger"
            ) from None
        if hmac.digest(key, b"", "sha256").hex() != self._tag_check:
            raise LedgerError(f"{path} is not the key of this ledger; restore it with the ledger")
        return key

    def _new_tag_key(self) -> Body:
        """Write a new key for `tag` to its file, and return the row to append, or raise `LedgerError`."""
        if self._tag_check:
            raise LedgerError(f"{self._path} got a tag key from another process just now; try again")
        path, key = tag_key_path(self._path), secrets.token_bytes(KEY_BYTES)
        try:
            path.unlink(missing_ok=True)  # an unused key of a process that was killed before the append below
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(key)
                file.flush()
                os.fsync(handle)
            sync_directory(path.parent)  # a new file is safe only when its directory entry is on disk
        except OSError as error:
            raise LedgerError(f"{path} cannot be written: {error.strerror}") from None
        return {"entry": "tag key", "check": hmac.digest(key, b"", "sha256").hex()}

    def note_confirmed(self, session: bytes, sum_index: int, contributors: int) -> None:
        """Record for auditors how many clients a sum had. Ignore failed writes; raise in a forked process."""
        self._file.check_process()  # a forked copy of this client must not reveal anything
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
        """End the session, if there is one, and close the file."""
        with self._file.mutex:
            self._session_live = False
            super().close()


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
