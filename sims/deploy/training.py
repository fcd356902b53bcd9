"""Federated training for programs: the server and the clients of `secagg serve` and `secagg join` as calls.

    TERMS = training_terms(Net, clients=3, rounds=20, algorithm={"name": "rfa"}, training={"rate": 0.1})

    with train_as_server(TERMS, listen="0.0.0.0:7443", min_cohort=3, files={"key": "server.key", ...}) as run:
        for report in run:
            print(report.number, report.clients, report.facts)
    trained = run.model

    models = train_as_client(TERMS, dataset, member=1, server="host:7443", files={"key": "1.key", ...})

All calls block. They run in plain threads and, with `await asyncio.to_thread(...)`, in asyncio programs: each
has an event loop in a thread of its own. Sums, connections and rounds go to the logger of `secagg.net`, or to
the file `log`; "-" is standard output. Core dumps of the process are disabled: they would contain keys.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import trio
from torch import nn

from fl.errors import FLError
from fl.torch_datasets import OwnData, client_data_of
from protocols.learner import Learner
from protocols.run import RoundReport
from protocols.serialisation import Vector, unpack
from secagg.errors import Closed, SecaggError, StateError
from secagg.identity_registry import Registry
from secagg.ledger import ClientLedger
from secagg.net.event_log import EventLog
from secagg.net.event_loop_thread import EventLoopThread
from secagg.net.tunnel import Carrier
from sims.config_problems import ConfigError, Problems, shown, toml_tables
from sims.coordination.client_runtime import RunOutcome, no_schedule
from sims.deploy.client_setup import ClientSetup, client_setup
from sims.deploy.config import (
    STDOUT,
    THROUGH_ENGINE,
    DeploySection,
    JoinConfig,
    ScenarioDeployment,
    validated,
)
from sims.deploy.finished_run import FinishedRun
from sims.deploy.join import JoinRunner
from sims.deploy.log import event_log_of
from sims.deploy.model_files import trained_module
from sims.deploy.process_control import single_error, start_watching
from sims.deploy.run_terms import RunTerms, run_terms, terms_of
from sims.deploy.training_client import (
    RunClient,
    check_cohort,
    checked_learner,
    client_with,
    learner_of,
)
from sims.deploy.training_server import checked_deployment, open_server_run
from sims.process_resources import forbid_core_dumps
from sims.scenario.settings import Settings
from sims.scenario.training_task import own_module

Terms: TypeAlias = RunTerms | Path | str  # terms, or the path of a scenario
Table: TypeAlias = Mapping[str, Any]
Files: TypeAlias = Mapping[str, str | Path]
_OWN_MODEL: Final = "own"
_START: Final = "start"
_GLANCE: Final = 0.2  # seconds between two looks at whether a client is to stop
_ROOM: Final = 2  # a client answers this many times the sums of an undisturbed run, which a restart repeats


def training_terms(
    make_module: Callable[[], nn.Module],
    *,
    clients: int,
    rounds: int,
    algorithm: Table,
    training: Table,
    name: str = "training",
    **more: Any,
) -> RunTerms:
    """Return the terms of a run, which server and clients must have in common.

    `make_module`  returns the untrained model: its class, or a function. Weights are drawn from `seed`.
    `clients`      most clients of a round.
    `algorithm`, `training`  the tables of a scenario with these names, as mappings.
    `more`         `seed`, and the tables `channel`, `privacy`, `server`, `cohort` and `model`. The last has
                   only `start`, the run directory or model.npz with whose weights the run starts.

    Raises `ConfigError` if something is invalid.
    """
    if isinstance(make_module, nn.Module):
        raise ConfigError("make_module: give the class of the model or a function, not the model itself")
    tables = {"rounds": rounds, "algorithm": algorithm, "training": training, **more}
    tables["model"] = {"kind": _OWN_MODEL, **_start(more.get("model", {}))}
    settings = validated(tables, Settings, Path("training_terms"))
    try:
        module = own_module("make_module", make_module, settings.seed)
        return terms_of(name, settings, clients=clients, module=module)
    except (FLError, SecaggError) as error:
        raise ConfigError(f"training_terms: {error}") from None


def _start(model: Table) -> dict[str, str]:
    """Return the table `model` of a program, which may say where the weights come from. Raise `ConfigError`
    if it has other keys: what a scenario says there about the model, `make_module` says here."""
    if not isinstance(model, Mapping):
        raise ConfigError(f"training_terms: model: must be a mapping, not {shown(model)}")
    for key in model:
        if key != _START:
            raise ConfigError(
                f"training_terms: model.{key}: is not known here, only {_START}: the model is what "
                "make_module returns, so give it the parameters, for instance with functools.partial"
            )
    return {key: str(value) if isinstance(value, Path) else value for key, value in model.items()}


# --- server ---


def train_as_server(
    terms: Terms, *, files: Files | None = None, carrier: Carrier | None = None, **deploy: Any
) -> ServedTraining:
    """Serve a training run, which begins when enough clients are connected. Return an iterator over its
    rounds; use it in a `with` block.

    `terms`   those of `training_terms`, or the path of a scenario.
    `files`   names of files: `key`, `certificate`, `authority`, `registry` and `run`, the run directory;
              optionally `log`.
    `deploy`  further keys of a scenario's table [deploy]: `listen` and `min_cohort` are required. If a
              scenario is given, both override its table [deploy]; clients need the same `clients` in theirs.
    `carrier` an engine that carries the connections, such as Flower; `listen` is then not used.

    If the directory `run` has an earlier run of these terms, it goes on after its last round. Raises
    `ConfigError` if something is invalid, and what prevents the server from listening.
    """
    forbid_core_dumps()
    path = Path("train_as_server") if isinstance(terms, RunTerms) else Path(terms)
    own: Table = {} if isinstance(terms, RunTerms) else toml_tables(path).get("deploy", {})
    place = {} if carrier is None else {"listen": THROUGH_ENGINE}
    tables = {"deploy": {**own, **_paths(files), **deploy, **place}}
    section = validated(tables, ScenarioDeployment, path).deploy
    checked = checked_deployment(path, section, lambda: _terms(terms, section.clients))
    return ServedTraining(*checked, carrier)


def _terms(terms: Terms, clients: int | None = None) -> RunTerms:
    """Return the terms, for `clients` clients if a scenario is given. Raise `ConfigError` if terms that are
    made already are for another number."""
    if not isinstance(terms, RunTerms):
        return run_terms(Path(terms), Path(terms).parent, clients)
    if clients not in (None, terms.clients):
        raise ConfigError(
            f"deploy.clients: is {clients}, but the terms are for {terms.clients} clients: leave it out"
        )
    return terms


def _paths(files: Files | None) -> dict[str, str | Path]:
    """Return the names of files as paths, which are relative to the current directory. The log "-" is no
    file."""
    given = files or {}
    return {name: file if (name, file) == ("log", STDOUT) else Path(file) for name, file in given.items()}


class ServedTraining:
    """A training run that is served: an iterator over the reports of its rounds (`RoundReport`).

    The iterator ends when the last round is over and the clients have the final model, or `linger` seconds
    later. It raises the error that ended the run. The run goes on in other threads, whether or not the
    reports are read. `close`, or the end of the block, stops a run that is not over. `address` is where the
    server listens, as "host:port", with the port that it got if `listen` has port 0.
    """

    def __init__(
        self, section: DeploySection, terms: RunTerms, credentials: Any, carrier: Carrier | None = None
    ) -> None:
        self._terms = terms
        self._reports: queue.SimpleQueue[RoundReport | None] = queue.SimpleQueue()
        with ExitStack() as stack:
            log = stack.enter_context(event_log_of(section))
            opened = open_server_run(section, terms, credentials, log, self._reports.put, carrier)
            self._server = stack.enter_context(opened)
            serving = _Serving(self._server, lambda: credentials.registry, log, self._reports.put)
            self._loop = stack.enter_context(EventLoopThread(serving.open, name="the server"))
            self.address: str = self._loop.value
            self._stack = stack.pop_all()

    def __iter__(self) -> Iterator[RoundReport]:
        while (report := self._reports.get()) is not None:
            yield report
        self._reports.put(None)  # for other iterators
        self.close()

    @property
    def model(self) -> nn.Module:
        """The final model; float64 if `training.precision` is. Raises `StateError` before the last round is
        over."""
        if self._server.outcome is None:
            raise StateError("there is no final model yet: iterate over the rounds")
        return trained_module(unpack(RunOutcome, self._server.outcome).model, self._terms).eval()

    def close(self) -> None:
        """Stop the run and wait until it has stopped. Raises the error that ended it before."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


@dataclass(frozen=True)
class _Serving:
    """Runs a server in the background of an event loop, and puts None into the queue when it has ended."""

    server: FinishedRun
    registry: Callable[[], Registry]
    log: EventLog
    put: Callable[[None], None]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the address at which the server listens."""
        async with trio.open_nursery() as nursery:
            start_watching(nursery, self.registry, self.log)
            yield await nursery.start(self._run)
            nursery.cancel_scope.cancel()

    async def _run(self, *, task_status: trio.TaskStatus[str]) -> None:
        try:
            await self.server.run(task_status=task_status)
        finally:
            self.put(None)


# --- client ---


@dataclass(frozen=True)
class TrainedModels:
    """The final common model, and the client's own. They are equal unless the algorithm personalises. Both
    are float64 if `training.precision` is."""

    common: nn.Module
    personal: nn.Module


def train_as_client(
    terms: Terms,
    data: OwnData | None = None,
    *,
    member: int,
    server: str,
    files: Files,
    learner: Learner | None = None,
    policy: Table | None = None,
    stop: threading.Event | None = None,
) -> TrainedModels:
    """Take part in a training run until its end, and return the final models.

    `terms`    those of `training_terms`, or the path of a scenario; equal to the server's.
    `data`     this client's samples: a torch `Dataset` with items (input, target), a `DataLoader` of one,
               or a pair (train, test) of either.
    `learner`  trains in place of the terms' module and `data`.
    `member`   the id of this client in the registry, and `server` the address of the server.
    `files`    names of files: `key`, `certificate`, `server_certificate`, `authority` and `registry`;
               `ledger`, the record of its answers, which is made if there never was one; `state`, its
               personal model and other memory, encrypted with a key that lies beside it; optionally `log`.
    `policy`   keys of a client's table [policy] that differ from `default_policy`.
    `stop`     ends the call when another thread sets it: `secagg.errors.Closed` is raised within a few
               seconds, or when an answer is computed that was begun before.

    A client that was killed or stopped goes on when it is called again. Raises `ConfigError` if something is
    invalid or if the server has other terms, and other `SecaggError`s if the owner has to repair something.
    """
    forbid_core_dumps()
    agreed = _terms(terms)
    config = _client_config(agreed, member, server, files, policy)
    problems = Problems(_CLIENT)
    with problems.about("policy.max_cohort"):
        check_cohort(config.policy.max_cohort, agreed)
    problems.check()
    ended: list[TrainedModels] = []

    def on_end(common: Vector, personal: Vector) -> None:
        models = (trained_module(each, agreed).eval() for each in (common, personal))
        ended.append(TrainedModels(*models))

    try:
        trains = _learner_of(agreed, data, learner, member)
        training = client_with(agreed, trains, config, on_end)
    except FLError as error:
        raise ConfigError(f"data: {error}") from None
    with closing(training):
        _take_part(_with_ledger(config, training), stop)
    if not ended:
        raise Closed("the client was stopped before the end of the run")
    return ended[0]


_CLIENT: Final = Path("train_as_client")


def _client_config(
    terms: RunTerms, member: int, server: str, files: Files, policy: Table | None
) -> JoinConfig:
    named_files = _paths(files)
    tables: dict[str, Any] = {
        "input": {name: named_files.pop(name) for name in ("state",) if name in named_files},
        "client": {"member": member, "server": server, **named_files},
        "policy": {**default_policy(terms), **(policy or {})},
    }
    return validated(tables, JoinConfig, _CLIENT)


def default_policy(terms: RunTerms) -> dict[str, Any]:
    """Return a policy that allows what `terms` need and no less protection: the same trust and colluders, the
    noise of one run, and twice its sums without noise, because a restart repeats rounds."""
    channel, algorithm = terms.settings.channel, terms.algorithm
    assert algorithm.table is not None
    open_sums = sum(spec.times for spec in algorithm.table.values() if not spec.is_private)
    return {
        "trust": channel.trust,
        "corrupt": channel.corrupt,
        "min_cohort": channel.corrupt + 2,
        "max_cohort": algorithm.clients,
        "min_contributors": channel.corrupt + 2,
        "max_sums": channel.sums,
        "unnoised_sums": _ROOM * terms.settings.rounds * open_sums,
        "max_rho": algorithm.max_rho,
        **({} if algorithm.budget is None else {"adjacency": str(algorithm.budget.goal.adjacency)}),
        "min_difference": channel.min_difference,
        "key_agreement": channel.key_agreement,
    }


def _learner_of(terms: RunTerms, data: OwnData | None, learner: Learner | None, member: int) -> Any:
    if (data is None) == (learner is None):
        given = "neither" if data is None else "both"
        raise ConfigError(f"train_as_client: give data or a learner; this call has {given}")
    if learner is not None:
        return checked_learner("learner", learner, terms), no_schedule
    assert data is not None
    return learner_of(client_data_of(data), terms, member)


def _with_ledger(config: JoinConfig, training: RunClient) -> ClientSetup:
    """Return the verified setup of the client. Make its ledger if there is none and never was one."""
    setup = client_setup(config, _CLIENT, training=training, with_ledger=config.client.ledger.exists())
    if not config.client.ledger.exists():
        public = setup.credentials.identity.public
        ClientLedger.create(config.client.ledger, member=config.client.member, identity=public).close()
    return setup


def _take_part(setup: ClientSetup, stop: threading.Event | None) -> None:
    with ExitStack() as stack:
        log = stack.enter_context(event_log_of(setup.config.client))
        runner = JoinRunner(setup, stack.enter_context(setup.open_ledger()), log, sessions=0)
        loop = stack.enter_context(EventLoopThread(lambda: _watched(runner, log), name="the client"))
        try:
            loop.call(_run_until, stop, runner)
        except BaseExceptionGroup as group:
            raise single_error(group) from None


async def _run_until(stop: threading.Event | None, runner: JoinRunner) -> None:
    """Run the client until its end, or until `stop` is set. That is looked at from time to time: a thread
    that waits for it would stay behind after every run that is not stopped."""
    async with trio.open_nursery() as nursery:
        if stop is not None:
            nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
        await runner.run()
        nursery.cancel_scope.cancel()


async def _cancel_when(stop: threading.Event, scope: trio.CancelScope) -> None:
    while not stop.is_set():  # noqa: ASYNC110  (an event of threads, which trio cannot await)
        await trio.sleep(_GLANCE)
    scope.cancel()


@asynccontextmanager
async def _watched(runner: JoinRunner, log: EventLog) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        start_watching(nursery, lambda: runner.registry, log)
        yield
        nursery.cancel_scope.cancel()
