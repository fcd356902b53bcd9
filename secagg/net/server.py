"""A server on the network: who is connected, on which link, and the session they are in.

    async with open_server("0.0.0.0:7443", members=registry.members, context=server_context(...)) as server:
        async with server.session(ServerMachine(...)) as session:
            total = await session.ask("mean", payload, round_number=0)

One task per connection reads from it; no task waits for a client that does not read or send. What the server
holds for a client is bounded: a few unread frames, and one of few slots while it uploads.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import trio

from secagg.errors import OutOfOrder, PeerError, SecaggError, StateError
from secagg.ledger import ServerLedger
from secagg.net import connection as packets
from secagg.net import events as net_events
from secagg.net.authentication import AuthenticatedClient, ClientAuthenticator
from secagg.net.concurrency import RunFunction, background_nursery, in_thread
from secagg.net.connection import Connection, ConnectionLost, Hello, Reason, host_of
from secagg.net.event_log import EventLog
from secagg.net.events import LeaveReason, OnServerEvent
from secagg.net.reliable_link import ClosedLocally, Link, ReceivedFrame
from secagg.net.session import OnMachineEvent, Session, no_op
from secagg.net.settings import Address, Capacity, Deadlines, Patience, check_secure
from secagg.net.upload_slots import UploadSlots
from secagg.server import ServerMachine

_MAX_STRAY_FRAMES: Final = 8  # frames that an honest client may have had on its way when its session ended
_BACKLOG: Final = 1024  # clients come all at once
_DISMISSAL_SECONDS: Final = 1.0  # seconds for a client to read why it is sent away


class Server:
    """Clients that are connected. Made by `open_server`."""

    def __init__(
        self,
        authenticator: ClientAuthenticator,
        nursery: trio.Nursery,
        *,
        patience: Patience,
        capacity: Capacity,
        on_event: OnServerEvent,
    ) -> None:
        self._authenticator = authenticator
        self._nursery = nursery
        self._patience = patience
        self._slots = UploadSlots(capacity.uploads, slowest=capacity.slowest)
        self._session: Session | None = None
        self._links: dict[int, Link] = {}
        self._offline: dict[Link, trio.CancelScope] = {}  # ends when their grace period does
        self._stray_frames: Counter[int] = Counter()
        self._excluded_members: set[int] = set()  # until the session ends
        self._connection_count = 0  # connections
        self._changed = trio.Event()
        self._on_event = on_event
        self.address = Address("", 0)

    # --- what its owner sees ---

    @property
    def connected(self) -> tuple[int, ...]:
        """Clients that have a connection at this moment."""
        return tuple(sorted(member for member, link in self._links.items() if link not in self._offline))

    @property
    def live(self) -> Session | None:
        """The session that is being set up or under way, if there is one."""
        return self._session

    async def wait_for_clients(self, count: int) -> None:
        """Wait until `count` clients are connected."""
        while len(self.connected) < count:
            await self._changed.wait()

    @asynccontextmanager
    async def session(
        self,
        machine: ServerMachine,
        *,
        deadlines: Deadlines | None = None,
        ledger: ServerLedger | None = None,
        expected: int | None = None,
        members: Collection[int] | None = None,
        on_event: OnMachineEvent = no_op,
        work: RunFunction = in_thread,
    ) -> AsyncIterator[Session]:
        """A session with the clients that join in time, set up when the block begins and ended with it.

        With `expected` clients, set-up goes on at once instead of waiting for more. Raises `SumFailed` if too
        few come. With `members`, only these are invited; others stay connected and wait for another session.
        `on_event` is called with every event of the machine, after it was written to the ledger; the server's
        own callback is called next.
        """
        if self._session is not None:
            raise StateError("a server has one session at a time")
        self._clear_exclusions()
        session = self._session = Session(
            machine,
            self._exclude,
            deadlines=deadlines or Deadlines(),
            ledger=ledger,
            expected=expected,
            members=members,
            on_machine_event=on_event,
            on_event=self._on_event,
            work=work,
        )
        try:
            # A client without a connection is invited when it reconnects: its process may be new by then.
            for member in self.connected:
                session.invite(self._links[member])
            await session.open()
            yield session
        finally:
            self._session = None
            try:
                session.end()
            finally:
                self._clear_exclusions()
                self._on_event(net_events.SessionClosed())

    def _clear_exclusions(self) -> None:
        """Who was sent away may come again: for the next session, and to wait for it."""
        self._excluded_members.clear()
        self._stray_frames.clear()

    # --- connections ---

    async def handle_connection(self, stream: trio.abc.Stream) -> None:
        """One connection, from the first byte to the last."""
        client = await self._authenticator.authenticate(stream, host=host_of(stream))
        if client is None:
            return
        self._connection_count += 1
        try:
            if client.hello.member in self._excluded_members:
                await _dismiss(client.connection, Reason.EXCLUDED)
            else:
                await self._serve_client(client)
        finally:
            self._connection_count -= 1
            self._notify_changed()
            await client.connection.close()

    async def _serve_client(self, client: AuthenticatedClient) -> None:
        """Carry a client's frames for as long as the connection lasts."""
        if client.hello.received and not self._knows(client.hello):
            # Nothing is remembered of this, so that it does not matter if the answer is lost: until the
            # client has read it, it would speak of frames that a new link never had.
            await _answer(client.connection, packets.welcome(resumed=False, received=0))
            return
        link, resumed = self._link_of(client.hello)
        link.supersede()
        async with link.run_lock:
            if link.run_lock.statistics().tasks_waiting:
                return  # it came again while this one waited, so that only one of its connections ever does
            if self._links.get(link.member) is not link:
                barred = link.member in self._excluded_members
                await _dismiss(client.connection, Reason.EXCLUDED if barred else Reason.REPLACED)
                return
            self._on_connected(link, resumed)
            hello = packets.welcome(resumed=resumed, received=link.received)
            take = partial(self._take, link)
            received = client.hello.received  # none, if the link is new
            why = await link.run(client.connection, first=hello, received=received, deliver=take)
        await self._on_connection_end(link, client.connection, why)

    def _knows(self, hello: Hello) -> bool:
        link = self._links.get(hello.member)
        return link is not None and link.name == hello.link

    def _link_of(self, hello: Hello) -> tuple[Link, bool]:
        """The link that this client had, or a new one: then its process is new, or we are."""
        old = self._links.get(hello.member)
        if old is not None and self._knows(hello):
            self._stop_grace_period(old)
            return old, True
        if old is not None:
            self._forget(old, LeaveReason.PROCESS_RESTARTED)
        link = Link(hello.link, member=hello.member, peer=hello.member, slots=self._slots)
        self._links[hello.member] = link
        return link, False

    def _on_connected(self, link: Link, resumed: bool) -> None:
        self._notify_changed()
        self._on_event(net_events.ClientConnected(link.member, resumed))
        if self._session is not None:
            self._session.invite(link)

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _take(self, link: Link, arrival: ReceivedFrame) -> None:
        if self._session is not None and self._session.expects(link, arrival):
            await self._session.take(link, arrival)
            return
        self._stray_frames[link.member] += 1
        if self._stray_frames[link.member] > _MAX_STRAY_FRAMES:
            raise OutOfOrder(link.member, "sends messages that belong to no session")

    async def _on_connection_end(self, link: Link, connection: Connection, why: SecaggError) -> None:
        """What becomes of a link whose connection ended."""
        if isinstance(why, PeerError):
            self._exclude(link, why)
            await _dismiss(connection, Reason.EXCLUDED)
        elif isinstance(why, ClosedLocally):
            await _dismiss(connection, why.reason)
        else:
            self._on_event(net_events.ClientDisconnected(link.member, why))
            self._start_grace_period(link)

    def _start_grace_period(self, link: Link) -> None:
        """Unless it has its next connection already, a link has a short time to find one."""
        if self._links.get(link.member) is link and not link.run_lock.locked():
            scope = self._offline[link] = trio.CancelScope()
            self._nursery.start_soon(self._expire, link, scope)

    async def _expire(self, link: Link, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._patience.grace)
            self._forget(link, LeaveReason.CONNECTION_LOST)

    def _stop_grace_period(self, link: Link) -> None:
        """End the link's grace period, so that frequent reconnects leave no waiting tasks behind."""
        if (scope := self._offline.pop(link, None)) is not None:
            scope.cancel()

    def _forget(self, link: Link, why: LeaveReason) -> None:
        """A client's process is gone, or as good as gone. If it comes again, it begins anew."""
        del self._links[link.member]
        self._stop_grace_period(link)
        if self._session is not None and self._session.has(link):
            self._session.lose(link, why)
        link.close(Reason.REPLACED)

    def _exclude(self, link: Link, error: PeerError) -> None:
        """A client broke the protocol: nothing more is taken from it until the next session."""
        self._on_event(net_events.ClientExcluded(link.member, error))
        self._excluded_members.add(link.member)
        if self._session is not None and self._session.has(link):
            self._session.remove_excluded(link, error)
        if self._links.get(link.member) is link:
            del self._links[link.member]
            self._stop_grace_period(link)
        link.close(Reason.EXCLUDED)

    # --- the end ---

    async def close(self) -> None:
        """Give clients a short time to read the last frames, then close their connections."""
        with trio.move_on_after(self._patience.farewell, shield=True):
            async with trio.open_nursery() as nursery:
                for link in self._links.values():
                    if link not in self._offline:
                        nursery.start_soon(link.flush)
        for link in self._links.values():
            link.close(Reason.CLOSING)
        with trio.move_on_after(_DISMISSAL_SECONDS, shield=True):
            while self._connection_count:
                await self._changed.wait()


async def _dismiss(connection: Connection, reason: Reason) -> None:
    await _answer(connection, packets.bye(reason))


async def _answer(connection: Connection, packet: bytes) -> None:
    """The last packet of a connection, if it can be sent at all."""
    with trio.move_on_after(_DISMISSAL_SECONDS), suppress(ConnectionLost):
        await connection.write([packet])


@asynccontextmanager
async def open_server(
    listen: Address | str,
    *,
    members: Mapping[int, bytes],
    context: ssl.SSLContext | None = None,
    insecure_plain_tcp: bool = False,
    patience: Patience | None = None,
    capacity: Capacity | None = None,
    on_event: OnServerEvent | None = None,
) -> AsyncIterator[Server]:
    """Listen for the clients in `members` (id to public key) for as long as the block lasts.

    `context` is `tls.server_context(...)`. Without TLS, which `insecure_plain_tcp` asks for, every
    claimed id is accepted, and the address must be a loopback one. Port 0 takes a
    free one; `server.address` tells which. `on_event` is called with every event of connections and sessions;
    without it, events go to the standard library's log. Raises `OSError` if it cannot listen there.

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
    address = Address.parse(listen) if isinstance(listen, str) else listen
    check_secure(address, context, insecure_plain_tcp=insecure_plain_tcp)
    patience, capacity, on_event = patience or Patience(), capacity or Capacity(), on_event or EventLog()
    authenticator = ClientAuthenticator(
        members, context=context, patience=patience, capacity=capacity, on_event=on_event
    )
    async with background_nursery() as nursery:
        server = Server(authenticator, nursery, patience=patience, capacity=capacity, on_event=on_event)
        listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=_BACKLOG)
        server.address = Address(address.host, listeners[0].socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, server.handle_connection, listeners)
        try:
            yield server
        finally:
            await server.close()


async def serve_sums(
    conduct: Callable[[Server], Awaitable[None]],
    listen: Address | str,
    *,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    **settings: Any,
) -> None:
    """Run `conduct(server)` on a server that listens, as one task of your own nursery.

    `settings` are those of `open_server`. `await nursery.start(serve_sums, ...)` returns the address.

    Raises what `open_server` and `conduct` raise.
    """
    async with open_server(listen, **settings) as server:
        task_status.started(server.address)
        await conduct(server)
