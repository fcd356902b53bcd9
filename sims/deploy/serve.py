"""A server that an operator starts: session after session, the same questions in each of them.

A sum or a session that fails is a line in the log, and the next one comes. What ends a server are signals,
and what only its operator can put right: a ledger or a directory that cannot be written, an expired registry.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from secagg.errors import SumFailed
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog, Fact
from secagg.net.server import Server, open_server
from secagg.net.session import Session
from secagg.net.tls import server_context
from sims.config_problems import ConfigError, Problems
from sims.deploy.limits import allow_connections, forbid_core_dumps
from sims.deploy.log import open_log
from sims.deploy.questions import Question, Questions, round_after
from sims.deploy.serverplan import Plan, verified
from sims.deploy.totals import Totals
from sims.deploy.watch import run_watched

# What an operator can do about a port that cannot be had.
_HINTS: Final = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another port",
    errno.EACCES: "; ports below 1024 need a privilege: choose a higher one",
    errno.EADDRNOTAVAIL: "; name an address of this machine, or 0.0.0.0 for all of them",
}


def serve(path: Path) -> None:
    """Serve until SIGTERM, or until all sessions are held. Raises `ConfigError`, or another `LocalError`."""
    forbid_core_dumps()
    plan = verified(path)
    problems = Problems(path)
    with problems.about("capacity.strangers"):
        allow_connections(len(plan.credentials.registry.members) + plan.capacity.strangers)
    with ExitStack() as stack:
        with problems.about("server.totals"):
            stack.enter_context(_totals(plan))
        problems.check()
        log = EventLog(stack.enter_context(open_log(plan.config.server.log)))
        ledger = stack.enter_context(plan.open_ledger())
        host = Host(plan, ledger, log)
        run_watched(host.run, registry=plan.credentials.registry, log=log)


@contextmanager
def _totals(plan: Plan) -> Iterator[None]:
    """The directory is there, can be written, and is nobody else's."""
    totals = Totals(plan.config.server.totals)
    totals.prepare()
    with totals.held():
        totals.check_writable()
        yield


class Host:
    """Holds sessions."""

    def __init__(self, plan: Plan, ledger: ServerLedger, log: EventLog) -> None:
        self._plan = plan
        self._section = plan.config.session
        self._ledger = ledger
        self._log = log
        self._totals = Totals(plan.config.server.totals)
        # A round of which there is a total is over, even if the ledger that knew it was lost.
        known = round_after(plan.config.server.ledger), self._totals.round_after()
        first = max(self._section.first_round, *known)
        self._questions = Questions(plan.config.ask, sums=plan.sums, next_round=first)

    async def run(self) -> None:
        """Until all sessions are held, or for ever. Raises `ConfigError` if nobody can listen there."""
        held = 0
        async with AsyncExitStack() as stack:
            server = await self._listen(stack)
            self._tell_started(server)
            while True:
                held += await self._hold_session(server)
                if 0 < self._section.sessions == held:
                    return
                await trio.sleep(self._section.pause)

    async def _listen(self, stack: AsyncExitStack) -> Server:
        plan, own = self._plan, self._plan.credentials
        opened = open_server(
            plan.config.server.listen,
            members=own.registry.members,
            context=server_context(own.identity, own.certificate, list(own.clients.values())),
            patience=plan.patience,
            capacity=plan.capacity,
            on_event=self._log,
        )
        try:
            return await stack.enter_async_context(opened)
        except OSError as error:
            where = f"{plan.path}: server.listen: nobody can listen on {plan.config.server.listen}"
            hint = _HINTS.get(error.errno or 0, "")
            raise ConfigError(f"{where}: {error.strerror or error}{hint}") from None

    def _tell_started(self, server: Server) -> None:
        registry = self._plan.credentials.registry
        self._log.write(
            "started",
            address=str(server.address),
            trust=self._section.trust,
            members=len(registry.members),
            registry=registry.version,
        )
        if self._plan.capacity.uploads <= self._section.corrupt:
            self._log.write(
                "caution",
                reason="capacity.uploads is not more than session.corrupt: so many clients could hold up "
                "the uploads of all others by sending slowly",
            )

    async def _hold_session(self, server: Server) -> bool:
        """Whether there was one."""
        least = self._section.min_cohort
        if len(server.connected) < least:
            self._log.write("waiting", clients=least)
            await server.wait_for_clients(least)
        expected = min(self._section.max_cohort, len(self._plan.credentials.registry.members))
        try:
            async with server.session(
                self._plan.machine(), deadlines=self._plan.deadlines, ledger=self._ledger, expected=expected
            ) as session:
                for question in self._questions.of_session():
                    await self._ask(session, question)
        except SumFailed:
            return False  # the log says why
        return True

    async def _ask(self, session: Session, question: Question) -> None:
        about: dict[str, Fact] = {"kind": question.kind, "round": question.round_number}
        if len(session.members) < self._section.min_contributors:
            self._log.write("not asked", **about, reason="too few clients are left in the session")
            return
        self._totals.check_writable()
        self._totals.check_free(question)
        try:
            payload = question.payload()
        except ConfigError as error:
            self._log.write("not asked", **about, reason=str(error))
            return
        self._log.write("asking", **about, clients=len(session.members))
        try:
            total = await session.ask(question.kind, payload, round_number=question.round_number)
        except SumFailed as error:
            self._log.write("no total", **about, reason=str(error))
            return
        with trio.CancelScope(shield=True):  # what clients have paid for is not lost to a signal
            path = await trio.to_thread.run_sync(self._totals.store, total, question)
        self._log.write("stored", **about, clients=total.count, file=str(path))
