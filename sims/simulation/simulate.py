"""Runs one simulation, from its settings to its results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fl.device_and_threads import one_thread
from fl.errors import FLError
from protocols.algorithm import AnyAlgorithm
from protocols.run import Run
from secagg.client_memory import AnswerEntry
from secagg.errors import SecaggError
from sims.coordination.run_writer import Line, Origin, RunShape, RunWriter, open_run
from sims.coordination.spending import Spending, epsilon_of, run_delta, spend_facts, total
from sims.records import RunDirectory
from sims.records.checkpoint import Checkpoint, PartState
from sims.records.run_file_names import CANARIES, CLIENTS, SPEND
from sims.records.sum_records import TRAINING, SessionRecord, StageRecord, SumLogger, SumRecord
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings
from sims.simulation.canary_audit import NoiseAudit
from sims.simulation.metrics_recorder import MetricsRecorder
from sims.simulation.progress import OnProgress, Progress, no_progress
from sims.simulation.setup import SimulationSetup, no_ledger
from sims.simulation.sums_after_checkpoint import leave_out, lost_sums

_HERE: Final = Path()


class SimulationError(Exception):
    """The settings, the data or the disk do not allow the simulation. The text explains it to the user."""


class SimulationStopped(Exception):
    """The simulation stopped because its caller asked for it. With a run directory, it can be resumed."""


def _no_op(_round: int) -> None:
    pass


def _never() -> bool:
    return False


def simulate(
    settings: Settings,
    on_round: Callable[[int], None] = _no_op,
    *,
    root: Path = _HERE,
    directory: RunDirectory | None = None,
    resume: bool = False,
    origin: Origin | None = None,
    watch: OnProgress = no_progress,
    stop: Callable[[], bool] = _never,
) -> dict[str, Any]:
    """Run all rounds and return the result (`MetricsRecorder.result`) and its run time, as JSON values. Raise
    `SimulationError` if the settings, the data or the disk do not allow the run.

    `on_round`   is called with the number of every finished round, counted from 1.
    `root`       contains the directories of data sets.
    `directory`  is where the run is written; if None, nothing is written.
    `resume`     says whether to continue the run in that directory from its checkpoint.
    `origin`     is written to the directory: the scenario that the run belongs to.
    `watch`      is called with the progress of the run.
    `stop`       is called after every round except the last. If it returns True, raise `SimulationStopped`.
    """
    origin = origin or Origin(name="run", digest=Variant({}, settings).digest)
    try:
        with one_thread():
            if directory is None:
                return Simulation(settings, root, None, watch).run(on_round, stop)
            with open_run(directory, settings, origin, resume=resume) as writer:
                return _kept(settings, root, writer, watch, on_round, stop)
    except (FLError, SecaggError) as error:
        raise SimulationError(str(error)) from error


def _kept(
    settings: Settings,
    root: Path,
    writer: RunWriter,
    watch: OnProgress,
    on_round: Callable[[int], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    try:
        return Simulation(settings, root, writer, watch).run(on_round, stop)
    except (FLError, SecaggError) as error:
        writer.fail(str(error))
        raise


class Simulation:
    """Runs one simulation, records its metrics, and writes its run directory if there is one."""

    def __init__(self, settings: Settings, root: Path, writer: RunWriter | None, watch: OnProgress) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._settings = settings
        self._writer = writer
        self._watch = watch
        self._progress = Progress(done=0, rounds=settings.rounds)
        saved = None if writer is None else writer.saved
        self._before: Mapping[str, float] = {} if saved is None else saved.seconds
        self._spendings: dict[str, Spending] = {}
        self._sessions = 0
        self._barred: set[int] = set()  # clients that are invited no more
        self._noise = NoiseAudit(settings)
        open_ledger = no_ledger if writer is None else writer.open_ledger
        self.setup = SimulationSetup.of(
            settings,
            root,
            make_log=self._make_log,
            open_ledger=open_ledger,
            barred=self._barred,
            watch_totals=self._noise.on_total,
        )
        with ExitStack() as opened:
            opened.callback(self.setup.close)
            lines = () if writer is None else writer.lines
            self._recorder = MetricsRecorder(self.setup, self._spendings, lines, sent=_sent(saved))
            opened.pop_all()
        self._done = 0
        self._lost = False

    def _make_log(self, part: str, algorithm: AnyAlgorithm) -> SumLogger:
        writer = self._writer
        saved = None if writer is None or writer.saved is None else _part_state(writer.saved, part)
        spending = self._spendings[part] = Spending(algorithm, (0, 0, 0) if saved is None else saved.spend)
        write = _forget if writer is None else writer.write_sum
        number = self._next_session if writer is None else writer.next_session
        return RunSumLogger(part, spending, write=write, number=number, on_progress=self._report_progress)

    def _next_session(self) -> int:
        self._sessions += 1
        return self._sessions - 1

    # --- rounds ---

    def run(self, on_round: Callable[[int], None], stop: Callable[[], bool]) -> dict[str, Any]:
        try:
            self._begin()
            for number in range(self._done + 1, self._settings.rounds + 1):
                self._round(number)
                on_round(number)
                if number < self._settings.rounds and stop():
                    self._stop()
            return self._end()
        finally:
            self.setup.close()

    def _begin(self) -> None:
        writer = self._writer
        if writer is not None and writer.saved is not None:
            self._resume(writer, writer.saved)
            return
        line = self._recorder.first(self._seconds()["wall"])
        if writer is not None:
            writer.begin(self._shape())
        self._keep(line)

    def _shape(self) -> RunShape:
        setup = self.setup
        return RunShape(
            clients=len(setup.crowd),
            algorithm=setup.algorithm,
            channel=self._settings.channel.name,
            attackers=len(setup.corrupt),
            tail=None if setup.tail is None else setup.tail.algorithm,
            cluster=setup.cluster,
        )

    def _round(self, number: int) -> None:
        started, setup = time.perf_counter(), self.setup
        if self._lost:
            self._lost = False
            line = self._recorder.lost(number, 0.0)
        else:
            setup.crowd.begin_round(number - 1)
            report = setup.run.round()
            line = self._recorder.after(number, report, 0.0)
        if setup.tail is not None and setup.tail.is_due(number):
            line["tail"] = self._ask_tail()
            line |= {**self._recorder.traffic(), **self._recorder.cost()}
        line["seconds"] = round(time.perf_counter() - started, 4)
        self._done = number
        self._keep(line)

    def _ask_tail(self) -> dict[str, Any]:
        tail = self.setup.tail
        assert tail is not None  # it is due
        spending, delta = self._spendings["tail"], tail.section.delta
        found = tail.ask(self.setup.run.model) if tail.affordable(spending.spend) else tail.left_out()
        spend = spending.spend
        return {**found, "rho": spend.rho, "epsilon": epsilon_of(spend, delta), "delta": delta}

    def _keep(self, line: Line) -> None:
        if self._writer is not None:
            self._writer.keep(line, self._done, self._part_states(), self._seconds(), self._barred)
        self._report_progress(
            done=self._done,
            sum=None,
            kind="",
            stage="",
            accuracy=self._recorder.accuracy,
            epsilon=line["epsilon"],
            bytes=line["bytes_up"],
        )

    def _stop(self) -> None:
        if self._writer is not None:
            self._writer.stop()
        raise SimulationStopped(f"stopped after {self._done} of {self._settings.rounds} rounds")

    def _end(self) -> dict[str, Any]:
        self.setup.close()
        result = self._recorder.result()
        if self._writer is None:
            return {**result, "seconds": self._rounded()}
        more: dict[str, Any] = {CLIENTS: self._recorder.of_clients(), SPEND: self._spend()}
        if self._settings.audit.canaries:
            more[CANARIES] = self._noise.facts(self._algorithms())
        result = {**result, "seconds": self._rounded()}
        self._writer.finish(result, more, self.setup.run.model)
        return result

    def _algorithms(self) -> dict[str, AnyAlgorithm]:
        tail = self.setup.tail
        return {"training": self.setup.algorithm} | ({} if tail is None else {"tail": tail.algorithm})

    def _spend(self) -> dict[str, Any]:
        return spend_facts(
            total(self._spendings.values()),
            self.setup.channel.spends(),
            max_rho=self.setup.budget.max_rho,
            delta=run_delta(self._settings),
        )

    # --- checkpoints ---

    def _part_states(self) -> dict[str, PartState]:
        return {part: self._saved(part, run) for part, run in self._runs().items()}

    def _runs(self) -> dict[str, Run[Any]]:
        tail = self.setup.tail
        return {"training": self.setup.run} | ({} if tail is None else {"tail": tail.run})

    def _saved(self, part: str, run: Run[Any]) -> PartState:
        channel = self.setup.channels[part]
        recorder = self._recorder if part == "training" else None
        return PartState(
            server=run.save(),
            clients=channel.save(),
            sessions=channel.sessions,
            spend=self._spendings[part].saved,
            bytes_up={} if recorder is None else dict(recorder.sent("bytes_up")),
            bytes_down={} if recorder is None else dict(recorder.sent("bytes_down")),
        )

    def _resume(self, writer: RunWriter, saved: Checkpoint) -> None:
        """Continue from a checkpoint. In a seeded run, restored clients repeat an interrupted round with the
        same keys and noise, which reveals nothing new. In any other run, the round is skipped, clients are
        charged for its sums, and those that lied in it are barred."""
        self._done = saved.done
        left_out = writer.cut_off and not self._settings.seeded
        self._lost = left_out and saved.done < self._settings.rounds
        self._barred.update(saved.barred)
        if left_out and writer.ledger is not None:
            self._barred.update(writer.ledger.barred)
        for part, channel in self.setup.channels.items():
            state = _part_state(saved, part)
            channel.restore(state.clients, sessions=state.sessions)
        training = saved.training.server
        run = Run.resume(self.setup.algorithm, self.setup.channel, training, interrupted=left_out)
        self.setup = replace(self.setup, run=run)
        self._recorder.set_setup(self.setup)
        if self.setup.tail is not None and saved.tail is not None:
            self.setup.tail.resume(saved.tail.server, interrupted=left_out)
        if left_out:
            self._pay(lost_sums(writer, self._algorithms()))
        writer.note_resumed(saved.done, repeats=writer.cut_off and self._settings.seeded)
        writer.note_cluster(self.setup.cluster)
        writer.resumed()
        self._report_progress(done=self._done, accuracy=self._recorder.accuracy)

    def _pay(self, lost: Mapping[str, list[AnswerEntry]]) -> None:
        """Charge the run and all clients for the sums of an interrupted round, given by part of the run, and
        skip that round."""
        for part, run in self._runs().items():
            leave_out(run, lost[part])
            for entry in lost[part]:
                self._spendings[part].charge(entry.charge)
                self.setup.channels[part].take_lost(entry)

    # --- time and progress ---

    def _seconds(self) -> dict[str, float]:
        now = {"wall": time.perf_counter() - self._started, "cpu": time.process_time() - self._cpu}
        return {name: self._before.get(name, 0.0) + value for name, value in now.items()}

    def _rounded(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in self._seconds().items()}

    def _report_progress(self, *, sent: int = 0, **changes: Any) -> None:
        """Change fields of the progress (`changes`), add `sent` to its bytes, and pass it to `watch`."""
        self._progress = replace(self._progress, **{"bytes": self._progress.bytes + sent, **changes})
        self._watch(self._progress)


class RunSumLogger:
    """Receives the records of the sums of one part of a run: "training", or "tail" (histogram of errors). It
    charges the sums to `spending` and passes the records to `write`. `number()` returns a new session number,
    unique in the run. `on_progress` receives changed fields of `Progress`, and bytes `sent`, by keyword."""

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


def _forget(_record: SessionRecord | SumRecord) -> None:
    pass


def _part_state(saved: Checkpoint, part: str) -> PartState:
    state = saved.training if part == "training" else saved.tail
    assert state is not None  # Runs with the same digest have the same parts.
    return state


def _sent(saved: Checkpoint | None) -> dict[str, Counter[str]]:
    if saved is None:
        return {"bytes_up": Counter(), "bytes_down": Counter()}
    return {"bytes_up": Counter(saved.training.bytes_up), "bytes_down": Counter(saved.training.bytes_down)}
