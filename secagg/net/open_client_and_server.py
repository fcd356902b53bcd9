"""Opens a server or a client on the network, for as long as a block lasts."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio

from secagg.client import ClientMachine
from secagg.client_memory import Memory
from secagg.differencing_rules import ContentOf, whole_payload
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.net.client import Client
from secagg.net.client_keys import ClientKeys
from secagg.net.event_log import EventLog
from secagg.net.events import OnClientEvent, OnServerEvent
from secagg.net.handshake import ClientAuthenticator, ServerConnector
from secagg.net.nursery_and_threads import RunFunction, background_nursery, in_thread
from secagg.net.reliable_link import SendProgress, no_progress
from secagg.net.server import Server
from secagg.net.settings import ENGINE, Address, Capacity, Patience, check_secure
from secagg.net.tls import ClientTls
from secagg.net.trio_check import check_trio_runs
from secagg.net.tunnel import TunnelListener
from secagg.net.tunnel_dialer import TunnelDialer
from secagg.policy import Policy
from secagg.sum_spec import Table

T = TypeVar("T")
_BACKLOG: Final = 1024  # many clients may connect at the same moment


@asynccontextmanager
async def open_server(
    listen: Address | str | TunnelListener,
    *,
    members: Mapping[int, bytes],
    context: ssl.SSLContext | None = None,
    insecure_plain_tcp: bool = False,
    patience: Patience | None = None,
    capacity: Capacity | None = None,
    on_event: OnServerEvent | None = None,
) -> AsyncIterator[Server]:
    """Listen at `listen` for the clients in `members` (id to public key) for as long as the block lasts.

    `context` is `tls.server_context(...)`. With `insecure_plain_tcp` there is no TLS: then the id that a
    client sends is not verified, and the address must be a loopback address. If the port is 0, the system
    chooses one, and `server.address` has it. With a `TunnelListener`, an engine carries the connections, and
    TLS is required. `on_event` gets every event of connections and sessions; by
    default, they are logged. Raises `ParameterError` for invalid settings, and `OSError` if it cannot listen.

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> terms = dict(trust="curious_server", corrupt=1, min_cohort=3, max_cohort=9, min_contributors=3)
    >>> policy = Policy(**terms, max_sums=1, unnoised_sums=1)
    >>> async def take_part(member, address):
    ...     who = {"member": member, "table": table, "policy": policy, "memory": VolatileMemory()}
    ...     async with open_client(address, **who, insecure_plain_tcp=True) as client:
    ...         async for asked in client:
    ...             await client.answer(asked, {"x": [float(member)]})
    >>> async def main():
    ...     members = dict.fromkeys((1, 2, 3), bytes(32))
    ...     machine = ServerMachine(table=table, params=SessionParams(**terms))
    ...     async with trio.open_nursery() as nursery:
    ...         async with open_server("127.0.0.1:0", members=members, insecure_plain_tcp=True) as server:
    ...             for member in members:
    ...                 nursery.start_soon(take_part, member, server.address)
    ...             async with server.session(machine, expected=3) as session:
    ...                 total = await session.ask("mean")
    ...         nursery.cancel_scope.cancel()
    ...     return total["x"].round(6)
    >>> trio.run(main)
    array([6.])
    """
    check_trio_runs("open_server")
    address, tunnel = _parsed(listen)
    check_secure(address, context, insecure_plain_tcp=insecure_plain_tcp)
    patience, capacity, on_event = patience or Patience(), capacity or Capacity(), on_event or EventLog()
    authenticator = ClientAuthenticator(
        members, context=context, patience=patience, capacity=capacity, on_event=on_event
    )
    async with background_nursery() as nursery:
        server = Server(authenticator, nursery, patience=patience, capacity=capacity, on_event=on_event)
        if isinstance(tunnel, TunnelListener):
            nursery.start_soon(trio.serve_listeners, server.handle_connection, [tunnel])
        else:
            listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=_BACKLOG)
            server.address = Address(address.host, listeners[0].socket.getsockname()[1])
            nursery.start_soon(trio.serve_listeners, server.handle_connection, listeners)
        try:
            yield server
        finally:
            await server.close()


def _parsed(place: Address | str | T) -> tuple[Address, T | None]:
    """Return the address, which stands for an engine if `place` is one end of a tunnel, and that end."""
    if isinstance(place, str):
        return Address.parse(place), None
    return (place, None) if isinstance(place, Address) else (ENGINE, place)


async def serve_sums(
    conduct: Callable[[Server], Awaitable[None]],
    listen: Address | str | TunnelListener,
    *,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    **settings: Any,
) -> None:
    """Open a server, run `conduct(server)`, and close the server, as one task of the caller's nursery.

    `settings` are those of `open_server`. `await nursery.start(serve_sums, ...)` returns `server.address`.
    Raises what `open_server` and `conduct` raise.
    """
    check_trio_runs("serve_sums")
    async with open_server(listen, **settings) as server:
        task_status.started(server.address)
        await conduct(server)


@asynccontextmanager
async def open_client(
    server: Address | str | TunnelDialer,
    *,
    member: int,
    table: Table,
    policy: Policy,
    memory: Memory,
    identity: Identity | None = None,
    registry: Registry | None = None,
    authority: bytes | None = None,
    static: Collection[str] = (),
    content_of: ContentOf = whole_payload,
    context: ssl.SSLContext | ClientTls | None = None,
    insecure_plain_tcp: bool = False,
    patience: Patience | None = None,
    on_event: OnClientEvent | None = None,
    progress: SendProgress = no_progress,
    work: RunFunction = in_thread,
) -> AsyncIterator[Client]:
    """Take part in the sums of `server` as client `member`, for as long as the block lasts.

    `server` is an address, or a `TunnelDialer` if an engine carries the connection; TLS is then required.
    `context` is `tls.client_context(...)`; `insecure_plain_tcp` replaces it on a loopback address. `identity`
    and `registry` are for `malicious_server` only. With `authority`, a public key, the client adopts newer
    registries that this key has signed and the server hands out; then `registry` is for both trust levels.
    With a `ClientTls` as `context`, it also adopts a new certificate of the server. `static` names the kinds
    of sums whose values do not depend on the query. `content_of(kind, payload)` returns the payload without
    what changes each round. The client uses both to refuse sums of the same values over nearly the same
    clients. Raises `LocalError` at once if arguments contradict each other, and `WrongRegistry` if `memory`
    has seen a newer registry. If the server cannot be reached, the client tries without end.
    `on_event` is called with every event of `secagg.events` and `secagg.net.events`, and logs them by
    default. `progress(frame, bytes_sent)` is called while a frame is sent; `work` runs long computations.
    """
    check_trio_runs("open_client")
    plain = context.context if isinstance(context, ClientTls) else context
    address, tunnel = _parsed(server)
    check_secure(address, plain, insecure_plain_tcp=insecure_plain_tcp)
    patience = patience or Patience()
    tls = context if isinstance(context, ClientTls) else None
    keys = ClientKeys(
        member,
        trust=policy.trust,
        memory=memory,
        identity=identity,
        registry=registry,
        authority=authority,
        tls=tls,
    )

    def make_machine() -> ClientMachine:
        return ClientMachine(
            member=member,
            table=table,
            policy=policy,
            memory=memory,
            static=static,
            content_of=content_of,
            **keys.of_machine,
        )

    connector = ServerConnector(address, member=member, context=plain, patience=patience, tunnel=tunnel)
    client = Client(
        connector,
        make_machine,
        keys=keys,
        patience=patience,
        on_event=on_event or EventLog(),
        progress=progress,
        work=work,
    )
    try:
        async with background_nursery() as nursery:
            nursery.start_soon(client.run)
            try:
                yield client
            finally:
                await client.close()
    finally:
        client.erase()
