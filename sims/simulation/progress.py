"""The progress of a simulation, and the logger that updates it from the records of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sims.records.sum_records import TRAINING, SessionRecord, StageRecord, SumRecord
from sims.simulation.spending import Spending


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a simulation, as it is shown to the user."""

    done: int  # rounds that are over
    rounds: int  # of the whole simulation
    sum: int | None = None  # running sum of the round, counted from 1; None in set-up
    kind: str = ""  # of the running sum
    stage: str = ""  # of the running sum or set-up; empty between rounds
    survivors: int | None = None  # clients in the last total
    accuracy: float | None = None  # as last measured
    epsilon: float | None = None
    bytes: int = 0  # that all clients have sent

    def __str__(self) -> str:
        return ", ".join(filter(None, (self._where(), *self._facts())))

    def _where(self) -> str:
        """Return a text with the round, the sum within the round, and the stage."""
        if self.done == self.rounds or not self.stage:
            return f"round {self.done} of {self.rounds} over"
        which = "set-up" if self.sum is None else f"sum {self.sum} ({self.kind})"
        return f"round {self.done + 1} of {self.rounds}, {which}, {self.stage}"

    def _facts(self) -> Iterator[str]:
        if self.survivors is not None:
            yield f"{self.survivors} in the last sum"
        if self.accuracy is not None:
            yield f"accuracy {self.accuracy:.1%}"
        if self.epsilon is not None:
            yield f"epsilon {self.epsilon:.3g}"
        if self.bytes:
            yield f"{self.bytes / 1e6:.1f} MB sent"

    def now(self, **changes: Any) -> Progress:
        return replace(self, **changes)


OnProgress: TypeAlias = Callable[[Progress], None]


def no_progress(_progress: Progress) -> None:
    pass


class RunSumLogger:
    """The `SumLogger` of one part of a run, "training" or "tail". It also charges sums to `spending`.

    `write`        writes a record to the file of sums.
    `number`       returns the next session number, which counts the sessions of all parts.
    `on_progress`  receives changes of the `Progress` as keyword arguments.
    """

    def __init__(
        self,
        part: str,
        spending: Spending,
        *,
        write: Callable[[SessionRecord | SumRecord], None],
        number: Callable[[], int],
        on_progress: Callable[..., None],
    ) -> None:
        self._part = part
        self._spending = spending
        self._write = write
        self._number = number
        self._on_progress = on_progress
        self._session: int | None = None

    def on_session(self, record: SessionRecord) -> None:
        self._session = self._number()
        self._write(replace(record, session=self._session, part=self._part))

    def on_sum(self, record: SumRecord) -> None:
        self._spending.add(record)
        session = record.session if self._session is None else self._session
        self._write(replace(record, session=session, part=self._part))
        self._on_progress(survivors=record.count, sent=sum(record.bytes_up.values()))

    def on_stage(self, record: StageRecord) -> None:
        self._on_progress(
            sum=record.index + 1 if record.index >= 0 else None,
            kind=record.kind if self._part == TRAINING else self._part,
            stage=record.stage.value,
        )
