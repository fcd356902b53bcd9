"""`secagg join`: verifies a client's configuration, then takes part in the sessions of its server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from secagg.errors import InputError, PeerError, SecaggError, UnchangedValues
from secagg.events import Asked, Joined, SessionOver
from secagg.ledger import ClientLedger
from secagg.net.client import Client
from secagg.net.event_log import EventLog, Fact
from secagg.net.events import ClientNetworkEvent, NoticeReceived, RegistryAdopted, SessionRefused
from secagg.net.notices import MAX_CLIENT_NOTICE, Notice, Topic
from secagg.net.open_client_and_server import open_client
from secagg.net.settings import ENGINE
from secagg.net.tls import ClientTls
from secagg.net.tunnel_dialer import NodeEngine, carried
from sims.config_problems import ConfigError
from sims.deploy.client_setup import ClientSetup, load_client_setup
from sims.deploy.log import open_log
from sims.deploy.process_control import run_watched, single_error
from sims.deploy.renewal import ClientFiles
from sims.process_resources import forbid_core_dumps

if TYPE_CHECKING:
    from sims.coordination.client_runtime import RunOutcome


OpenEngine: TypeAlias = Callable[[EventLog], NodeEngine]
_NO_ENGINE: Final = (
    'is "engine": add --flower HOST:PORT or --relay SOCKET, or let NVFlare start this client. For '
    "connections without an engine, write host:port"
)


def join(path: Path, *, sessions: int = 0, open_engine: OpenEngine | None = None) -> None:
    """Run the client with the configuration at `path`, until SIGTERM or for `sessions` sessions (0: no
    limit). The engine that `open_engine(log)` returns carries the connection to the server, if it is given.
    Raise a `SecaggError` if an operator has to repair something."""
    forbid_core_dumps()
    plan = load_client_setup(path, through_engine=open_engine is not None)
    with open_log(plan.config.client.log) as log, plan.open_ledger() as ledger:
        events = EventLog(log)
        engine = None if open_engine is None else open_engine(events)
        runner = JoinRunner(plan, ledger, events, sessions=sessions, engine=engine)
        run_watched(
            runner.run, registry=lambda: runner.registry, log=events, on_hangup=runner.files.watch.nudge
        )


_MOST_SHOWN: Final = 5  # differences that one message names


class JoinRunner:
    """Takes part in the sums of a server. Ends after `sessions` sessions, or never if `sessions` is 0. With
    an `engine`, it carries the connection. Raise `ConfigError` if the configuration wants one, and there is
    none."""

    def __init__(
        self,
        plan: ClientSetup,
        ledger: ClientLedger,
        log: EventLog,
        *,
        sessions: int,
        engine: NodeEngine | None = None,
    ) -> None:
        if engine is None and plan.config.client.server is ENGINE:
            raise ConfigError(f"client.server: {_NO_ENGINE}")
        self._engine = engine
        self._plan = plan
        self._ledger = ledger
        self._log = log
        self._sessions = sessions
        self._in_session = False
        self._held = 0
        self._enough = trio.Event()
        self._client: Client | None = None
        self._failure: str | None = None  # why this client does not train with its server
        self._told: Notice | None = None  # the same, for the server
        self._refused: SecaggError | None = None  # why it left a session last, which the server knows
        self._agreed = False  # whether the server's terms are this client's
        self._outcome: RunOutcome | None = None  # of the run, when it has ended
        self.registry = plan.credentials.registry  # the newest one
        self.files = ClientFiles(plan.config.client, plan.credentials, ledger, log)

    def _on_event(self, event: ClientNetworkEvent) -> None:
        self._log(event)
        self.files.store(event)
        if isinstance(event, RegistryAdopted):
            self.registry = event.registry
        if self._plan.training is not None:
            self._plan.training.runtime.on_event(event)
        if isinstance(event, NoticeReceived):
            self._take_notice(event.notice)
        if isinstance(event, SessionRefused):
            self._refused = event.error
        if isinstance(event, Joined):
            self._in_session = True
        elif isinstance(event, SessionOver) and self._in_session:
            self._in_session = False
            self._held += 1
            if self._held == self._sessions:
                self._enough.set()

    def _take_notice(self, notice: Notice) -> None:
        """Compare the server's terms with this client's, or take the end of the run. Ignore other notices,
        and the end of a run with other terms. Raise `MalformedMessage` if it cannot be that of this run."""
        training = self._plan.training
        if training is None:
            return
        match notice.topic:
            case Topic.TERMS:
                differences = training.terms.differences(notice.body)
                self._agreed = not differences
                if differences:
                    self._failure = told(differences)
                    self._told = Notice(Topic.TERMS, self._failure.encode()[: MAX_CLIENT_NOTICE // 2])
                    self._enough.set()
            case Topic.RUN_ENDED if self._agreed and self._outcome is None:
                self._outcome = training.outcome(notice.body)
                self._enough.set()

    async def run(self) -> None:
        """Take part until it is enough. Raise `ConfigError` if the server's terms are not this client's."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_done, nursery.cancel_scope)
            async with self._carried():
                await self._take_part()
        if self._failure is not None:
            scenario = self._plan.config.client.scenario
            raise ConfigError(self._failure if scenario is None else f"{scenario}: {self._failure}")

    def _carried(self) -> AbstractAsyncContextManager[None]:
        if self._engine is None:
            return nullcontext()
        return carried(self._engine, farewell=self._plan.patience.farewell)

    async def _leave_when_done(self, scope: trio.CancelScope) -> None:
        await self._enough.wait()
        if self._outcome is not None and self._plan.training is not None:
            await trio.to_thread.run_sync(self._plan.training.finish, self._outcome, abandon_on_cancel=True)
            self._log.write("run ended")
            self._told = Notice(Topic.RUN_ENDED, b"")  # the server need not wait for this client any more
        if self._told is not None and self._client is not None:
            self._client.tell(self._told)
            with trio.move_on_after(self._plan.patience.farewell):
                await self._client.flush()
        scope.cancel()

    async def _take_part(self) -> None:
        plan, section, own = self._plan, self._plan.config.client, self._plan.credentials
        identity, _ = plan.signer
        async with open_client(
            section.server if self._engine is None else self._engine.dialer,
            member=section.member,
            table=plan.table,
            policy=plan.policy_for(self._ledger),
            memory=self._ledger,
            identity=identity,
            registry=own.registry,
            authority=own.authority,
            static=plan.static_kinds,
            content_of=plan.content_of,
            context=ClientTls(own.identity, own.certificate, own.server),
            patience=plan.patience,
            on_event=self._on_event,
        ) as client:
            self._client = client
            self._log_start()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.files.follow, client)
                    async for asked in client:
                        await self._answer(client, asked)
            except BaseExceptionGroup as group:
                self._tell_why(client, single_error(group))
                raise

    def _tell_why(self, client: Client, error: BaseException) -> None:
        """Tell the server the name of the error that ends this client, unless it was told already. The text
        of the error is for the owner of this client only."""
        if isinstance(error, SecaggError) and error is not self._refused:
            client.tell(Notice(Topic.REFUSAL, type(error).__name__.encode()))

    def _log_start(self) -> None:
        section, spend = self._plan.config.client, self._ledger.spend
        self._log.write(
            "started",
            member=section.member,
            server=str(section.server),
            trust=str(self._plan.policy.trust),
            key_agreement=str(self._plan.policy.key_agreement),
            registry=self._plan.credentials.registry.version,
            unnoised_sums=spend.unnoised,
            rho=spend.rho,
        )
        for caution in self._plan.cautions:
            self._log.write("caution", reason=caution)

    async def _answer(self, client: Client, asked: Asked) -> None:
        about: dict[str, Fact] = {"sum": asked.sum_index, "kind": asked.kind}
        try:
            answered = await client.answer_with(asked, partial(self._plan.answer, asked))
        except (InputError, UnchangedValues) as error:
            self._log.write("declined", **about, reason=str(error))
            await client.decline(asked)
            return
        except PeerError as error:  # a query that no honest server sends
            self._log.write("refused", **about, error=type(error).__name__, reason=str(error))
            await client.decline(asked)
            return
        if not answered and self._plan.training is not None:
            self._plan.training.runtime.too_late(asked)
        self._log.write("answered" if answered else "too late", **about)


def told(differences: list[str]) -> str:
    """Return a sentence about terms that differ."""
    more = f"; and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
    return f"the terms differ: {'; '.join(differences[:_MOST_SHOWN])}{more}"
