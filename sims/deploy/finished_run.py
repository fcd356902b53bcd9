"""Serves a training run whose last round is over: it tells the outcome to clients that come later."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import trio

from secagg.ledger import ServerLedger
from secagg.net.atomic_files import FileKind
from secagg.net.event_log import EventLog
from secagg.net.events import ClientNotice, ServerNetworkEvent
from secagg.net.notices import Notice, Topic
from secagg.net.server import Server
from secagg.net.tunnel import Carrier
from sims.config_problems import ConfigError
from sims.deploy.config import OFF, DeploySection
from sims.deploy.listening import ListenSettings, listen
from sims.deploy.monitoring import Monitoring
from sims.deploy.renewal import LiveServerCredentials
from sims.deploy.run_terms import RunTerms
from sims.deploy.training_monitoring import training_cautions, training_monitoring
from sims.records.run_file_names import OUTCOME

OUTCOME_FILE: Final = FileKind("the outcome of a run", "name another run directory", ConfigError)


class FinishedRun:
    """Serves a run whose last round is over: it tells the outcome to the clients that come. Figures and
    health are served if the `ledger` is given. With a `carrier`, an engine carries the connections, and the
    address of the section is not used."""

    def __init__(
        self,
        section: DeploySection,
        terms: RunTerms,
        credentials: LiveServerCredentials,
        log: EventLog,
        ledger: ServerLedger | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._section = section
        self._terms = terms
        self._credentials = credentials
        self._log = log
        self._carrier = carrier
        self._done, self._failed = terms.settings.rounds, 0  # rounds
        self._monitoring: Monitoring | None = None
        if ledger is not None:
            self._monitoring = training_monitoring(section, lambda: self._credentials.registry, ledger, log)
            planned = terms.settings.rounds
            self._monitoring.show_rounds(planned, lambda: self._done, lambda: self._failed)
        self._barred: set[int] = set()
        self._left = set(credentials.registry.members)  # clients that may not have the outcome yet
        self._change = trio.Event()  # of `_left`
        self.outcome: bytes | None = None  # a packed `RunOutcome`, when the last round is over

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold all rounds that are left, and tell clients the outcome. The task has started when the server
        listens, and says where. Raise `ConfigError` if it cannot listen at the configured address."""
        async with AsyncExitStack() as stack:
            where = ListenSettings(
                self._section.listen,
                self._section.patience.made(through_engine=self._carrier is not None),
                self._section.capacity.made(),
                "deploy.listen",
                self._carrier,
            )
            if self._monitoring is not None:
                await stack.enter_async_context(self._monitoring.serving())
            server = await listen(stack, where, self._credentials, self._on_network_event, self._log)
            self._log_start(server)
            task_status.started(str(server.address))
            server.post(Notice(Topic.TERMS, self._terms.text))
            self.outcome = await self._outcome(server)
            server.post(Notice(Topic.RUN_ENDED, self.outcome))
            await self._tell_everybody(server)

    def _log_start(self, server: Server) -> None:
        address, rounds = str(server.address), self._terms.settings.rounds
        cautions = list(self._terms.cautions)
        if self._monitoring is None:
            self._log.write("started", address=address, rounds=rounds)
        else:
            self._monitoring.count_connected(lambda: len(server.connected))
            metrics = str(self._monitoring.address or OFF)
            self._log.write("started", address=address, rounds=rounds, metrics=metrics)
            cautions += training_cautions(self._monitoring, self._section)
        for caution in cautions:
            self._log.write("caution", reason=caution)

    async def _outcome(self, _server: Server) -> bytes:
        """Return the outcome of the run, packed."""
        return OUTCOME_FILE.read(self._section.run / OUTCOME)

    async def _tell_everybody(self, server: Server) -> None:
        """Wait until all clients of the registry have said that they have the outcome, but no longer than
        `linger`. A client leaves when it has it, so that they are seldom all connected."""
        with trio.move_on_after(self._section.linger):
            while self._left - self._barred:
                await self._change.wait()
            await server.flush()

    def _on_network_event(self, event: ServerNetworkEvent) -> None:
        (self._monitoring or self._log)(event)
        if isinstance(event, ClientNotice) and event.notice.topic is Topic.RUN_ENDED:
            self._left.discard(event.member)
            self._change.set()
            self._change = trio.Event()
