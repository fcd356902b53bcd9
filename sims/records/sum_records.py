"""Typed records of the sessions and sums of a run, with their traffic and outcome.

The channel that computes the sums makes the records. They are written to `sums.jsonl`, the file of sums. The
progress display, audit and report use them. Only `to_json` and `from_json` use the keys of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

from secagg.errors import Dispute, Lie, SecaggError
from secagg.events import Excluded
from secagg.local_session import Stage
from sims.config_problems import ConfigError

TRAINING: Final = "training"  # the part of a run that trains the model
TAIL: Final = "tail"  # the part that asks for the private histogram of errors
SET_UP: Final = -1  # used in place of the index of a sum for the set-up of a session

ByStage: TypeAlias = Mapping[str, int]
COUNTS: Final = ("bytes_up", "bytes_down", "frames_up", "frames_down")  # the fields of `TrafficCounts`


class Refusal(NamedTuple):
    """Records that client `member` left a session because it refused a message of the server."""

    member: int
    error: str  # the name of the error's class
    reason: str

    @classmethod
    def of(cls, member: int, error: SecaggError) -> Refusal:
        return cls(member, type(error).__name__, str(error))


class Exclusion(NamedTuple):
    """Records that the server excluded client `member`, which broke the protocol. If it is `barred`, because
    it lied or was in a dispute with another client, it is invited to no later session either."""

    member: int
    error: str  # the name of the error's class; for a lie, the offence
    reason: str
    barred: bool

    @classmethod
    def of(cls, event: Excluded) -> Exclusion:
        error = event.error
        return cls(event.peer, type(error).__name__, error.why, isinstance(error, Lie | Dispute))


@dataclass(frozen=True, kw_only=True)
class TrafficCounts:
    """Bytes and frames of a set-up or sum, by stage, up to the server and down from it, without zeros."""

    bytes_up: ByStage = field(default_factory=dict)
    bytes_down: ByStage = field(default_factory=dict)
    frames_up: ByStage = field(default_factory=dict)
    frames_down: ByStage = field(default_factory=dict)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the four counts for JSON: name of the count -> name of the stage -> count."""
        return {name: dict(getattr(self, name)) for name in COUNTS}

    @property
    def total_bytes(self) -> int:
        """Return the number of bytes of all stages, to and from the server."""
        return sum(self.bytes_up.values()) + sum(self.bytes_down.values())


@dataclass(frozen=True, kw_only=True)
class SessionRecord(TrafficCounts):
    """The record of one session, made after its set-up has succeeded or failed. A row (d, n, m) of
    `exchanged` says: n clients were sent the shares of d neighbours each, and m of them made deposits, as
    they do with hybrid keys."""

    session: int  # its number, counted from 0
    round: int
    members: int
    id: str | None = None  # its identifier in the ledger; None if set-up failed
    graph: str | None = None  # "complete" or "ring"; None if set-up failed
    neighbours: int | None  # None if set-up failed
    threshold: int | None  # None if set-up failed
    sums: int = 0  # the largest number of sums that the session may have
    seeds: int = 0  # removable noise components of each sum
    exchanged: tuple[tuple[int, ...], ...] = ()
    exclusions: tuple[Exclusion, ...] = ()  # the clients that were excluded in set-up
    failure: str | None  # why set-up failed, or None
    part: str = TRAINING  # the part of the run that the session serves
    training_round: int = 0  # counted from 1; `SumHistory` sets it, it is not in the file

    def to_json(self) -> dict[str, Any]:
        about = _values(self, ("session", "round", "members", "id", "graph", "neighbours", "threshold"))
        limits = _values(self, ("sums", "seeds", "failure"))
        rows = {
            "exchanged": [list(row) for row in self.exchanged],
            "exclusions": [list(row) for row in self.exclusions],
        }
        return {"entry": "session", **about, **limits, **rows, **self.counts(), "part": self.part}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Return the record in a line of `sums.jsonl`. Raise `ConfigError` if a key is missing."""
        names = ("session", "round", "members", "neighbours", "threshold", "failure", *COUNTS)
        optional = ("id", "graph", "sums", "seeds", "part")
        found = _chosen(line, names, optional)
        return cls(**found, exchanged=_rows(line, "exchanged"), exclusions=_exclusions(line))


@dataclass(frozen=True, kw_only=True)
class SumRecord(TrafficCounts):
    """The record of one sum that has ended, with or without a total. A row (a, s, n, r) of `around` says: n
    of the clients that sent a masked input each had a neighbourhood, the client included, of which a clients
    were asked and s sent a masked input; r of these n revealed shares. A channel without protection has no
    such rows."""

    session: int  # the number of its session
    round: int
    kind: str
    count: int | None  # number of clients in the total; None if no total was released
    failure: str | None  # why no total was released, or None
    seconds: float = 0.0
    index: int | None  # its index in the session; None if it failed before any client was asked
    invited: int  # clients that were asked
    masked: int  # clients that sent a masked input
    revealed: int  # clients that revealed shares
    around: tuple[tuple[int, ...], ...] = ()
    refusals: tuple[Refusal, ...] = ()  # the clients that refused, and why
    exclusions: tuple[Exclusion, ...] = ()  # the clients that were excluded, and why
    part: str = TRAINING  # as in `SessionRecord`
    training_round: int = 0  # as in `SessionRecord`

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": "sum",
            **_values(self, ("session", "round", "kind", "count", "failure")),
            "seconds": round(self.seconds, 6),
            "sum": self.index,
            **_values(self, ("invited", "masked", "revealed")),
            "around": [list(row) for row in self.around],
            "refusals": [list(row) for row in self.refusals],
            "exclusions": [list(row) for row in self.exclusions],
            **self.counts(),
            "part": self.part,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Return the record in a line of `sums.jsonl`. Raise `ConfigError` if a key is missing."""
        names = ("session", "sum", "round", "kind", "invited", "masked", "count", "revealed", "failure")
        found = _chosen(line, (*names, "refusals", *COUNTS), ("seconds", "part"))
        found["index"] = found.pop("sum")
        found["refusals"] = tuple(Refusal(*row) for row in found["refusals"])
        return cls(**found, around=_rows(line, "around"), exclusions=_exclusions(line))


@dataclass(frozen=True, kw_only=True)
class ResumeRecord:
    """Records that a run was resumed from a checkpoint before round `round`. Rows of the ledger from
    `checkpoint_rows` to `ledger_rows` were written after the checkpoint; the lines of their sums were removed
    from `sums.jsonl`. `cut_off` says whether a round was interrupted, and `repeats` whether the sums of that
    round are computed again with the same noise."""

    round: int
    ledger_rows: int | None
    checkpoint_rows: int | None
    cut_off: bool
    repeats: bool

    def to_json(self) -> dict[str, Any]:
        return {"entry": "resumed", **asdict(self)}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Return the record in a line of `sums.jsonl`. Raise `ConfigError` if a key is missing."""
        return cls(**_chosen(line, ("round", "ledger_rows", "checkpoint_rows", "cut_off", "repeats"), ()))


@dataclass(frozen=True)
class StageRecord:
    """Records the start of a stage: of sum `index` of a round or, if it is `SET_UP`, of set-up."""

    round: int
    index: int
    kind: str
    stage: Stage


class SumLogger(Protocol):
    """Receives a record after each set-up of a session, after each sum, and at the start of each stage."""

    def on_session(self, record: SessionRecord) -> None: ...
    def on_sum(self, record: SumRecord) -> None: ...
    def on_stage(self, record: StageRecord) -> None: ...


class NullSumLogger:
    """A `SumLogger` that ignores all records."""

    def on_session(self, record: SessionRecord) -> None:
        pass

    def on_sum(self, record: SumRecord) -> None:
        pass

    def on_stage(self, record: StageRecord) -> None:
        pass


no_sum_logger: Final = NullSumLogger()


@dataclass(frozen=True)
class SumHistory:
    """All records in a run's `sums.jsonl`. In those of sessions and sums, `training_round` is also set."""

    sessions: tuple[SessionRecord, ...]
    sums: tuple[SumRecord, ...]
    resumed: tuple[ResumeRecord, ...]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], where: str) -> Self:
        """Return the records in `lines` of file `where`. Add the training round to sessions and sums; those
        of the private histogram get that of the last training line. Raise `ConfigError` if a key is
        missing."""
        number, sessions, sums, resumed = 0, [], [], []
        for line in lines:
            if line.get("part", TRAINING) == TRAINING and isinstance(line.get("round"), int):
                number = line["round"] + 1
            try:
                match line.get("entry"):
                    case "session":
                        sessions.append(replace(SessionRecord.from_json(line), training_round=number))
                    case "sum":
                        sums.append(replace(SumRecord.from_json(line), training_round=number))
                    case "resumed":
                        resumed.append(ResumeRecord.from_json(line))
            except ConfigError as error:
                raise ConfigError(f"{where} is damaged: {error}") from None
        return cls(tuple(sessions), tuple(sums), tuple(resumed))


def _rows(line: Mapping[str, Any], name: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in line.get(name) or ())


def _exclusions(line: Mapping[str, Any]) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(*row) for row in line.get("exclusions") or ())


def _values(record: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _chosen(line: Mapping[str, Any], names: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries of `line` at these keys. Raise `ConfigError` if one of `names` is missing."""
    if lacking := [name for name in names if name not in line]:
        raise ConfigError(f"it does not say {', '.join(lacking)}")
    return {name: line[name] for name in (*names, *optional) if name in line}


def by_stage(counts: Mapping[Stage, int]) -> dict[str, int]:
    """Return the counts with stage names as keys, in the order of the protocol, without zero counts."""
    return {stage.value: counts[stage] for stage in Stage if counts.get(stage)}
