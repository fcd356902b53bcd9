"""Matches the sums in a run's ledger with the sums in its log, `sums.jsonl`. The server's ledger is a
tamper-evident chain of rows. It gets a row when clients are asked for a sum, and another row when the total
is released. The log has more details about every sum. Each sum that was asked for must be in both, with the
same numbers. Only sums of a round that was interrupted may be missing in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protocols.evaluation import ErrorHistogram
from secagg.ledger import Reading
from secagg.ledger import Row as LedgerRow
from sims.audit.run_files import Evidence, Row
from sims.records.run_file_names import SUMS
from sims.records.sum_records import TRAINING, SumRecord

Key = tuple[str, int]  # (the id of a session, the index of a sum in this session)


@dataclass(frozen=True)
class MatchedSum:
    """One sum, with its records in the ledger and in the log. A sum over a plain channel, without secure
    aggregation, is only in the log. A sum of an interrupted round may be only in the ledger."""

    asked: Row | None  # the ledger's row about the query
    logged: SumRecord | None  # the log's record
    released: Row | None  # the ledger's row about the total; None if no total was released
    ledger_row: int = -1  # the number of the row `asked`
    ledger_round: int = 0  # the training round according to the ledger, counted from 1
    ledger_extra: bool = False  # whether `run.json` lists the kind of the sum as extra

    @property
    def round(self) -> int:
        """The round of the training, counted from 1."""
        return self.ledger_round if self.logged is None else self.logged.training_round

    @property
    def extra(self) -> bool:
        """True for a sum that the training does not use, such as the private histogram of errors."""
        return self.ledger_extra if self.logged is None else self.logged.part != TRAINING

    @property
    def kind(self) -> str:
        if self.logged is not None:
            return self.logged.kind
        assert self.asked is not None  # every sum is in the log or in the ledger
        return str(self.asked["kind"])

    @property
    def invited(self) -> int:
        """The number of clients that were asked."""
        return self._line.invited if self.asked is None else int(self.asked["roster"])

    @property
    def contributors(self) -> int | None:
        """The number of clients in the total; None if no total was released."""
        if self.asked is None:
            return self._line.count
        return None if self.released is None else int(self.released["contributors"])

    @property
    def _line(self) -> SumRecord:
        assert self.logged is not None  # every sum is in the log or in the ledger
        return self.logged


@dataclass(frozen=True)
class Records:
    """A run's sums, matched in ledger and log, disagreements, and how many only the ledger has (`lost`)."""

    entries: tuple[MatchedSum, ...]  # all sums, in the order in which they were asked
    problems: tuple[str, ...]  # disagreements between ledger and log, one sentence each
    lost: int  # number of sums that are in the ledger alone


def reconciled(evidence: Evidence, reading: Reading | None) -> Records:
    """Return the ledger's sums, matched with the log; the log's sums if there is no ledger (`reading`)."""
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
    last = max((entry.ledger_row for entry in entries if entry.logged is not None), default=-1)
    problems += [
        f"{_name(entry.round, entry.kind)} is in the ledger, but not in sums.jsonl"
        for entry in lost
        if SUMS not in evidence.withheld
        and not (
            _was_cut_off(entry.ledger_row, evidence) or (entry.ledger_row > last and not evidence.finished)
        )
    ]
    unasked = [MatchedSum(None, replace(row, count=None), None) for row in evidence.sums if row.index is None]
    return Records(_in_order(evidence, entries, unasked), tuple(problems), len(lost))


def _unfounded(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each sum that is in the log twice, or has a total there but was never asked."""
    often = Counter((row.session, row.index) for row in evidence.sums if row.index is not None)
    for row in evidence.sums:
        name = _name(row.training_round, row.kind)
        if row.index is None and row.count is not None:
            yield f"{name} was released by sums.jsonl, but was never asked"
        elif row.index is not None and often.pop((row.session, row.index), 1) > 1:
            yield f"{name} is in sums.jsonl more than once"


def _entries(evidence: Evidence, reading: Reading, logged: dict[Key, SumRecord]) -> Iterator[MatchedSum]:
    """Yield each sum of the ledger, matched with its record in `logged`, if there is one. Remove that record
    from `logged`, so that only sums that are missing in the ledger remain there."""
    extra_kinds = _extra_kinds(evidence)
    number = 0
    for asked, released in _paired(reading):
        extra = asked.body["kind"] in extra_kinds
        number = number if extra else int(asked.body["round"]) + 1
        line = None if _was_cut_off(asked.number, evidence) else logged.pop(_key(asked), None)
        yield MatchedSum(asked.body, line, released, asked.number, number, extra)


def _extra_kinds(evidence: Evidence) -> set[str]:
    """Return the kinds of sums beside the training: those of the scenario or, without it, of `run.json`."""
    if evidence.settings is not None:
        return set() if evidence.settings.tail is None else {ErrorHistogram.kind}
    return {row["kind"] for row in evidence.run.get("sums") or () if row.get("extra")}


def _paired(reading: Reading) -> list[tuple[LedgerRow, Row | None]]:
    """Return each `asked` row of the ledger with the body of the `released` row of the same sum; None if no
    total was released. A session that was repeated from a seed has the same id again. Then a `released` row
    belongs to the last `asked` row before it."""
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


def _was_cut_off(ledger_row: int, evidence: Evidence) -> bool:
    """Return whether row `ledger_row` was written after a checkpoint from which the run was later resumed. If
    so, the sum of this row is not in the log, because resuming removed it there."""
    return any(
        row.ledger_rows is not None and (row.checkpoint_rows or 0) <= ledger_row < row.ledger_rows
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
    """Return the ledger's id of each session that was set up, by the session's number in the log. If the log
    has no id, sessions are matched by their order. An id that cannot be found is empty."""
    own = [row for row in evidence.sessions if row.failure is None]
    in_order = [row.body["session"] for row in reading.rows if row.body["entry"] == "session"]
    return {
        row.session: row.id or (in_order[place] if place < len(in_order) else "")
        for place, row in enumerate(own)
    }


def _in_order(
    evidence: Evidence, entries: list[MatchedSum], unasked: list[MatchedSum]
) -> tuple[MatchedSum, ...]:
    """Return `entries`, in the order of the ledger, with the `unasked` sums inserted. These failed before a
    client was asked, so they are only in the log. Each is placed after the sums that precede it there."""
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
        ("whether it is of the training", not entry.ledger_extra, not entry.extra),
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
