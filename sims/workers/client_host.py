"""A worker's duty: to host clients of a session, each with a connection of its own.

What clients are asked for and how they answer is a *role*, which the worker makes for itself: nothing but
its name and a small setting cross the process border. Identities are made in the worker too. It tells their
certificates, and is told in return who else there is and where the server is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import trio
from numpy.typing import ArrayLike

from secagg import Identity, Policy, Registry, Table, Trust, VolatileMemory
from secagg.events import Asked, SessionOver
from secagg.net.address import Address
from secagg.net.certificates import make_certificate
from secagg.net.client import Client, open_client
from secagg.net.event_log import render
from secagg.net.events import ClientDismissed, ClientNetworkEvent, SessionLost, SessionRefused
from secagg.net.link import Progress
from secagg.net.settings import Patience
from secagg.net.tls import client_context
from secagg.net.work import inline
from sims.workers.message_pipe import MessagePipe

PRELOAD: Final = ("numpy", "cryptography", "trio", "secagg", "secagg.net.client", "secagg.net.certificates")


class ClientRole(Protocol):
    """What a worker's clients do."""

    table: Table
    policy: Policy

    def answer(self, member: int, asked: Asked) -> Mapping[str, ArrayLike]: ...
    def progress(self, member: int) -> Progress: ...


@dataclass(frozen=True)
class ClientHostConfig:
    """Which clients a worker hosts, and `role(setting)` makes what they do."""

    members: tuple[int, ...]
    role: Callable[[Any], ClientRole]
    setting: Any


@dataclass(frozen=True)
class ClientCertificates:
    """Said first: the certificates of a worker's clients."""

    of: Mapping[int, bytes]


@dataclass(frozen=True)
class ServerContact:
    """Told in return: where the server is. Without a server's certificate, there is no TLS."""

    address: Address
    server: bytes | None
    version: int
    keys: Mapping[int, bytes]
    patience: Patience = field(default_factory=Patience)

    @property
    def registry(self) -> Registry:
        return Registry(self.version, self.keys)


@dataclass(frozen=True)
class ClientSessionEnd:
    """Said when a client's part in a session has come to an end, and why."""

    member: int
    completed: bool  # whether the server ended the session
    description: str


async def host_clients(config: ClientHostConfig, line: MessagePipe) -> None:
    """Until the line is closed."""
    role = config.role(config.setting)
    identities = {member: Identity.generate() for member in config.members}
    now = int(time.time())
    certificates = {member: make_certificate(key, now=now) for member, key in identities.items()}
    await line.send(ClientCertificates(certificates))
    meeting = await line.receive()
    assert isinstance(meeting, ServerContact)
    slot = trio.Lock()
    async with trio.open_nursery() as nursery:
        for member, identity in identities.items():
            nursery.start_soon(_take_part, member, identity, certificates[member], role, meeting, line, slot)
        await line.receive()  # There is nothing more to hear but that the line is closed.


async def _take_part(
    member: int,
    identity: Identity,
    certificate: bytes,
    role: ClientRole,
    meeting: ServerContact,
    line: MessagePipe,
    slot: trio.Lock,
) -> None:
    notes, hear = trio.open_memory_channel[ClientSessionEnd](64)
    signed = role.policy.trust is Trust.MALICIOUS
    tls = None if meeting.server is None else client_context(identity, certificate, meeting.server)
    async with (
        trio.open_nursery() as nursery,
        open_client(
            meeting.address,
            member=member,
            table=role.table,
            policy=role.policy,
            memory=VolatileMemory(),
            identity=identity if signed else None,
            registry=meeting.registry if signed else None,
            patience=meeting.patience,
            on_event=partial(_note, notes, member),
            progress=role.progress(member),
            insecure_plain_tcp=meeting.server is None,
            work=inline,
            context=tls,
        ) as client,
    ):
        nursery.start_soon(_pass_on, hear, line)
        await _answer(client, member, role, slot)


async def _answer(client: Client, member: int, role: ClientRole, slot: trio.Lock) -> None:
    """One client at a time: what it sends is on its way before the next one computes.

    Otherwise a worker would first compute for all of its clients and then send for all, and the server would
    wait all the while for something to do.
    """
    async for asked in client:
        async with slot:
            await client.answer(asked, role.answer(member, asked))
            await client.flush()


def _note(notes: trio.MemorySendChannel[ClientSessionEnd], member: int, event: ClientNetworkEvent) -> None:
    if isinstance(event, SessionOver | SessionLost | SessionRefused | ClientDismissed):
        notes.send_nowait(ClientSessionEnd(member, isinstance(event, SessionOver), str(render(event))))


async def _pass_on(notes: trio.MemoryReceiveChannel[ClientSessionEnd], line: MessagePipe) -> None:
    async for note in notes:
        await line.send(note)
