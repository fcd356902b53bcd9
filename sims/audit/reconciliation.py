"""Matches the sums of a run's ledger with those of its log.

The server's ledger is a tamper-evident chain; the log has more detail about every sum. Each sum must be in
both, with the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from secagg.ledger import Reading
from secagg.ledger import Row as LedgerRow
from sims.audit.run_files import Evidence, Row
from sims.records.sums import TRAINING, SumRecord

Key = tuple[str, int]  # a session's id, and the index of the sum in it


@dataclass(frozen=True)
class MatchedSum:
    """One sum: the query by the ledger, the sum by the log, and the release by the ledger.

    A plain channel has only a log. A round that was lost to a kill is only in the ledger.
    """

    asked: Row | None
    logged: SumRecord | None
    released: Row | None
    place: int = -1  # of the question in the ledger
    number: int = 0  # of the round of the training, where only the ledger knows of it
    beside: bool = False  # the training, where only the ledger knows of it

    @property
    def round(self) -> int:
        """The round of the training, from 1."""
        return self.number if self.logged is None else self.logged.training_round

    @property
    def extra(self) -> bool:
        """Whether it was asked besides the training."""
        return self.beside if self.logged is None else self.logged.part != TRAINING

    @property
    def kind(self) -> str:
        return str(self._question["kind"]) if self.logged is None else self.logged.kind

    @property
    def invited(self) -> int:
        return self._line.invited if self.asked is None else int(self.asked["roster"])

    @property
    def contributors(self) -> int | None:
        """The contributors; None if nothing was released."""
        if self.asked is None:
            return self._line.count
        return None if self.released is None else int(self.released["contributors"])

    @property
    def _line(self) -> SumRecord:
        assert self.logged is not None  # it is in one of the two
        return self.logged

    @property
    def _question(self) -> Row:
        assert self.asked is not None  # it is in one of the two
        return self.asked


@dataclass(frozen=True)
class Records:
    """All sums in order, the contradictions, and how many sums the log does not have.

    The ledger of a run that was killed has sums of a round that was never finished.
    """

    entries: tuple[MatchedSum, ...]
    problems: tuple[str, ...]
    lost: int


def reconciled(evidence: Evidence, reading: Reading | None) -> Records:
    """Return every sum of either record. Without a ledger, only those of the log."""
    if reading is None:
        return Records(tuple(MatchedSum(None, row, None) for row in evidence.sums), (), 0)
    problems = list(_unfounded(evidence))
    logged = _logged(evidence, reading)
    entries = list(_entries(evidence, reading, logged))
    lost = [entry for entry in entries if entry.logged is None]
    problems += [
        f"{_name(row.training_round, row.kind)} is in sums.jsonl, but not in the ledger"
        for row in logged.values()
    ]
    problems += [problem for entry in entries for problem in _disagreements(entry)]
    last = max((entry.place for entry in entries if entry.logged is not None), default=-1)
    problems += [
        f"{_name(entry.round, entry.kind)} is in the ledger, but not in sums.jsonl"
        for entry in lost
        if not (_was_cut_off(entry.place, evidence) or (entry.place > last and not evidence.finished))
    ]
    unasked = [MatchedSum(None, replace(row, count=None), None) for row in evidence.sums if row.index is None]
    return Records(_in_order(evidence, entries, unasked), tuple(problems), len(lost))


def _unfounded(evidence: Evidence) -> Iterator[str]:
    """Return lines that no run writes: the same sum twice, or a total of a sum that was never asked."""
    often = Counter((row.session, row.index) for row in evidence.sums if row.index is not None)
    for row in evidence.sums:
        name = _name(row.training_round, row.kind)
        if row.index is None and row.count is not None:
            yield f"{name} was released by sums.jsonl, but was never asked"
        elif row.index is not None and often.pop((row.session, row.index), 1) > 1:
            yield f"{name} is in sums.jsonl more than once"


def _entries(evidence: Evidence, reading: Reading, logged: dict[Key, SumRecord]) -> Iterator[MatchedSum]:
    """Return every sum of the ledger; its line is removed from `logged`."""
    beside = {row["kind"] for row in evidence.run.get("sums") or () if row.get("extra")}
    number = 0
    for asked, released in _paired(reading):
        extra = asked.body["kind"] in beside
        number = number if extra else int(asked.body["round"]) + 1
        line = None if _was_cut_off(asked.number, evidence) else logged.pop(_key(asked), None)
        yield MatchedSum(asked.body, line, released, asked.number, number, extra)


def _paired(reading: Reading) -> list[tuple[LedgerRow, Row | None]]:
    """Yield every query with its release. A session that was repeated under a seed has the same id."""
    found: list[tuple[LedgerRow, Row | None]] = []
    latest: dict[Key, int] = {}
    for row in reading.rows:
        if row.body["entry"] == "asked":
            latest[_key(row)] = len(found)
            found.append((row, None))
        elif row.body["entry"] == "released" and _key(row) in latest:
            place = latest[_key(row)]
            found[place] = found[place][0], row.body
    return found


def _was_cut_off(place: int, evidence: Evidence) -> bool:
    """Return whether a row was written after the checkpoint of a resumed run: its line is gone."""
    return any(
        row.ledger_rows is not None and (row.checkpoint_rows or 0) <= place < row.ledger_rows
        for row in evidence.resumed
    )


def _key(row: LedgerRow) -> Key:
    return row.body["session"], row.body["sum index"]


def _logged(evidence: Evidence, reading: Reading) -> dict[Key, SumRecord]:
    ids = _ids(evidence, reading)
    return {
        (ids.get(row.session, f"of number {row.session}"), row.index): row
        for row in evidence.sums
        if row.index is not None
    }


def _ids(evidence: Evidence, reading: Reading) -> Mapping[int, str]:
    """Return the ids of sessions in the ledger; if the log has none, they are in the same order."""
    own = [row for row in evidence.sessions if row.failure is None]
    in_order = [row.body["session"] for row in reading.rows if row.body["entry"] == "session"]
    return {
        row.session: row.id or (in_order[place] if place < len(in_order) else "")
        for place, row in enumerate(own)
    }


def _in_order(
    evidence: Evidence, entries: list[MatchedSum], unasked: list[MatchedSum]
) -> tuple[MatchedSum, ...]:
    """Return sums in the order of the ledger; one that failed before any query is where the log has it."""
    if not unasked:
        return tuple(entries)
    places = {id(row): place for place, row in enumerate(evidence.sums)}
    own = [place for place, row in enumerate(evidence.sums) if row.index is None]
    found = list(entries)
    for place, entry in zip(own, unasked, strict=True):
        places[id(entry.logged)] = place
        after = [k for k, each in enumerate(found) if each.logged and places[id(each.logged)] < place]
        found.insert(max(after, default=-1) + 1, entry)
    return tuple(found)


def _disagreements(entry: MatchedSum) -> Iterator[str]:
    asked, logged = entry.asked, entry.logged
    if asked is None or logged is None:
        return
    released = None if entry.released is None else entry.released["contributors"]
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("the round", asked["round"], logged.round),
        ("the kind", asked["kind"], logged.kind),
        ("how many were asked", asked["roster"], logged.invited),
        ("how many contributed", released, logged.count),
        ("whether it is of the training", not entry.beside, not entry.extra),
    )
    for what, own, other in pairs:
        if own != other:
            yield (
                f"{_name(asked['round'] + 1, asked['kind'])}: ledger and sums.jsonl disagree on {what}: "
                f"{_shown(own)} and {_shown(other)}"
            )


def _shown(value: Any) -> str:
    return "nothing was released" if value is None else str(value)


def _name(number: int, kind: str) -> str:
    return f"a sum of {kind} in round {number}"
