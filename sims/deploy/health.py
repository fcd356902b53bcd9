"""Whether a server can do its work: its registry has not expired, and its ledger and its results can be
written. A cause is examined at each request, so the answer is good again when the cause is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

import trio

from secagg.errors import LedgerError, LocalError
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog
from sims.deploy.disk_room import check_room

_FRESH: Final = 1.0  # seconds for which an answer is given again, so that requests cannot keep the disk busy


class Subject(Enum):
    """What is examined. Its value is the name in the answer and in the log."""

    REGISTRY = "registry"
    LEDGER = "ledger"
    TOTALS = "totals"
    RUN = "run"


@dataclass(frozen=True)
class HealthProblem:
    """What is wrong with a `subject`: the name of an error class. The sentence is for the log only, because
    it names files."""

    subject: Subject
    error: str
    sentence: str


Check: TypeAlias = Callable[[], None]  # raises a `LocalError` or an `OSError` if something is wrong


class Health:
    """Examines a server. `check_output` raises if its results, the totals or the run directory (`output`),
    cannot be stored; `registry` returns the registry that is in force. The log gets a line when something
    becomes bad, and when it is good again."""

    def __init__(
        self,
        *,
        registry: Callable[[], Registry],
        ledger: ServerLedger,
        ledger_path: Path,
        check_output: Check,
        log: EventLog,
        output: Subject = Subject.TOTALS,
        clock: Callable[[], float] = time.time,
        fresh: float = _FRESH,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._ledger_path = ledger_path
        self._log = log
        self._clock = clock
        self._fresh = fresh
        self._checks: Mapping[Subject, Check] = {
            Subject.REGISTRY: self._check_registry,
            Subject.LEDGER: self._check_ledger,
            output: check_output,
        }
        self._seen: LedgerError | None = None
        self._faults: tuple[HealthProblem, ...] = ()
        self._examined = -float("inf")
        self._lock = trio.Lock()

    def note_ledger_error(self, error: LedgerError) -> None:
        """Remember an error of the ledger. It is in the next answer, and in later ones while it persists."""
        self._seen = error
        self._examined = -float("inf")

    async def faults(self) -> tuple[HealthProblem, ...]:
        """Return what is wrong now; nothing if the server is in good health."""
        async with self._lock:
            if trio.current_time() - self._examined >= self._fresh:
                self._examined = trio.current_time()
                found = await trio.to_thread.run_sync(self._examine)
                self._log_changes(found)
                self._faults = found
            return self._faults

    def _examine(self) -> tuple[HealthProblem, ...]:
        found = []
        for subject, check in self._checks.items():
            try:
                check()
            except (LocalError, OSError) as error:
                found.append(HealthProblem(subject, type(error).__name__, str(error)))
        return tuple(found)

    def _log_changes(self, found: tuple[HealthProblem, ...]) -> None:
        before = {fault.subject for fault in self._faults}
        for fault in found:
            if fault.subject not in before:
                about = fault.subject.value
                self._log.write("unhealthy", about=about, error=fault.error, reason=fault.sentence)
        for subject in Subject:
            if subject in before - {fault.subject for fault in found}:
                self._log.write("healthy", about=subject.value)

    def _check_registry(self) -> None:
        self._registry().check_current(int(self._clock()))

    def _check_ledger(self) -> None:
        seen, self._seen = self._seen, None
        self._ledger.check_writable()
        check_room(self._ledger_path.parent)
        if seen is not None:
            raise seen
