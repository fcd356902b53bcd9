"""A client on the network: it connects, reconnects after a failure, and answers one question at a time.

    async with open_client("host:7443", context=client_context(...), member=5, table=table,
                           policy=policy, memory=ledger) as client:
        async for asked in client:
            await client.answer_with(asked, partial(train, asked.payload))  # calls it in a thread

A client takes part in one session after another. If the server has lost the session, or if the client refuses
a message in it, the client leaves this session for good. It can still join the next one.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Self

import trio
from numpy.typing import ArrayLike

from secagg import events
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import (
    SERVER,
    ExpiredRegistry,
    InputError,
    PeerError,
    SecaggError,
    SlowReader,
    StateError,
    UnchangedValues,
)
from secagg.events import Asked
from secagg.keys import Identity
from secagg.net import events as net_events
from secagg.net.client_keys import ClientKeys, KeyChange
from secagg.net.connection import Connection, ConnectionLost
from secagg.net.events import OnClientEvent, SessionLossReason
from secagg.net.handshake import ServerConnector, backoff
from secagg.net.notices import Notice, Topic, is_notice, parse_notice
from secagg.net.nursery_and_threads import RunFunction
from secagg.net.packets import LINK_BYTES, Reason, Welcome
from secagg.net.reliable_link import DismissedByServer, Link, ReceivedFrame, SendProgress
from secagg.net.settings import Patience
from secagg.net.trio_check import check_trio_runs
from secagg.net.versions import AgreedVersions, NoCommonVersion
from secagg.transitions import ClientState
from secagg.usable_values import Unusable, UsableValues, Zeros, usable_values, zero_values

_REPLACEMENT_WINDOW: Final = 600.0  # seconds; a process that is replaced twice within them fails
_OVER: Final = (ClientState.ENDED, ClientState.FAILED)


class Client:
    """An asynchronous iterator over the questions (`Asked` events) of the server; `open_client` makes it.

    Call `answer_with`, `answer` or `decline` for each question. The iterator ends only by raising a
    `SecaggError`, when an error on this side prevents the client from going on.
    """

    def __init__(
        self,
        connector: ServerConnector,
        make_machine: Callable[[], ClientMachine],
        *,
        keys: ClientKeys | None = None,
        patience: Patience,
        on_event: OnClientEvent,
        progress: SendProgress,
        work: RunFunction,
    ) -> None:
        self._connector = connector
        self._make_machine = make_machine
        self._machine = make_machine()
        self._keys = keys or ClientKeys.fixed()
        self._patience = patience
        self._on_event = on_event
        self._progress = progress
        self._work = work
        self._machine_lock = trio.Lock()  # held while the machine is in use
        self._asked: Asked | None = None
        self._handed_out: Asked | None = None
        self._failure: SecaggError | None = None
        self._replaced = -math.inf  # the last time the server preferred another process of this client
        self._changed = trio.Event()
        self._link = self._new_link(secrets.token_bytes(LINK_BYTES))  # no two processes have the same name

    # --- what its owner calls ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Asked:
        """Wait for and return the next question; this closes the last. Raises what has stopped the client."""
        check_trio_runs("the iteration over a Client")
        await trio.lowlevel.checkpoint()
        while (asked := self.poll()) is None:
            self._changed = trio.Event()
            await self._changed.wait()
        return asked

    def poll(self) -> Asked | None:
        """Return the next question, or None if there is none yet. Raises what has stopped the client."""
        if self._asked is None or self._asked is self._handed_out:
            self._raise_failure()
            return None
        self._handed_out = self._asked
        return self._asked

    async def answer_with(self, asked: Asked, compute: Callable[[], Mapping[str, ArrayLike]]) -> bool:
        """Send what `compute()` returns; it is called in a thread. Return False as `answer` does.

        If all parts of the sum have noise, only the time that `compute` takes can tell the server something
        about this client's values. The answer is paid for before `compute` is called. Values that cannot be
        used are changed as `usable_values` says, and a `ValuesChanged` event reports it to the owner of this
        client. In other sums, this raises what `compute` and `answer` raise; then call `decline`.
        """
        check_trio_runs("Client.answer_with")
        if not asked.spec.is_private:
            values = await trio.to_thread.run_sync(compute, abandon_on_cancel=True)
            return await self.answer(asked, values)
        if not await self._charge(asked):
            return False
        found = await trio.to_thread.run_sync(usable_values, asked.spec, compute, abandon_on_cancel=True)
        self._report(asked, found)
        try:
            return await self.answer(asked, found.values)
        except InputError as error:
            # The owner's code has changed the arrays since, or no rounding brings them within their bound.
            zeros = UsableValues(zero_values(asked.spec), zeros=Zeros(Unusable.UNFIT_PART, str(error)))
        self._report(asked, zeros)
        return await self.answer(asked, zeros.values)

    def _report(self, asked: Asked, found: UsableValues) -> None:
        if found.changed:
            event = net_events.ValuesChanged(asked.sum_index, asked.kind, found.clipped, found.zeros)
            self._on_event(event)

    async def _charge(self, asked: Asked) -> bool:
        def charge(machine: ClientMachine) -> None:
            machine.charge(asked.sum_index)

        return await self._use_machine(asked, charge)

    async def answer(self, asked: Asked, values: Mapping[str, ArrayLike]) -> bool:
        """Mask and send `values`. Return False if the sum has ended, or if the client refuses it and leaves.

        Raises `InputError` if `values` do not match the spec, `UnchangedValues` if they were summed before
        over nearly the same clients (then call `decline`), or the error that has stopped the client.
        """
        check_trio_runs("Client.answer")
        return await self._use_machine(asked, lambda machine: machine.answer(asked.sum_index, values).frame)

    async def _use_machine(self, asked: Asked, use: Callable[[ClientMachine], bytes | None]) -> bool:
        """Call `use` with the machine, and send the frame that it returns, if any; that closes the question.
        Return False, and raise, as `answer` does."""
        async with self._machine_lock:
            self._raise_failure()
            if self._asked is not asked:
                return False
            machine = self._machine
            try:
                frame = await self._work(lambda: use(machine))
                if frame is not None:
                    self._link.send(frame)
                    self._asked = None
            except (InputError, UnchangedValues):
                raise
            except SecaggError as error:
                self._refuse(error)
                self._raise_failure()
                return False
            return True

    def tell(self, notice: Notice) -> None:
        """Send a notice to the server. Do nothing if it is not connected, or does not read."""
        if self._link.is_up:
            with suppress(SlowReader):
                self._link.send(notice.encode())

    async def offer_registry(self, data: bytes) -> None:
        """Adopt the registry in a file's contents `data` if the authority signed it and it is newer."""
        await self._change_keys(lambda: self._keys.examine_registry(data))

    async def offer_key(self, identity: Identity, certificate: bytes) -> None:
        """Use another key of this client, with its certificate, as soon as a registry lists it. Raises
        `ParameterError` or `CertificateError` if they do not belong together, or there is no `ClientTls`."""
        async with self._machine_lock:
            self._keys.offer(identity, certificate)
            self._renew_machine()

    def pin_server(self, certificate: bytes) -> None:
        """Trust this certificate of the server, and no other, from the next connection on. Raises as
        `offer_key` does."""
        self._keys.pin(certificate)

    async def flush(self) -> None:
        """Wait until the server has received all frames sent to it, or there is no connection."""
        check_trio_runs("Client.flush")
        await self._link.flush()

    async def decline(self, asked: Asked) -> bool:
        """Decline to answer `asked`. Return False if it is no longer open, or if the client has to leave."""
        check_trio_runs("Client.decline")
        async with self._machine_lock:
            if self._asked is not asked:
                return False
            try:
                self._link.send(self._machine.decline(asked.sum_index))
            except SlowReader as error:
                self._refuse(error)
                return False
            self._asked = None
            return True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- connections ---

    async def run(self) -> None:
        """Stay connected: connect again when a connection ends, until an error on this side stops this."""
        attempt = 0
        while self._failure is None:
            attempt = 0 if await self._connect() else attempt + 1
            await trio.sleep(backoff(attempt))

    async def _connect(self) -> bool:
        """Open a connection and use it until it ends. Return False if it could not be opened, or ended
        because the server broke the protocol, and True otherwise."""
        link = self._link
        self._keys.aim(self._connector)
        try:
            connection, welcome = await self._connector.connect(link.name, link.received)
        except DismissedByServer as error:
            self._keys.note_refused()
            await self._dismissed(error)
            return False
        except NoCommonVersion as error:
            self._on_event(net_events.ServerIncompatible(self._connector.address, error))
            return False
        except (ConnectionLost, PeerError) as error:
            self._keys.note_refused()
            self._on_event(net_events.ServerUnreachable(error))
            return False
        self._keys.note_connected()
        try:
            return await self._carry(connection, welcome)
        finally:
            await connection.close()

    async def _carry(self, connection: Connection, welcome: Welcome) -> bool:
        if not welcome.resumed and (self._link.sent or self._link.received):
            await self._lose_session(SessionLossReason.SERVER_FORGOT, next_link=self._link.name)
        link = self._link
        link.frame_limit = max(self._machine.frame_limit, self._keys.largest_notice)
        self._on_event(net_events.ServerConnected(self._connector.address, welcome.resumed))
        self._report_versions(welcome.versions)
        async with link.run_lock:
            why = await link.run(connection, received=welcome.received, deliver=self._take)
        if isinstance(why, DismissedByServer):
            await self._dismissed(why)
        else:
            self._on_event(net_events.ServerDisconnected(why))
        return not isinstance(why, PeerError)

    def _report_versions(self, agreed: AgreedVersions) -> None:
        offered = self._connector.offered
        if offered.agree(offered) != agreed:
            self._on_event(net_events.ServerIsOlder(self._connector.address, offered, agreed))

    async def _dismissed(self, why: DismissedByServer) -> None:
        self._on_event(net_events.ClientDismissed(why.reason))
        if why.reason is Reason.REPLACED and trio.current_time() < self._replaced + _REPLACEMENT_WINDOW:
            self._fail(StateError(f"another process has joined as client {self._machine.member}"))
            return
        if why.reason is not Reason.CLOSING:
            next_link = secrets.token_bytes(LINK_BYTES)
            await self._lose_session(SessionLossReason.DISMISSED, next_link=next_link)
        if why.reason is Reason.REPLACED:
            # A delayed hello of an earlier process may have caused this. Then it does not happen again.
            self._replaced = trio.current_time()
            await trio.sleep(self._patience.handshake)

    def _new_link(self, name: bytes) -> Link:
        return Link(name, member=self._machine.member, peer=SERVER, progress=self._progress)

    async def _lose_session(self, why: SessionLossReason, *, next_link: bytes) -> None:
        """Leave the session without telling the server: erase its secrets, drop the link and all frames on it
        that the server has not received, and make a new link named `next_link`."""
        async with self._machine_lock:  # wait for an answer that is being computed; it is discarded
            if self._machine.state not in (ClientState.NEW, *_OVER):
                self._on_event(net_events.SessionLost(why))
            self._machine.leave()
            self._asked = None
            self._link = self._new_link(next_link)

    # --- the machine ---

    async def _take(self, arrival: ReceivedFrame) -> None:
        if is_notice(arrival.frame):
            await self._take_notice(parse_notice(arrival.frame, sender=SERVER))
            return
        async with self._machine_lock:
            over = self._machine.state in _OVER
            if over and (self._failure or m.message_type(arrival.frame, sender=SERVER) is not m.Invitation):
                return  # the frame belongs to a session that this client has left
            try:
                await self._receive(arrival.frame)
            except SecaggError as error:
                self._refuse(error)

    async def _take_notice(self, notice: Notice) -> None:
        if notice.topic in (Topic.REGISTRY, Topic.SERVER_CERTIFICATE):
            await self._change_keys(lambda: self._keys.examine(notice, int(time.time())))
        else:
            self._on_event(net_events.NoticeReceived(notice))

    async def _change_keys(self, examine: Callable[[], KeyChange | None]) -> None:
        async with self._machine_lock:
            try:
                changed = await self._keys.change(examine, work=self._work, on_event=self._on_event)
            except SecaggError as error:
                self._fail(error)
                return
            if changed:
                self._renew_machine()

    def _renew_machine(self) -> None:
        """Let the next invitation begin with a new machine, which has the newest keys. A session that has
        begun goes on with its own."""
        if self._machine.state is ClientState.NEW:
            self._machine.leave()

    async def _receive(self, frame: bytes) -> None:
        now = int(time.time())
        if self._machine.state in (ClientState.NEW, *_OVER):
            self._keys.check_usable(now)
        if self._machine.state in _OVER:
            self._machine = self._make_machine()
        machine = self._machine
        step = await self._work(lambda: machine.receive(frame, now=now))
        for reply in step.frames:
            self._link.send(reply)
        for event in step.events:
            self._on_event(event)
            match event:
                case Asked():
                    self._asked = event
                    self._changed.set()
                case events.Abandoned() | events.SessionOver():
                    self._asked = None

    def _refuse(self, error: SecaggError) -> None:
        """Leave the session because of `error`. Also stop the client, unless the server caused the error."""
        self._asked = None
        self._on_event(net_events.SessionRefused(error))
        self.tell(Notice(Topic.REFUSAL, type(error).__name__.encode()))
        self._leave()
        if not isinstance(error, PeerError | ExpiredRegistry):  # a newer registry may come
            self._fail(error)

    def _leave(self) -> None:
        """Erase the secrets of the session, and tell the server that this client leaves."""
        with suppress(SlowReader):  # a server that reads nothing is not told
            self._link.send(self._machine.leave())

    def _fail(self, error: SecaggError) -> None:
        self._failure = error
        self._changed.set()

    async def close(self) -> None:
        """Leave the session and join no other. Wait up to `Patience.farewell` seconds to tell the server."""
        self._failure = self._failure or StateError("this client was closed")  # it joins no other session
        with trio.move_on_after(self._patience.farewell, shield=True):
            async with self._machine_lock:
                if self._machine.state not in (ClientState.NEW, *_OVER):
                    self._leave()
            await self._link.flush()

    def erase(self) -> None:
        """Erase the secrets of the session, even if `close` was cancelled."""
        self._machine.leave()
