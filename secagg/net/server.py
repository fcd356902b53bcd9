"""A server on the network: it keeps the links of the connected clients, and runs one session at a time.

    async with open_server("0.0.0.0:7443", members=registry.members, context=server_context(...)) as server:
        async with server.session(ServerMachine(...)) as session:
            total = await session.ask("mean", payload, round_number=0)

Each connection has its own tasks, so a client that does not read or send delays no other. The memory for each
client is bounded: a few frames that it has not read, and one upload, of which a few run at a time.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from secagg.errors import PeerError, SecaggError, SlowReader, StateError
from secagg.ledger import ServerLedger
from secagg.net import events as net_events
from secagg.net import packets
from secagg.net.client_conduct import ClientConduct
from secagg.net.connection import LAST_SECONDS, Connection, host_of
from secagg.net.events import LeaveReason, OnServerEvent
from secagg.net.expected_clients import ConnectionState, ExpectedClients
from secagg.net.handshake import AuthenticatedClient, ClientAuthenticator
from secagg.net.notices import MAX_CLIENT_NOTICE, Notice, Topic, is_notice, parse_notice
from secagg.net.nursery_and_threads import RunFunction, in_thread
from secagg.net.packets import Hello, Reason
from secagg.net.reliable_link import ClosedLocally, Link, ReceivedFrame
from secagg.net.server_session import OnMachineEvent, Session, no_op
from secagg.net.settings import ENGINE, Address, Capacity, Deadlines, Patience
from secagg.net.trio_check import check_trio_runs
from secagg.net.upload_slots import UploadSlots
from secagg.server import ServerMachine


class Server:
    """Accepts connections of clients, and runs sessions with these clients. `open_server` makes it."""

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
        self._offline: dict[Link, trio.CancelScope] = {}  # cancel to end a link's grace period
        self._notices: dict[Topic, bytes] = {}  # what every client is told when it connects
        self._conduct = ClientConduct()
        self._gone: set[int] = set()  # clients that no session waits for, until they connect again
        self._report_due = -math.inf  # the time of the next report of what the server waits for
        self._outdated: set[Link] = set()  # of clients in the session that have another key by now
        self._renewed = False  # whether the registry is newer than the session, if there is one
        self._connection_count = 0  # open connections of authenticated clients
        self._changed = trio.Event()
        self._on_event = on_event
        self.address: Address = ENGINE

    # --- for the owner of the server ---

    @property
    def connected(self) -> tuple[int, ...]:
        """The ids of the clients that are connected now, ascending."""
        return tuple(sorted(member for member, link in self._links.items() if link not in self._offline))

    @property
    def live(self) -> Session | None:
        """The current session, also while it is being set up; None if there is no session."""
        return self._session

    async def wait_for_clients(self, count: int, *, barred: Collection[int] = ()) -> None:
        """Wait until at least `count` clients are connected, without those in `barred` (ids). Meanwhile, an
        event reports it every `Patience.report` seconds, even if the call is often cancelled and repeated."""
        check_trio_runs("Server.wait_for_clients")
        while (connected := len(set(self.connected).difference(barred))) < count:
            if (now := trio.current_time()) >= self._report_due:
                self._report_due = now + self._patience.report
                self._on_event(net_events.ClientsAwaited(connected, count, len(barred)))
            with trio.move_on_at(self._report_due):
                await self._changed.wait()

    def renew(
        self,
        *,
        members: Mapping[int, bytes],
        context: ssl.SSLContext | None = None,
        notices: Collection[Notice] = (),
    ) -> None:
        """Use other members (id to public key) and another TLS context for new connections, and post notices.

        Clients that are no longer members leave the session and are disconnected. Those that have another key
        now are disconnected when the session is over. No other connection is disturbed. Raises
        `ParameterError` if this would begin or end the use of TLS.
        """
        before = self._authenticator.members
        self._authenticator.renew(members, context)
        self._renewed = self._session is not None
        for notice in notices:
            self.post(notice)
        changed = {member for member in {*before, *members} if members.get(member) != before.get(member)}
        for member in changed:  # what the old key did is not held against the new one
            self._conduct.reset(member)
        for member in changed.intersection(self._links):
            link = self._links[member]
            if member in members and self._session is not None and self._session.has(link):
                self._outdated.add(link)
            else:
                self._forget(link, LeaveReason.KEY_CHANGED)

    def post(self, notice: Notice) -> None:
        """Send a notice to all clients: now, or when they connect. It replaces the last one on its topic."""
        frame = self._notices[notice.topic] = notice.encode()
        for link in tuple(self._links.values()):
            self._send_notice(link, frame)

    def _send_notice(self, link: Link, frame: bytes) -> None:
        try:
            link.send(frame)
        except SlowReader as error:
            self._exclude(link, error)

    async def flush(self) -> None:
        """Wait until all connected clients have received what was sent to them."""
        async with trio.open_nursery() as nursery:
            for link in self._links.values():
                if link not in self._offline:
                    nursery.start_soon(link.flush)

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
        """Set up a session with the clients that join before the deadline, and yield it.

        The session ends with the block. When `expected` clients have joined, or no other can, the server
        waits for no more, and `Deadlines.absent` says how long it waits for clients that are not connected;
        if `expected` is None, it always waits until the deadline. Raises `SumFailed` if too few join, and
        `StateError` if a session runs already. If `members` is given, only these are invited; others stay
        connected for a later session. `on_event` gets every event of `machine`, after the `ledger` and before
        the server's own callback. `work` runs slow computations.
        """
        check_trio_runs("Server.session")
        if self._session is not None:
            raise StateError("a server has one session at a time")
        self._conduct.clear()
        candidates = self._authenticator.members if members is None else members
        session = self._session = Session(
            machine,
            self._exclude,
            deadlines=deadlines or Deadlines(),
            ledger=ledger,
            expected=ExpectedClients(candidates, expected=expected, presence=self._presence),
            report=self._patience.report,
            on_machine_event=on_event,
            on_event=self._on_event,
            work=work,
        )
        try:
            self._on_event(net_events.SessionBegun())
            # A client without a connection is invited when it reconnects, maybe as a new process.
            for member in self.connected:
                session.invite(self._links[member])
            await session.open()
            yield session
        finally:
            self._session, self._renewed = None, False
            self._gone.update(set(candidates).difference(self._links))
            try:
                session.end()
            finally:
                self._conduct.clear()
                self._forget_outdated()
                self._on_event(net_events.SessionClosed())

    def _presence(self, member: int) -> ConnectionState:
        link = self._links.get(member)
        if link is None:
            return ConnectionState.GONE if member in self._gone else ConnectionState.ABSENT
        return ConnectionState.OFFLINE if link in self._offline else ConnectionState.CONNECTED

    def _forget_outdated(self) -> None:
        for link in self._outdated:
            if self._links.get(link.member) is link:
                self._forget(link, LeaveReason.KEY_CHANGED)
        self._outdated.clear()

    # --- connections ---

    async def handle_connection(self, stream: trio.abc.Stream) -> None:
        """Authenticate the client of a new connection. Serve it until the end, or dismiss it if excluded."""
        client = await self._authenticator.authenticate(stream, host=host_of(stream))
        if client is None:
            return
        self._connection_count += 1
        try:
            if self._conduct.is_excluded(client.hello.member):
                await client.connection.send_last(packets.bye(Reason.EXCLUDED))
            else:
                await self._serve_client(client)
        finally:
            self._connection_count -= 1
            self._notify_changed()
            await client.connection.close()

    async def _serve_client(self, client: AuthenticatedClient) -> None:
        """Exchange frames with an authenticated client until its connection ends."""
        if client.hello.received and not self._knows(client.hello):
            # The client has frames of a link that is unknown here. No new link is made yet, so a lost answer
            # does no harm: the client repeats this hello until it has read that its session is lost.
            welcome = packets.welcome(resumed=False, received=0, versions=client.versions)
            await client.connection.send_last(welcome)
            return
        link, resumed = self._link_of(client.hello)
        link.supersede()
        async with link.run_lock:
            if link.run_lock.statistics().tasks_waiting:
                return  # the client has connected again meanwhile; only its newest connection is used
            if self._links.get(link.member) is not link:
                excluded = self._conduct.is_excluded(link.member)
                reason = Reason.EXCLUDED if excluded else Reason.REPLACED
                await client.connection.send_last(packets.bye(reason))
                return
            self._on_connected(link, resumed)
            hello = packets.welcome(resumed=resumed, received=link.received, versions=client.versions)
            take = partial(self._take, link)
            received = client.hello.received  # 0 if the link is new
            why = await link.run(client.connection, first=hello, received=received, deliver=take)
        await self._on_connection_end(link, client.connection, why)

    def _knows(self, hello: Hello) -> bool:
        link = self._links.get(hello.member)
        return link is not None and link.name == hello.link

    def _link_of(self, hello: Hello) -> tuple[Link, bool]:
        """Return the link that `hello` names, and True. If it is unknown, return a new link, and False: the
        new link replaces the old one of the client, if there is one, and the client leaves the session."""
        old = self._links.get(hello.member)
        if old is not None and self._knows(hello):
            self._stop_grace_period(old)
            return old, True
        if old is not None:
            self._forget(old, LeaveReason.PROCESS_RESTARTED)
        link = Link(hello.link, member=hello.member, peer=hello.member, slots=self._slots)
        link.frame_limit = MAX_CLIENT_NOTICE
        self._links[hello.member] = link
        return link, False

    def _on_connected(self, link: Link, resumed: bool) -> None:
        self._gone.discard(link.member)
        self._on_event(net_events.ClientConnected(link.member, resumed))
        # A client that is told of a newer registry first refuses a session that began with the old one.
        later = {Topic.REGISTRY} if self._renewed else set()
        if not resumed:
            self._send_notices(link, self._notices.keys() - later)
        if self._session is not None:
            self._session.invite(link)
        if not resumed:
            self._send_notices(link, self._notices.keys() & later)
        self._notify_changed()

    def _send_notices(self, link: Link, topics: Collection[Topic]) -> None:
        for topic in sorted(topics):
            link.send(self._notices[topic])  # a new link: far fewer frames than may wait

    def _notify_changed(self) -> None:
        """Wake the tasks that wait for clients, because one has connected, or lost its connection."""
        self._changed.set()
        self._changed = trio.Event()
        if self._session is not None:
            self._session.note_presence()

    async def _take(self, link: Link, arrival: ReceivedFrame) -> None:
        if self._links.get(link.member) is not link:
            return  # the key has changed, and this connection of the old one ends soon
        if is_notice(arrival.frame):
            self._take_notice(link.member, arrival.frame)
            return
        if self._session is not None and self._session.expects(link, arrival):
            await self._session.take(link, arrival)
            return
        self._conduct.count_stray_frame(link.member)

    def _take_notice(self, member: int, frame: bytes) -> None:
        """Report the notice of a client. Raises `PeerError` if it is malformed, or one of too many."""
        self._conduct.count_notice(member, len(frame))
        self._on_event(net_events.ClientNotice(member, parse_notice(frame, sender=member)))

    async def _on_connection_end(self, link: Link, connection: Connection, why: SecaggError) -> None:
        """On a `PeerError`, exclude the client; on `ClosedLocally`, dismiss it; else let it reconnect."""
        if isinstance(why, PeerError):
            self._exclude(link, why)
            await connection.send_last(packets.bye(Reason.EXCLUDED))
        elif isinstance(why, ClosedLocally):
            await connection.send_last(packets.bye(why.reason))
        else:
            self._on_event(net_events.ClientDisconnected(link.member, why))
            self._start_grace_period(link)

    def _start_grace_period(self, link: Link) -> None:
        """Start a task that removes `link` after `Patience.grace` seconds unless its client reconnects."""
        if self._links.get(link.member) is link and not link.run_lock.locked():
            scope = self._offline[link] = trio.CancelScope()
            self._nursery.start_soon(self._expire, link, scope)
            self._notify_changed()

    async def _expire(self, link: Link, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._patience.grace)
            self._gone.add(link.member)
            self._forget(link, LeaveReason.CONNECTION_LOST)
            self._notify_changed()

    def _stop_grace_period(self, link: Link) -> None:
        """Cancel the task, if there is one, that would remove `link` because its client stays offline."""
        if (scope := self._offline.pop(link, None)) is not None:
            scope.cancel()

    def _forget(self, link: Link, why: LeaveReason) -> None:
        """Close and remove a link. Its client leaves the session, and gets a new link if it reconnects."""
        del self._links[link.member]
        self._stop_grace_period(link)
        if self._session is not None and self._session.has(link):
            self._session.lose(link, why)
        if why is LeaveReason.KEY_CHANGED:
            self._nursery.start_soon(self._dismiss_later, link)
        else:
            link.close(Reason.REPLACED)

    async def _dismiss_later(self, link: Link) -> None:
        """End the connection of a client whose key has changed when it has been told so, or soon."""
        with trio.move_on_after(LAST_SECONDS):
            await link.flush()
        link.close(Reason.UNKNOWN)

    def _exclude(self, link: Link, error: PeerError) -> None:
        """Exclude a client that broke the protocol: disconnect it, and refuse it until the session ends. If
        there is no session, refuse it for `Patience.grace` seconds, because none may begin without it. If the
        link is one of an old key, only end it: what a revoked key does must not harm the new one."""
        if self._links.get(link.member) is not link:
            link.close(Reason.UNKNOWN)
            return
        self._on_event(net_events.ClientExcluded(link.member, error))
        if link not in self._outdated:
            self._conduct.exclude(link.member, self._patience.grace if self._session is None else math.inf)
        self._gone.add(link.member)
        if self._session is not None and self._session.has(link):
            self._session.remove_excluded(link, error)
        del self._links[link.member]
        self._stop_grace_period(link)
        link.close(Reason.EXCLUDED)

    # --- shutting down ---

    async def close(self) -> None:
        """Give clients a short time to read the last frames, then close their connections."""
        with trio.move_on_after(self._patience.farewell, shield=True):
            await self.flush()
        for link in self._links.values():
            link.close(Reason.CLOSING)
        with trio.move_on_after(LAST_SECONDS, shield=True):
            while self._connection_count:
                await self._changed.wait()
