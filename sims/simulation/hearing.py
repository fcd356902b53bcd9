"""Logs the sums of a run: writes their records to the file of sums, adds up costs and reports progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sims.records.sums import TRAINING, SessionRecord, StageRecord, SumRecord
from sims.simulation.spending import Spending


class RunSumLogger:
    """The `SumLogger` of one part of a run.

    `write`        writes a record to the file of sums.
    `number`       returns the next session number. All parts of a run count together.
    `on_progress`  receives changes of the `Progress`.
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
