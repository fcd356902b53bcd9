"""Records a training run that a server holds with real clients, in the same files as a simulation.

The server measures only what sums tell it: its metrics are the facts of each round, such as the accuracy of
an evaluation sum, and never a single client's score.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from protocols.run import RoundReport, Run
from secagg.local_session import Stage
from sims.coordination.coordinator import Coordinator
from sims.coordination.run_writer import Line, RunWriter, plain
from sims.coordination.spending import Spending, epsilon_of, run_delta, spend_facts
from sims.deploy.run_terms import RunTerms
from sims.records.checkpoint import PartState
from sims.records.run_file_names import SPEND
from sims.records.sum_records import TRAINING, SessionRecord, StageRecord, SumRecord, by_stage
from sims.scenario.participation import Participations

_CUT_OFF: Final = "the server was cut off in the midst of this round, which clients would not repeat"


class ServedSumLog:
    """Writes the record of every session and sum to the run directory, and adds up their privacy cost."""

    def __init__(self, writer: RunWriter, spending: Spending) -> None:
        self._writer = writer
        self._spending = spending
        self._session = 0

    def on_session(self, record: SessionRecord) -> None:
        self._session = self._writer.next_session()
        self._writer.write_sum(replace(record, session=self._session, part=TRAINING))

    def on_sum(self, record: SumRecord) -> None:
        self._spending.add(record)
        self._writer.write_sum(replace(record, session=self._session, part=TRAINING))

    def on_stage(self, record: StageRecord) -> None:
        """Ignore it: the log of the server's events shows the stages."""


class ServedMetrics:
    """Makes the line of metrics of every round, and writes it with the checkpoint."""

    def __init__(
        self, terms: RunTerms, writer: RunWriter, participations: Participations | None = None
    ) -> None:
        self._terms = terms
        self._participations = participations
        self._writer = writer
        saved = None if writer.saved is None else writer.saved.training
        self._spending = Spending(terms.algorithm, (0, 0, 0) if saved is None else saved.spend)
        self.sum_log = ServedSumLog(writer, self._spending)
        self._sent = {
            "bytes_up": Counter({} if saved is None else saved.bytes_up),
            "bytes_down": Counter({} if saved is None else saved.bytes_down),
        }
        self._before = {} if writer.saved is None else dict(writer.saved.seconds)
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._lines: list[Line] = list(writer.lines)

    def begin(self, run: Run[Any], coordinator: Coordinator) -> None:
        self._write(self._line({}, coordinator, 0.0), 0, run, coordinator, ())

    def resume(self, lost: Iterable[Mapping[str, Any]]) -> None:
        """Record that the run goes on from its checkpoint. `lost` has the rows of the ledger about sums that
        were asked after it: clients have paid for them."""
        saved = self._writer.saved
        assert saved is not None
        self._writer.note_resumed(saved.done, repeats=False)
        self._writer.resumed()
        for asked in lost:
            self._spending.charge(asked["charge"])

    def lose(self, run: Run[Any], coordinator: Coordinator, done: int, barred: Collection[int]) -> None:
        """Write the line of a round in which the server was cut off, with the checkpoint after it."""
        found = {"round": done, "completed": False, "failure": _CUT_OFF, "lost": True}
        self._write(self._line(found, coordinator, 0.0), done, run, coordinator, barred)

    def keep(
        self,
        run: Run[Any],
        coordinator: Coordinator,
        report: RoundReport,
        done: int,
        seconds: float,
        barred: Collection[int],
    ) -> Line:
        """Write and return the line of a round, with the checkpoint after it."""
        facts = {name: plain(value) for name, value in report.facts.items()}
        found = {
            "round": done,
            "completed": report.completed,
            "failure": None if report.completed else str(report.failure),
            "clients": report.clients,
            "sums": dict(report.sums),
            "facts": facts,
            "measured": _measured(facts, self._terms.settings.evaluation.what),
        }
        line = self._line(found, coordinator, seconds)
        self._write(line, done, run, coordinator, barred)
        return line

    def finish(self, run: Run[Any], coordinator: Coordinator) -> None:
        """Write the result of the run."""
        rounds = self._lines[1:]
        result = {
            "insecure_seed": None,
            "dim": self._terms.algorithm.dim,
            "samples": {},
            "corrupt": [],
            "rounds": [line["round"] for line in self._lines if line["measured"] is not None],
            "series": _series(self._lines),
            "final": {},
            "completed": sum(line["completed"] for line in rounds),
            "clients": [line["clients"] for line in rounds],
            "failures": [[line["round"] - 1, line["failure"]] for line in rounds if not line["completed"]],
            "diverged": None,
            "sums": dict(sum((Counter(line["sums"]) for line in rounds), Counter())),
            **{way: _by_name(self._bytes(coordinator, way)) for way in self._sent},
            "observed": {},
            "seconds": {name: round(value, 2) for name, value in self._seconds().items()},
        }
        delta = run_delta(self._terms.settings)
        spend = spend_facts(self._spending.spend, {}, max_rho=self._terms.algorithm.max_rho, delta=delta)
        self._writer.finish(result, {SPEND: spend}, run.model)

    # --- lines ---

    def _line(self, found: Mapping[str, Any], coordinator: Coordinator, seconds: float) -> Line:
        sent = {way: sum(self._bytes(coordinator, way).values()) for way in self._sent}
        spend = self._spending.spend
        return {
            "round": 0,
            "completed": True,
            "failure": None,
            "clients": 0,
            "sums": {},
            "facts": {},
            "silenced": 0,
            "observed": {},
            "measured": None,
            **found,
            **sent,
            "rho": spend.rho,
            "epsilon": epsilon_of(spend, run_delta(self._terms.settings)),
            "unnoised": spend.unnoised,
            "tail": None,
            "seconds": round(seconds, 4),
        }

    def _bytes(self, coordinator: Coordinator, way: str) -> Counter[str]:
        return self._sent[way] + Counter(by_stage(getattr(coordinator, way)))

    def _write(
        self, line: Line, done: int, run: Run[Any], coordinator: Coordinator, barred: Collection[int]
    ) -> None:
        self._lines.append(line)
        state = PartState(
            server=run.save(),
            clients={} if self._participations is None else self._participations.save(),
            sessions=coordinator.sessions,
            spend=self._spending.saved,
            bytes_up=dict(self._bytes(coordinator, "bytes_up")),
            bytes_down=dict(self._bytes(coordinator, "bytes_down")),
        )
        self._writer.keep(line, done, {TRAINING: state}, self._seconds(), barred)

    def _seconds(self) -> dict[str, float]:
        now = {"wall": time.perf_counter() - self._started, "cpu": time.process_time() - self._cpu}
        return {name: self._before.get(name, 0.0) + value for name, value in now.items()}


def _measured(facts: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """Return what an evaluation sum says of the common model, or of the clients' personal ones if `what` is
    "personal": means over all held-out samples."""
    if not isinstance(facts.get("accuracy"), float):
        return None
    name = "personal" if what == "personal" else "common"
    return {name: {"pooled_accuracy": facts["accuracy"], "pooled_loss": facts["loss"]}}


def _by_name(sent: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by stage, with the names of stages that `result.json` has."""
    return {f"Stage.{stage.name}": sent[stage.value] for stage in Stage if sent.get(stage.value)}


def _series(lines: list[Line]) -> dict[str, dict[str, list[Any]]]:
    series: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        for name, numbers in (line["measured"] or {}).items():
            for key, value in numbers.items():
                series.setdefault(name, {}).setdefault(key, []).append(value)
    return series
