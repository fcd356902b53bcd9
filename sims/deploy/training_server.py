"""`secagg serve` with a scenario: trains its model with the clients that connect, round after round.

The event loop carries frames. A thread runs the algorithm: it blocks while the loop works for it. After every
round, the run directory has a checkpoint and the model. A server that was killed goes on from there, and asks
no round again that it may have asked before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import trio

from protocols.run import RoundReport, Run
from protocols.serialisation import pack
from secagg.differencing_rules import SetLog
from secagg.errors import SecaggError
from secagg.events import ServerEvent
from secagg.ledger import ServerLedger
from secagg.machine_hooks import ServerHooks
from secagg.net.atomic_files import PRIVATE
from secagg.net.event_log import EventLog
from secagg.net.server import Server
from secagg.net.tunnel import Carrier
from sims.config_problems import ConfigError, Problems, toml_tables
from sims.coordination.client_runtime import RunOutcome
from sims.coordination.coordinator import Coordinator
from sims.coordination.network_session import CallInLoop
from sims.coordination.run_writer import Origin, RunShape, RunWriter, open_run
from sims.coordination.sum_settings import SumSettings
from sims.deploy.config import DeploySection, ScenarioDeployment, load
from sims.deploy.connected_clients import (
    ConnectedClients,
    connected_ids,
    others_came,
    session_machine,
)
from sims.deploy.credentials import server_credentials
from sims.deploy.evidence_directory import EvidenceKeeper
from sims.deploy.finished_run import OUTCOME_FILE, FinishedRun
from sims.deploy.http_endpoint import MAX_CONNECTIONS
from sims.deploy.log import open_log
from sims.deploy.model_files import write_model
from sims.deploy.monitoring import check_metrics
from sims.deploy.process_control import allow_connections, run_watched
from sims.deploy.renewal import LiveServerCredentials, wait_for_registry
from sims.deploy.run_terms import RunTerms, run_terms
from sims.deploy.served_metrics import ServedMetrics
from sims.deploy.training_checks import (
    check_clients_left,
    check_cohort,
    check_deploy_section,
    check_finished,
    check_run_directory,
    served_directory,
)
from sims.deploy.training_monitoring import (
    METRICS_KEY,
    WHERE,
    wait_for_room,
)
from sims.process_resources import forbid_core_dumps
from sims.records.run_directory import FINISHED, SERVED
from sims.records.run_file_names import LEDGER, MODEL, OUTCOME
from sims.report import write_report
from sims.scenario.federated_data import participation_limit
from sims.scenario.loading_and_variants import Variant
from sims.scenario.participation import Participations

T = TypeVar("T")
OnRound: TypeAlias = Callable[[RoundReport], None]
_MOST_DOUBLINGS: Final = 6  # of the seconds between two rounds
_REQUIRED: Final = ", ".join(name for name, each in DeploySection.model_fields.items() if each.is_required())


def load_deployment(path: Path) -> tuple[DeploySection, RunTerms, LiveServerCredentials]:
    """Return the table [deploy] of the scenario at `path`, the terms of its run, and its credentials.
    Raise `ConfigError` with all problems that were found."""
    if "deploy" not in toml_tables(path):
        raise ConfigError(f"{path}: deploy: is missing; add a table [deploy] with {_REQUIRED}")
    section = load(path, ScenarioDeployment).deploy
    return checked_deployment(path, section, lambda: run_terms(path, path.parent))


def checked_deployment(
    path: Path, section: DeploySection, make_terms: Callable[[], RunTerms]
) -> tuple[DeploySection, RunTerms, LiveServerCredentials]:
    """Return `section`, the terms and the credentials. Raise `ConfigError` with all problems that were found;
    `path` is the file that they are in."""
    problems = Problems(path)
    credentials = server_credentials(section, problems, now=int(time.time()), name="deploy")
    check_deploy_section(path, section, problems)
    check_metrics(section.metrics, problems, f"{WHERE}.{METRICS_KEY}")
    problems.check()
    assert credentials is not None
    live = LiveServerCredentials(credentials, section, "deploy")
    terms = make_terms()
    check_cohort(section, terms, credentials.registry, problems)
    problems.check()
    with problems.about("deploy"):
        session_machine(section, terms, live, ServerHooks())
    with problems.about("deploy.run"):
        check_run_directory(section.run, _digest(terms))
    problems.check()
    return section, terms, live


def serve_training(path: Path, carrier: Carrier | None = None) -> None:
    """Train the model of the scenario at `path` until its last round, or SIGTERM. With a `carrier`, an engine
    carries the connections. Raise a `SecaggError` if an operator has to repair something."""
    forbid_core_dumps()
    section, terms, credentials = load_deployment(path)
    with open_log(section.log) as writer:
        log = EventLog(writer)
        with open_server_run(section, terms, credentials, log, carrier=carrier) as server:
            run_watched(
                server.run,
                registry=lambda: credentials.registry,
                log=log,
                on_hangup=credentials.watch.nudge,
            )


def no_report(_report: RoundReport) -> None:
    pass


@contextmanager
def open_server_run(
    section: DeploySection,
    terms: RunTerms,
    credentials: LiveServerCredentials,
    log: EventLog,
    on_round: OnRound = no_report,
    carrier: Carrier | None = None,
) -> Iterator[FinishedRun]:
    """Open the run directory, new or with an earlier run, and yield what serves it. `on_round` is called in
    another thread with the report of every round. `carrier` is the engine that carries the connections, if
    any. Raise `ConfigError` if the directory cannot be used."""
    members = len(credentials.registry.members)
    allow_connections(members + section.capacity.strangers + MAX_CONNECTIONS)
    directory, digest = served_directory(section.run), _digest(terms)
    if directory.exists and directory.status == FINISHED:
        check_finished(directory, digest)
        with ServerLedger.open(directory / LEDGER) as ledger:
            yield FinishedRun(section, terms, credentials, log, ledger, carrier)
        return
    origin = Origin(name=terms.name, digest=digest, label=terms.name)
    opened = open_run(
        directory, terms.settings, origin, resume=directory.exists, identity=credentials.identity
    )
    with opened as writer:
        try:
            yield TrainingServer(section, terms, credentials, writer, log, on_round, carrier)
        except SecaggError as error:
            writer.leave(str(error))
            raise
        finally:
            writer.leave()


def _digest(terms: RunTerms) -> str:
    """Return what identifies the settings of a run in its directory."""
    return Variant({}, terms.settings).digest


def _participations(terms: RunTerms, credentials: LiveServerCredentials) -> Participations | None:
    limit = participation_limit(terms.settings)
    if limit is None:
        return None
    return Participations(limit, credentials.registry.members, terms.settings.rounds)


class TrainingServer(FinishedRun):
    """Serves a training run: it runs the rounds, and then tells clients the outcome."""

    def __init__(
        self,
        section: DeploySection,
        terms: RunTerms,
        credentials: LiveServerCredentials,
        writer: RunWriter,
        log: EventLog,
        on_round: OnRound = no_report,
        carrier: Carrier | None = None,
    ) -> None:
        super().__init__(section, terms, credentials, log, writer.ledger, carrier)
        self._on_round = on_round
        self._writer = writer
        self._evidence = EvidenceKeeper(section.evidence, log)
        self._participations = _participations(terms, credentials)
        self._metrics = ServedMetrics(terms, writer, self._participations)
        self._done = 0
        self._failed = sum(not line["completed"] for line in writer.lines)
        self._losses = 0  # rounds that failed one after the other

    async def _outcome(self, server: Server) -> bytes:
        # If the server is stopped, the next call from the thread into this event loop raises `Cancelled`. The
        # thread is waited for: it uses the ledger and the run directory, which are closed after it.
        return await trio.to_thread.run_sync(self._train, server, cast(CallInLoop, trio.from_thread.run))

    async def _tell_everybody(self, server: Server) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._write_report)
            await super()._tell_everybody(server)

    def _write_report(self) -> None:
        try:
            write_report(self._section.run)
        except SecaggError as error:
            self._log.write("caution", reason=f"there is no report: {error}")

    # --- in the thread of the algorithm ---

    def _train(self, server: Server, call: CallInLoop) -> bytes:
        terms = self._terms
        transport = ConnectedClients(
            self._section, terms, self._credentials, server, call, self._on_event, self._participations
        )
        settings = replace(self._settings(), sample_cohort=transport.draw)
        coordinator = Coordinator(terms.algorithm, transport, settings)
        run = self._begin(coordinator)
        while self._done < terms.settings.rounds:
            self._check_clients_left()
            self._wait(server, call, coordinator)
            wait_for_room(self._section, self._writer.ledger, self._log, partial(call, trio.sleep))
            connected = call(connected_ids, server)
            if not self._hold_round(run, coordinator, transport):
                call(others_came, server, connected)
            else:
                call(trio.sleep, self._rest(completed=run.round_info.completed(run.round_info.number - 1)))
        coordinator.end_session()
        outcome = pack(RunOutcome(run.round_info, run.model))
        OUTCOME_FILE.replace(self._section.run / OUTCOME, outcome, mode=PRIVATE)
        self._metrics.finish(run, coordinator)
        return outcome

    def _rest(self, *, completed: bool) -> float:
        """Return the seconds to wait after a round. They double with every round that fails after another, so
        that a lasting problem does not use up the rounds of the run before an operator has seen it."""
        self._losses = 0 if completed else self._losses + 1
        return 0.0 if completed else self._section.rest * 2.0 ** min(self._losses - 1, _MOST_DOUBLINGS)

    def _check_clients_left(self) -> None:
        if self._participations is not None:
            members = set(self._credentials.registry.members) - self._barred
            rounds, least = self._terms.settings.rounds, self._section.min_cohort
            check_clients_left(self._participations, members, least, self._done, rounds)

    def _hold_round(self, run: Run[Any], coordinator: Coordinator, transport: ConnectedClients) -> bool:
        """Run a round and keep its outcome. Return whether it counts: if no client was asked, because clients
        are missing without whom the others refuse, it does not, and its number is used again."""
        started, asked, before = time.perf_counter(), len(coordinator.asked), run.round_info
        report = run.round()
        if not report.completed:
            self._log.write("round failed", round=report.number, reason=str(report.failure))
        if not report.completed and all(each.index is None for each in coordinator.asked[asked:]):
            run.round_info = before
            if self._monitoring is not None and report.failure is not None:
                self._monitoring.note_not_held(report.failure)
            return False
        transport.note_round(report.number)
        self._done += 1
        self._failed += not report.completed
        self._keep(run, coordinator, report, time.perf_counter() - started)
        return True

    def _settings(self) -> SumSettings:
        channel = self._terms.settings.channel
        return SumSettings(
            trust=channel.trust,
            corrupt=channel.corrupt,
            dropout=channel.dropout,
            graph=channel.graph,
            key_agreement=channel.key_agreement,
            min_difference=channel.min_difference,
            min_cohort=self._section.min_cohort,
            sums=channel.sums,
            log=self._metrics.sum_log,
            ledger=self._writer.open_ledger(),
            barred=self._barred,
        )

    def _begin(self, coordinator: Coordinator) -> Run[Any]:
        """Return the run: new, or from its checkpoint."""
        terms, saved = self._terms, self._writer.saved
        if saved is None:
            run: Run[Any] = Run(terms.algorithm, coordinator, terms.algorithm.start(terms.initial))
            shape = RunShape(
                clients=terms.clients,
                algorithm=terms.algorithm,
                channel=SERVED,
                can_simulate=terms.federation is not None,
            )
            self._writer.begin(shape)
            self._metrics.begin(run, coordinator)
            return run
        self._done = saved.done
        if self._participations is not None:
            self._participations.restore(saved.training.clients)
        self._barred.update(saved.barred)
        if self._writer.ledger is not None:
            self._barred.update(self._writer.ledger.barred)
        run = Run.resume(terms.algorithm, coordinator, saved.training.server)
        history = SetLog() if self._writer.ledger is None else self._writer.ledger.history
        coordinator.restore(
            saved.training.sessions, history.copy(all_clients=terms.algorithm.needs_all_clients)
        )
        self._skip_lost(run, coordinator)
        self._log.write("resumed", done=self._done, round=run.round_info.number)
        return run

    def _skip_lost(self, run: Run[Any], coordinator: Coordinator) -> None:
        """Skip the rounds that were asked after the checkpoint, and add their cost. If all sums have noise,
        these rounds count: the clients' budget is for all rounds, and they have paid for the lost ones."""
        lost = [row.body for row in self._writer.lost_rows() if row.body["entry"] == "asked"]
        self._metrics.resume(lost)
        rounds = sorted({body["round"] for body in lost})
        while rounds and run.round_info.number <= rounds[-1]:
            run.round_info = run.round_info.next(completed=False)
        if self._terms.algorithm.budget is not None:
            for _ in rounds[: self._terms.settings.rounds - self._done]:
                self._done += 1
                self._failed += 1
                self._metrics.lose(run, coordinator, self._done, self._barred)

    def _wait(self, server: Server, call: CallInLoop, coordinator: Coordinator) -> None:
        """Wait until the registry is current, enough clients are connected, and a round with some of them is
        allowed. The server's events and the log say so at intervals."""
        apart = self._terms.settings.channel.min_difference
        while True:
            call(wait_for_registry, lambda: self._credentials.registry, self._log)
            call(partial(server.wait_for_clients, self._section.min_cohort, barred=self._barred))
            if coordinator.batch(coordinator.invited(coordinator.round_info)) is not None:
                return
            connected = call(connected_ids, server)
            self._log.write("waiting", connected=len(connected), batch=apart, barred=len(self._barred))
            call(others_came, server, connected)

    def _keep(self, run: Run[Any], coordinator: Coordinator, report: RoundReport, seconds: float) -> None:
        self._writer.sign_as(self._credentials.identity)  # which may have changed
        path = self._section.run / MODEL
        write_model(path, run.model, self._terms)
        line = self._metrics.keep(run, coordinator, report, self._done, seconds, self._barred)
        facts = {name: round(value, 4) for name, value in line["facts"].items() if isinstance(value, float)}
        self._log.write("round", round=report.number, clients=report.clients, **facts)
        self._on_round(report)

    def _on_event(self, event: ServerEvent) -> None:
        self._evidence.keep(event)
