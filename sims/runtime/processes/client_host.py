"""A worker's duty: to host clients of a channel, each with an identity and a connection of its own.

A client that is to drop out loses its connection in the midst of everything, as if its process had been
killed: the server sees a connection end and nothing else. It connects anew when the next session begins, as a
device does that is back on the network. What clients compute, they compute one at a time and in a thread, so
that the others of the worker go on talking meanwhile.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio
from numpy.typing import ArrayLike

from fl.errors import FLError
from protocols.algorithm import AnyAlgorithm
from secagg import Identity, Registry, Trust
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import PeerError, SecaggError
from secagg.events import Abandoned, Asked, Confirmed
from secagg.local import Stage
from secagg.memory import AnswerEntry
from secagg.net.authentication import ServerConnector
from secagg.net.client import Client
from secagg.net.concurrency import inline
from secagg.net.events import (
    ClientDismissed,
    ClientNetworkEvent,
    ServerConnected,
    ServerDisconnected,
    ServerUnreachable,
    SessionRefused,
)
from secagg.net.reliable_link import no_progress
from secagg.net.tls import client_context
from secagg.policy import Policy
from sims.runtime.client_state import SimulatedMemory, SimulatedParticipant, restore_clients, save_clients
from sims.runtime.processes.messages import (
    AnswerRecorded,
    BeginRound,
    ClientData,
    ClientFailure,
    CommandDone,
    FinishRound,
    JoinSession,
    Refusal,
    RestoreState,
    RoundFinished,
    ScheduleDropouts,
    WorkerClients,
    WorkerConfig,
    WorkerReply,
)
from sims.runtime.tampering import Tamper, client_hooks
from sims.workers.message_pipe import MessagePipe


async def host_clients(config: WorkerConfig, line: MessagePipe) -> None:
    """Until the line is closed."""
    owned: dict[int, Any] = {}
    while isinstance(order := await line.receive(), ClientData):
        owned[order.member] = order.content
    assert isinstance(order, RestoreState)
    worker_clients = config.make(config.shared, owned)
    async with trio.open_nursery() as nursery:
        worker = _Host(config, line, worker_clients, nursery)
        worker.settle(order)
        await line.send(CommandDone())
        while True:
            await line.send(await worker.obey(await line.receive()))


class _Host:
    def __init__(
        self, config: WorkerConfig, line: MessagePipe, worker_clients: WorkerClients, nursery: trio.Nursery
    ) -> None:
        self._line = line
        self._worker_clients = worker_clients
        self._nursery = nursery
        self.algorithm: AnyAlgorithm = pickle.loads(config.algorithm)  # noqa: S301  # from this program
        self.participants = {
            member: SimulatedParticipant(self.algorithm, learner, trust=config.trust, member=member)
            for member, learner in worker_clients.learners.items()
        }
        self._memories = {member: _TellingMemory(member, line) for member in self.participants}
        self._guests = {member: _Guest(member, config, line, self) for member in self.participants}
        self._silent: set[int] = set()
        self.worker_clients = worker_clients
        self.memories: Mapping[int, SimulatedMemory] = self._memories
        self.session: JoinSession | None = None
        self.dropouts: dict[int, Stage] = {}
        self.slot = trio.Lock()  # of whoever computes

    def settle(self, order: RestoreState) -> None:
        if order.saved is not None:
            restore_clients(order.saved, self.participants, self.memories, self._worker_clients.tamper)
        for member, entries in order.answered.items():
            for entry in entries:
                SimulatedMemory.take_answer(self._memories[member], entry)

    async def obey(self, order: object) -> WorkerReply:
        match order:
            case BeginRound():
                await self._begin(order)
            case JoinSession():
                await self._enter(order)
            case ScheduleDropouts(at):
                self.dropouts = dict(at)
            case FinishRound():
                return await self._finish(order)
        return CommandDone()

    async def _begin(self, order: BeginRound) -> None:
        self._silent.clear()
        self.dropouts.clear()
        if self._worker_clients.begin_round is not None:
            self._worker_clients.begin_round(order.round_info.number)
        for member in order.alone:
            await self._compute(partial(self.participants[member].open, order.round_info))

    async def _enter(self, order: JoinSession) -> None:
        """Have all clients of the session connected, those of an earlier one anew if they were cut off."""
        self.session = order
        async with trio.open_nursery() as nursery:
            for member in order.members:
                nursery.start_soon(self._guests[member].be_connected, self._nursery)

    async def _finish(self, order: FinishRound) -> RoundFinished:
        for participant in self.participants.values():
            await self._compute(partial(participant.apply_history, order.round_info))
        saved = save_clients(self.participants, self.memories, self._worker_clients.tamper)
        return RoundFinished(saved, tuple(sorted(self._silent)))

    async def _compute(self, work: Any) -> Any:
        """In a thread, and nobody else of this worker meanwhile."""
        async with self.slot:
            try:
                return await trio.to_thread.run_sync(work)
            except FLError as error:
                await self.fail(str(error))

    async def work_out(self, member: int, asked: Asked) -> Mapping[str, ArrayLike] | None:
        """What a client answers; None if it has nothing to say."""
        answer = partial(
            self.participants[member].answer,
            asked.kind,
            asked.payload,
            round_number=asked.round,
            invited=asked.invited,
        )
        values: Mapping[str, ArrayLike] | None = await self._compute(answer)
        if values is None:
            self._silent.add(member)
        return values

    async def fail(self, text: str) -> None:
        """Tell the office, which ends everything."""
        await self._line.send(ClientFailure(text))
        await trio.sleep_forever()


class _Guest:
    """One client: who it is, and its current connection."""

    def __init__(self, member: int, config: WorkerConfig, line: MessagePipe, host_clients: _Host) -> None:
        credentials = config.credentials[member]
        self._member = member
        self._config = config
        self._line = line
        self._host = host_clients
        self._identity = Identity.from_secret(credentials.secret)
        self._context = client_context(self._identity, credentials.certificate, config.server)
        self._registry = Registry(0, config.keys)
        self._answering = -1  # the sum that it was asked last
        self._scope: trio.CancelScope | None = None
        self._connected = trio.Event()
        self._is_up = False

    async def be_connected(self, nursery: trio.Nursery) -> None:
        if self._is_up:
            return
        if self._scope is not None:
            self._scope.cancel()
        self._scope, self._connected = trio.CancelScope(), trio.Event()
        nursery.start_soon(self._stay, self._scope)
        await self._connected.wait()

    async def _stay(self, scope: trio.CancelScope) -> None:
        """One process of this client, as the server sees it."""
        try:
            with scope:
                async with self._client() as client:
                    await self._take_part(client)
        except* ClientDroppedOut:
            pass
        finally:
            if self._scope is scope:
                self._scope, self._is_up = None, False

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Unlike `open_client`, nobody says goodbye here: whoever goes is gone."""
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
        session, table = self._host.session, self._host.algorithm.table
        assert session is not None  # nobody connects before
        assert table is not None
        signed = session.policy.trust is Trust.MALICIOUS
        return make_client(
            tamper=self._host.worker_clients.tamper.get(self._member),
            seed=self._config.insecure_seed,
            number=session.number,
            drops_out=self._drops_out,
            member=self._member,
            table=table,
            policy=session.policy,
            memory=self._host.memories[self._member],
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
            self._answering = asked.sum_index
            try:
                values = await self._host.work_out(self._member, asked)
                if values is None:
                    await client.decline(asked)
                else:
                    await client.answer(asked, values)
                    await client.flush()
            except PeerError as error:  # what it was asked is not what it would answer
                self._tell_refused(error)
                await client.close()
                return
            except SecaggError as error:
                await self._host.fail(f"client {self._member}: {error}")

    def _on_event(self, event: ClientNetworkEvent) -> None:
        match event:
            case Confirmed():
                self._host.participants[self._member].confirmed()
            case Abandoned(sum_index) if self._answering == sum_index:
                self._host.participants[self._member].abandoned()
            case ServerConnected():
                self._is_up = True
                self._connected.set()
            case ServerDisconnected() | ServerUnreachable() | ClientDismissed():
                self._is_up = False
            case SessionRefused(error):
                self._tell_refused(error)

    def _tell_refused(self, error: SecaggError) -> None:
        self._line.send_sync(Refusal(self._member, type(error).__name__, str(error)))


class _TellingMemory(SimulatedMemory):
    """Every answer is known outside of this process before it leaves, as if it were written to a disk."""

    def __init__(self, member: int, line: MessagePipe) -> None:
        super().__init__()
        self._member = member
        self._line = line

    def take_answer(self, answer: AnswerEntry) -> None:
        super().take_answer(answer)
        self._line.send_sync(AnswerRecorded(self._member, replace(answer, facts=None)))


_STAGES: Final[dict[type[m.Message], Stage]] = {
    m.Invitation: Stage.ADVERTISE,
    m.KeyList: Stage.SHARE,
    m.Neighbours: Stage.SHARE,
    m.Query: Stage.MASK,
    m.Confirmations: Stage.REVEAL,
}


class ClientDroppedOut(Exception):
    """The client drops out now, without a word to the server."""


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
    """Return a machine like that of `sims.runtime.secure` in session `number`.

    It raises `ClientDroppedOut` at the first stage for which `drops_out` is true.
    """
    survivors = Stage.CONFIRM if policy.trust is Trust.MALICIOUS else Stage.REVEAL

    def on_message(kind: type[m.Message]) -> None:
        stage = survivors if kind is m.Survivors else _STAGES.get(kind)
        if stage is not None and drops_out(stage):
            raise ClientDroppedOut

    hooks = client_hooks(member, seed=seed, number=number, tamper=tamper)
    hooks = replace(hooks, on_message=on_message)
    return ClientMachine(member=member, policy=policy, hooks=hooks, **settings)
