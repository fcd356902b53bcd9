"""Runs the clients of a drill in worker processes. Clients contribute known numbers, and some are killed. A
worker generates the private keys of its clients and keeps them. It sends the certificates to the main
process, and receives the address of the server and the public keys of all clients."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

from protocols.participant import Participant
from protocols.query_encoding import query_content
from secagg import Identity, Registry, Trust, VolatileMemory
from secagg import messages as m
from secagg.errors import SERVER
from secagg.events import SessionOver
from secagg.net.certificates import make_certificate
from secagg.net.client import Client
from secagg.net.event_log import render
from secagg.net.events import ClientDismissed, ClientNetworkEvent, SessionLost, SessionRefused
from secagg.net.nursery_and_threads import inline
from secagg.net.open_client_and_server import open_client
from secagg.net.settings import Address, Patience
from secagg.net.tls import client_context
from sims.coordination.client_runtime import ClientRuntime
from sims.drill.config import DrillConfig
from sims.drill.kill_schedule import SETUP, ScheduledKill, point_of
from sims.workers import MessagePipe

PRELOAD: Final = ("numpy", "cryptography", "trio", "secagg", "secagg.net.client", "secagg.net.tls")


@dataclass(frozen=True)
class DrillWorkerConfig:
    """The configuration of a worker process of a drill: its clients, and when some of them are killed."""

    drill: DrillConfig
    members: tuple[int, ...]  # the clients that it hosts
    kills: Mapping[int, ScheduledKill]  # client -> its scheduled kill


@dataclass(frozen=True)
class ClientCertificates:
    """The first message that a worker process sends to the main process: the certificates of its clients."""

    of: Mapping[int, bytes]  # client -> certificate


@dataclass(frozen=True)
class ServerContact:
    """The main process's answer to a worker's certificates: how clients reach and authenticate the server."""

    address: Address
    server: bytes | None  # the certificate of the server; None: plain TCP without TLS
    version: int  # of the registry
    keys: Mapping[int, bytes]  # client -> public key, for all clients
    patience: Patience = field(default_factory=Patience)

    @property
    def registry(self) -> Registry:
        return Registry(self.version, self.keys)


@dataclass(frozen=True)
class ClientSessionEnd:
    """The message from a worker to the main process that the session of one of its clients has ended."""

    member: int
    completed: bool  # whether the server ended the session
    description: str


def numbers(drill: DrillConfig, member: int, sum_index: int) -> NDArray[np.uint32]:
    """Return the vector that client `member` adds to a sum: random, but fixed by seed, client and sum."""
    rng = np.random.default_rng([drill.seed, member, sum_index])
    return rng.integers(0, drill.limit, drill.dim, np.uint32, endpoint=True)


def plain_sum(drill: DrillConfig, members: Iterable[int], sum_index: int) -> NDArray[np.int64]:
    """Return the true sum of what `members` add to sum `sum_index`, to check the protocol's total."""
    total = np.zeros(drill.dim, np.int64)
    for member in members:
        total += numbers(drill, member, sum_index)
    return total


async def host_clients(config: DrillWorkerConfig, pipe: MessagePipe) -> None:
    """Run all clients of this worker process until the main process closes the pipe."""
    identities = {member: Identity.generate() for member in config.members}
    now = int(time.time())
    certificates = {member: make_certificate(key, now=now) for member, key in identities.items()}
    await pipe.send(ClientCertificates(certificates))
    contact = await pipe.receive()
    assert isinstance(contact, ServerContact)
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        for member, identity in identities.items():
            client = DrillClient(config, member, identity, certificates[member])
            nursery.start_soon(client.run, contact, pipe, lock)
        await pipe.receive()  # No further message is expected, only the end of the pipe.


class DrillClient:
    """One client of a drill (a session in which clients are killed), with its own keys and connection."""

    def __init__(
        self, config: DrillWorkerConfig, member: int, identity: Identity, certificate: bytes
    ) -> None:
        self._drill = config.drill
        self._kill = config.kills.get(member)
        self._member = member
        self._identity = identity
        self._certificate = certificate
        self._sum_index = SETUP
        known: Any = partial(numbers, config.drill, member)
        self._runtime = ClientRuntime(
            Participant(config.drill.algorithm, known, trust=config.drill.trust, member=member)
        )

    async def run(self, contact: ServerContact, pipe: MessagePipe, lock: trio.Lock) -> None:
        """Connect to the server and answer its queries until cancelled; clients with the same `lock` take
        turns. Report the end of each session to the main process through `pipe`."""
        ends, received = trio.open_memory_channel[ClientSessionEnd](64)
        signed = self._drill.trust is Trust.MALICIOUS
        tls = None
        if contact.server is not None:
            tls = client_context(self._identity, self._certificate, contact.server)
        async with (
            trio.open_nursery() as nursery,
            open_client(
                contact.address,
                member=self._member,
                table=self._drill.table,
                policy=self._drill.policy,
                memory=VolatileMemory(),
                identity=self._identity if signed else None,
                registry=contact.registry if signed else None,
                content_of=query_content,
                patience=contact.patience,
                on_event=partial(self._on_event, ends),
                progress=self.kill_if_due,
                insecure_plain_tcp=contact.server is None,
                work=inline,
                context=tls,
            ) as client,
        ):
            nursery.start_soon(_forward, received, pipe)
            await self._answer(client, lock)

    def kill_if_due(self, frame: bytes, sent: int) -> None:
        """Kill this process if the kill of this client is due when `sent` bytes of `frame` have been sent."""
        point = point_of(m.message_type(frame, sender=SERVER), self._sum_index)
        if self._kill is not None and point is not None and self._kill.is_due(point, sent, len(frame)):
            os.kill(os.getpid(), signal.SIGKILL)

    async def _answer(self, client: Client, lock: trio.Lock) -> None:
        """Answer the queries of the server. Clients that share `lock` answer one after another: each sends
        its answer before the next one computes, so that the server receives the first answers early."""
        async for asked in client:
            async with lock:
                self._sum_index = asked.sum_index
                values = self._runtime.answer(asked)
                assert values is not None  # There are always numbers.
                if await client.answer(asked, values):
                    await client.flush()
                else:
                    self._runtime.too_late(asked)

    def _on_event(self, ends: trio.MemorySendChannel[ClientSessionEnd], event: ClientNetworkEvent) -> None:
        self._runtime.on_event(event)
        if isinstance(event, SessionOver | SessionLost | SessionRefused | ClientDismissed):
            completed = isinstance(event, SessionOver)
            ends.send_nowait(ClientSessionEnd(self._member, completed, str(render(event))))


async def _forward(ends: trio.MemoryReceiveChannel[ClientSessionEnd], pipe: MessagePipe) -> None:
    async for end in ends:
        await pipe.send(end)
