"""`ServerLedger`: a server's record of its queries, the released sums and their privacy cost.

    ledger.note_asked(frame, table)      # with the query's frame, before it is sent
    ledger.note(event)                   # with every event of the machine, before its total is used

The recorded cost is that of a client that was in every released sum. Clients do not rely on this ledger. Each
has its own ledger, which also counts answers to sums that failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from secagg import events
from secagg import messages as m
from secagg.client_budget import Spend, sum_charge
from secagg.differencing_rules import Rule, SetLog, SumSequence
from secagg.errors import SERVER, Dispute, LedgerError, StateError
from secagg.hand_over import HandOver
from secagg.ledger.base_ledger import Ledger, Owner, describe
from secagg.ledger.chained_rows import Body
from secagg.noise.zcdp_cost import Adjacency
from secagg.query_context import query_digest
from secagg.sum_spec import Table

_ENTRIES: Final = (
    "session", "asked", "survivors", "released", "aborted", "failed", "excluded", "barred", "forgiven",
)  # fmt: skip


class ServerLedger(Ledger):
    """A server's ledger in a file. One object records one session at a time; several can share a file.

    Call `create` the first time and `open` later. Both return an open ledger, or raise `LedgerError`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with ServerLedger.create(Path(place, "ledger")) as ledger:
    ...         ledger.spend.rho
    0.0
    """

    def __init__(self, path: Path | str, owner: Owner, **keys: Any) -> None:
        self._spend = Spend()
        self._session = ""
        self._asked: Body | None = None
        self._history = SetLog()
        self._fixed: set[SumSequence] = set()  # of the sum that was asked last
        self._barred: set[int] = set()
        super().__init__(path, owner, **keys)

    @classmethod
    def create(cls, path: Path | str, *, identity: bytes = b"") -> Self:
        return cls._create(path, Owner.server(identity))

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        identity: bytes = b"",
        hand_overs: Iterable[HandOver] = (),
        authority: bytes | None = None,
    ) -> Self:
        """Open the ledger of the server whose public key is `identity`. If it has a new key, `hand_overs`
        lead from its old key to it, signed by the old key or by the public key `authority`."""
        return cls(path, Owner.server(identity), hand_overs=hand_overs, authority=authority)

    def check_owner(self, public_key: bytes) -> None:
        """Raise `ForeignLedger` if the ledger belongs to another key. If statements that were given to
        `offer` hand it over to `public_key`, it belongs to this key from now on."""
        self._claim(Owner.server(public_key))

    def _take(self, body: Body) -> bool:
        if body["entry"] == "released":
            self._spend = self._spend.plus(body["charge"], Adjacency(body["adjacency"]))
            self._history.released |= self._fixed
        if body["entry"] == "asked":
            self._fixed.clear()
        if body["entry"] == "survivors":
            sequence = SumSequence(Rule(body["rule"]), bytes.fromhex(body["key"]))
            self._history.add(sequence, body["members"])
            self._history.released.discard(sequence)
            self._fixed.add(sequence)
        if body["entry"] == "barred":
            self._barred.add(body["peer"])
        if body["entry"] == "forgiven":
            self._barred.discard(body["peer"])
        return body["entry"] in _ENTRIES

    @property
    def spend(self) -> Spend:
        """The privacy cost of all released sums, for a client that was in each of them."""
        self._file.catch_up()
        return self._spend

    @property
    def history(self) -> SetLog:
        """Survivor sets of earlier sums, and whether their last total was released. A `ServerMachine` avoids
        nearly equal sets, which clients refuse."""
        self._file.catch_up()
        return self._history

    @property
    def barred(self) -> frozenset[int]:
        """The ids of clients that were convicted of a lie or excluded in a dispute, and not forgiven."""
        self._file.catch_up()
        return frozenset(self._barred)

    def forgive(self, member: int) -> None:
        """Record that client `member`, which is barred, may take part again. Raises `LedgerError` if it is
        not barred."""
        self._file.append(lambda: self._forgiven(member))

    def _forgiven(self, member: int) -> Body:
        if member not in self._barred:
            raise LedgerError(f"client {member} is not barred")
        return {"entry": "forgiven", "peer": member}

    # --- what happens ---

    def note_asked(self, frame: bytes, table: Table, *, adjacency: Adjacency = Adjacency.ZERO_OUT) -> None:
        """Record the query in `frame`, with its privacy cost under `adjacency`, before it is sent. Raises
        `StateError` if `frame` is another message, `PeerError` if it is malformed, and `ParameterError` if
        the adjacency of earlier costs forbids adding this cost."""
        query = m.decode(frame, sender=SERVER, limit=len(frame))
        if not isinstance(query, m.Query):
            raise StateError("only a query asks for a sum")
        spec, roster = table[query.kind], int.from_bytes(query.roster, "big").bit_count()
        asked = {
            "entry": "asked",
            "session": query.context.hex(),
            "sum index": query.sum_index,
            "round": query.round,
            "kind": query.kind,
            "query": query_digest(frame).hex(),
            "spec": spec.digest.hex(),
            "roster": roster,
            "adjacency": str(adjacency),
            "charge": sum_charge(spec, roster=roster, adjacency=adjacency),
            "bytes": spec.packed_bytes,
            "broadcast bytes": len(frame),
            **describe(spec),
        }
        self._file.append(lambda: self._countable(asked))
        self._asked = asked

    def _countable(self, asked: Body) -> Body:
        self._after(asked)
        return asked

    def _after(self, asked: Body) -> Spend:
        return self._spend.plus(asked["charge"], Adjacency(asked["adjacency"]))

    def note(self, event: events.ServerEvent) -> None:
        """Write a row for `event`, if its type is recorded. Call this before a released total is used. Raises
        `StateError` if a sum is released whose query was not passed to `note_asked`."""
        match event:
            case events.SessionReady():
                self._session = event.session.hex()
                self._append("session", cohort=len(event.members), threshold=event.threshold)
            case events.SurvivorsFixed():
                rule, key = str(event.sequence.rule), event.sequence.key.hex()
                self._append("survivors", rule=rule, key=key, members=list(event.survivors))
            case events.SumReleased():
                self._file.append(lambda: self._released(event))
            case events.SumAborted():
                self._append("aborted", **{"sum index": event.sum_index}, why=type(event.error).__name__)
            case events.SessionFailed():
                self._append("failed", why=type(event.error).__name__)
            case events.Convicted():
                evidence = None if event.evidence is None else event.evidence.sha256
                self._append("barred", peer=event.peer, why=type(event.error).__name__, evidence=evidence)
            case events.Excluded():
                why = type(event.error).__name__
                self._append("excluded", peer=event.peer, why=why)
                if isinstance(event.error, Dispute):
                    self._append("barred", peer=event.peer, why=why, other=event.error.other)
            case _:
                pass

    def _append(self, entry: str, **facts: Any) -> None:
        self._file.append(lambda: {"entry": entry, "session": self._session, **facts})

    def _released(self, event: events.SumReleased) -> Body:
        asked = self._asked
        if asked is None or (asked["session"], asked["sum index"]) != (self._session, event.sum_index):
            raise StateError(f"sum {event.sum_index} was released, but the ledger was not told of its query")
        after = self._after(asked)
        return {
            "entry": "released",
            "session": asked["session"],
            "sum index": event.sum_index,
            "kind": asked["kind"],
            "contributors": len(event.contributors),
            "charge": asked["charge"],
            "adjacency": asked["adjacency"],
            "charge so far": after.charge,
            "unnoised so far": after.unnoised,
        }
