"""Hosts some of the simulated clients in a worker process, each with its own signing key and connection.

A client that drops out closes its connection without a message, as if its process had been killed. It
connects again when the next session begins. The clients of a worker compute one at a time, in a thread, so
that the connections of the others stay alive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio
from numpy.typing import ArrayLike

from fl.errors import FLError
from protocols.query_encoding import query_content
from secagg import Identity, Registry, Trust
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import AnswerEntry
from secagg.errors import PeerError, SecaggError
from secagg.events import Asked
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.net.client import Client
from secagg.net.events import (
    ClientDismissed,
    ClientNetworkEvent,
    ServerConnected,
    ServerDisconnected,
    ServerUnreachable,
    SessionRefused,
)
from secagg.net.handshake import ServerConnector
from secagg.net.nursery_and_threads import inline
from secagg.net.reliable_link import no_progress
from secagg.net.tls import client_context
from secagg.policy import Policy
from sims.records.sum_records import Refusal
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.hosted_clients import (
    BeginRound,
    ClientFailure,
    FinishRound,
    HostedClients,
    RestoreState,
    RoundFinished,
)
from sims.runtime.insecure_seed_hooks import client_hooks
from sims.runtime.processes import messages
from sims.runtime.residue_tampering import Tamper
from sims.workers.message_pipe import MessagePipe


async def host_clients(config: messages.WorkerConfig, pipe: MessagePipe) -> None:
    """Run the clients of a worker. Execute the commands of the main process, until it closes `pipe`."""
    owned: dict[int, Any] = {}
    while isinstance(command := await pipe.receive(), messages.LoadClientData):
        owned[command.member] = command.content
    assert isinstance(command, RestoreState)
    clients = HostedClients(
        config.algorithm, config.trust, config.make(config.shared, owned), partial(_ReportingMemory, pipe)
    )
    clients.restore(command)
    async with trio.open_nursery() as nursery:
        worker = _Host(config, pipe, clients, nursery)
        await pipe.send(messages.CommandDone())
        while True:
            await pipe.send(await worker.execute(await pipe.receive()))


class _Host:
    """Holds all clients of this worker process, and executes the commands of the main process."""

    def __init__(
        self,
        config: messages.WorkerConfig,
        pipe: MessagePipe,
        clients: HostedClients[_ReportingMemory],
        nursery: trio.Nursery,
    ) -> None:
        self._pipe = pipe
        self._nursery = nursery
        self.clients = clients
        self._hosted = {member: _HostedClient(member, config, pipe, self) for member in clients.participants}
        self.session: messages.JoinSession | None = None
        self.dropouts: dict[int, Stage] = {}
        self.computing = trio.Lock()  # held by the client that computes

    async def execute(self, command: object) -> messages.WorkerReply:
        match command:
            case RestoreState():
                self.clients.restore(command)
            case BeginRound():
                await self._begin(command)
            case messages.JoinSession():
                await self._join(command)
            case messages.ScheduleDropouts(at):
                self.dropouts = dict(at)
            case FinishRound():
                return await self._finish(command)
        return messages.CommandDone()

    async def _begin(self, command: BeginRound) -> None:
        self.dropouts.clear()
        self.clients.begin_round(command.round_info.number)
        for member in command.alone:
            await self._compute(partial(self.clients.participants[member].open, command.round_info))

    async def _join(self, command: messages.JoinSession) -> None:
        """Store the session, connect its clients that are not connected yet, and wait until they are."""
        self.session = command
        async with trio.open_nursery() as nursery:
            for member in command.members:
                nursery.start_soon(self._hosted[member].connect, self._nursery)

    async def _finish(self, command: FinishRound) -> RoundFinished:
        for announce in self.clients.announcements(command.round_info).values():
            await self._compute(announce)
        return self.clients.finished()

    async def _compute(self, work: Any) -> Any:
        """Run `work` in a thread while no other client computes, and return its result. On `FLError`, report
        the failure to the main process, which ends the run, and never return."""
        async with self.computing:
            try:
                return await trio.to_thread.run_sync(work)
            except FLError as error:
                await self.fail(str(error))

    async def compute_answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        """Return a client's answer to a query (values by part name), or None if it declines to answer."""
        values: Mapping[str, ArrayLike] | None = await self._compute(
            partial(self.clients.answer, member, asked)
        )
        return values

    async def fail(self, text: str) -> None:
        """Report an error of the simulation to the main process, which then ends the run. Never return."""
        await self._pipe.send(ClientFailure(text))
        await trio.sleep_forever()


class _HostedClient:
    """One client with its identity (signing key) and its current connection to the server."""

    def __init__(self, member: int, config: messages.WorkerConfig, pipe: MessagePipe, host: _Host) -> None:
        credentials = config.credentials[member]
        self._member = member
        self._config = config
        self._pipe = pipe
        self._host = host
        self._identity = Identity.from_secret(credentials.secret)
        self._context = client_context(self._identity, credentials.certificate, config.server)
        self._registry = Registry(0, config.keys)
        self._runtime = host.clients.runtimes[member]
        self._scope: trio.CancelScope | None = None
        self._connected = trio.Event()
        self._is_connected = False

    async def connect(self, nursery: trio.Nursery) -> None:
        if self._is_connected:
            return
        if self._scope is not None:
            self._scope.cancel()
        self._scope, self._connected = trio.CancelScope(), trio.Event()
        nursery.start_soon(self._stay_connected, self._scope)
        await self._connected.wait()

    async def _stay_connected(self, scope: trio.CancelScope) -> None:
        """Connect and answer queries until the client drops out or `scope` is cancelled."""
        try:
            with scope:
                async with self._client() as client:
                    await self._take_part(client)
        except* ClientDroppedOut:
            pass
        finally:
            if self._scope is scope:
                self._scope, self._is_connected = None, False

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Yield the connection to the server. At the end, close it without a message, as after a crash."""
        config = self._config
        dial = ServerConnector(
            config.address, member=self._member, context=self._context, patience=config.patience
        )
        client = Client(
            dial,
            self._machine,
            patience=config.patience,
            on_event=self._on_event,
            progress=no_progress,
            work=inline,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                yield client
                nursery.cancel_scope.cancel()
        finally:
            client.erase()

    def _machine(self) -> ClientMachine:
        session, table = self._host.session, self._host.clients.algorithm.table
        assert session is not None  # set before a client connects
        assert table is not None
        signed = session.policy.trust is Trust.MALICIOUS
        return make_client(
            tamper=self._host.clients.made.tamper.get(self._member),
            seed=self._config.insecure_seed,
            number=session.number,
            drops_out=self._drops_out,
            member=self._member,
            table=table,
            policy=session.policy,
            memory=self._host.clients.memories[self._member],
            identity=self._identity if signed else None,
            registry=self._registry if signed else None,
        )

    def _drops_out(self, stage: Stage) -> bool:
        if self._host.dropouts.get(self._member) is not stage:
            return False
        del self._host.dropouts[self._member]
        return True

    async def _take_part(self, client: Client) -> None:
        async for asked in client:
            try:
                values = await self._host.compute_answer(self._member, asked)
                if values is None:
                    await client.decline(asked)
                elif await client.answer(asked, values):
                    await client.flush()
                else:
                    self._runtime.too_late(asked)
            except PeerError as error:  # The client refuses the query.
                self._report_refusal(error)
                await client.close()
                return
            except SecaggError as error:
                await self._host.fail(f"client {self._member}: {error}")

    def _on_event(self, event: ClientNetworkEvent) -> None:
        self._runtime.on_event(event)
        match event:
            case ServerConnected():
                self._is_connected = True
                self._connected.set()
            case ServerDisconnected() | ServerUnreachable() | ClientDismissed():
                self._is_connected = False
            case SessionRefused(error):
                self._report_refusal(error)

    def _report_refusal(self, error: SecaggError) -> None:
        self._pipe.send_sync(Refusal.of(self._member, error))


class _ReportingMemory(SimulatedMemory):
    """A client's memory that reports each answer to the main process before the client sends it, so that the
    answer is not forgotten if the worker process is killed and restarted."""

    def __init__(self, pipe: MessagePipe, member: int) -> None:
        super().__init__()
        self._member = member
        self._pipe = pipe

    def take_answer(self, answer: AnswerEntry) -> None:
        super().take_answer(answer)
        self._pipe.send_sync(messages.AnswerRecorded(self._member, replace(answer, facts=None)))


_STAGES: Final[dict[type[m.Message], Stage]] = {
    m.Invitation: Stage.ADVERTISE,
    m.KeyList: Stage.SHARE,
    m.Neighbours: Stage.SHARE,
    m.Query: Stage.MASK,
    m.Confirmations: Stage.REVEAL,
}


class ClientDroppedOut(Exception):
    """Raised to make a client drop out: its connection is closed without a message to the server."""


def make_client(
    *,
    member: int,
    policy: Policy,
    tamper: Tamper | None,
    seed: bytes | None,
    number: int,
    drops_out: Callable[[Stage], bool],
    **settings: Any,
) -> ClientMachine:
    """Return a client's `ClientMachine` for session `number`, with `settings`. At the first stage for which
    `drops_out` is True, it raises `ClientDroppedOut`. `seed` sets its secrets, `tamper` its input."""
    stages = {**_STAGES, m.Survivors: Stage.REVEAL}
    if policy.trust is Trust.MALICIOUS:
        stages[m.Survivors] = Stage.CONFIRM
    if policy.key_agreement is KeyAgreement.HYBRID:
        stages[m.Delivery] = Stage.DEPOSIT

    def on_message(kind: type[m.Message]) -> None:
        stage = stages.get(kind)
        if stage is not None and drops_out(stage):
            raise ClientDroppedOut

    hooks = replace(client_hooks(member, seed=seed, number=number, tamper=tamper), on_message=on_message)
    return ClientMachine(member=member, policy=policy, content_of=query_content, hooks=hooks, **settings)
