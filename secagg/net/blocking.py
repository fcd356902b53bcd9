"""Clients and servers for programs that do not run trio: asyncio programs, and plain threads.

    with connect("host:7443", context=client_context(...), member=5, table=table, policy=policy,
                 memory=ledger) as client:
        for asked in client:
            client.answer(asked, train(asked.payload))

    with listen("0.0.0.0:7443", members=registry.members, context=server_context(...)) as server:
        with server.session(ServerMachine(...)) as session:
            total = session.ask("mean", payload, round_number=0)

All calls block. In an asyncio program, call them with `await asyncio.to_thread(...)`. Each client and each
server has an event loop in a thread of its own (`EventLoopThread`). Callbacks (`on_event`, `progress`) run in
this thread: they must return soon and call no blocking method. Any thread may call `close`, which ends the
calls in other threads with `Closed`. An error of the event loop's thread, such as one that a callback raises,
is raised by the next call.
"""

from __future__ import annotations

import inspect
import math
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar

import trio
from numpy.typing import ArrayLike

from secagg.errors import Closed
from secagg.events import Asked
from secagg.keys import Identity
from secagg.ledger import ServerLedger
from secagg.local_session import Stage
from secagg.net.client import Client
from secagg.net.event_loop_thread import EventLoopThread, OpenContext
from secagg.net.notices import Notice
from secagg.net.nursery_and_threads import RunFunction, in_thread
from secagg.net.open_client_and_server import open_client, open_server
from secagg.net.server import Server
from secagg.net.server_session import OnMachineEvent, Session, no_op
from secagg.net.settings import Address, Deadlines
from secagg.server import ServerMachine
from secagg.sum_spec import Total

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Blocking(Generic[T]):
    """What a blocking client, server and session have in common: a block, and `close`."""

    def __init__(self, opened: OpenContext[T]) -> None:
        self._opened = opened

    def close(self) -> None:
        """End it, and wait until the other side was notified or `Patience.farewell` seconds have passed.
        Any thread may do so, and more than once. Calls in other threads raise `Closed`. Raises the error that
        ended it before, unless another call has raised this error."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._opened.__exit__(kind, error, trace)


class BlockingClient(_Blocking[Client]):
    """An iterator over the questions (`Asked` events) of the server; `connect` makes it.

    Call `answer` or `decline` for each question. The iterator ends when the client is closed, and raises a
    `SecaggError` if an error on this side prevents the client from going on. One thread at a time may wait
    for a question.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Asked:
        try:
            return self.next()
        except Closed:
            raise StopIteration from None

    def next(self, *, timeout: float | None = None) -> Asked:
        """Wait for and return the next question; this closes the last.

        Raises `TimeoutError` after `timeout` seconds without a question (0: do not wait); the client stays
        usable. Raises `Closed` if the client was closed, or the error that has stopped it.
        """
        return self._opened.call(_next_question, self._opened.value, timeout)

    def answer(self, asked: Asked, values: Mapping[str, ArrayLike]) -> bool:
        """Mask and send `values`. Return False if the sum has ended, or if the client refuses it and leaves.

        Raises `InputError` if `values` do not match the spec, `UnchangedValues` if they were summed before
        over nearly the same clients (then call `decline`), or the error that has stopped the client.
        """
        return self._opened.call(self._opened.value.answer, asked, values)

    def answer_with(self, asked: Asked, compute: Callable[[], Mapping[str, ArrayLike]]) -> bool:
        """Send what `compute()` returns; it is called in another thread. In a sum whose parts all have noise,
        the answer is paid for first, and values that cannot be used are changed (see `usable_values`). Return
        False, and raise, as `answer` does; in other sums, also raise what `compute` raises."""
        return self._opened.call(self._opened.value.answer_with, asked, compute)

    def decline(self, asked: Asked) -> bool:
        """Decline to answer `asked`. Return False if it is no longer open, or if the client has to leave."""
        return self._opened.call(self._opened.value.decline, asked)

    def offer_registry(self, data: bytes) -> None:
        """Adopt the registry in a file's contents `data` if the authority signed it and it is newer."""
        self._opened.call(self._opened.value.offer_registry, data)

    def offer_key(self, identity: Identity, certificate: bytes) -> None:
        """Use another key of this client, with its certificate, as soon as a registry lists it. Raises as
        `Client.offer_key` does."""
        self._opened.call(self._opened.value.offer_key, identity, certificate)

    def flush(self) -> None:
        """Wait until the server has received all frames sent to it, or there is no connection."""
        self._opened.call(self._opened.value.flush)


async def _next_question(client: Client, seconds: float | None) -> Asked:
    try:
        return await _within(seconds, client.__anext__)
    except TimeoutError:
        asked = client.poll()  # without this, 0 seconds would be too short for a question that is there
        if asked is None:
            raise
        return asked


async def _within(seconds: float | None, function: Callable[[], Awaitable[R]]) -> R:
    """Run an async function. Raise `TimeoutError` if it takes longer than `seconds`; None: without limit."""
    with trio.move_on_after(math.inf if seconds is None else seconds):
        return await function()
    raise TimeoutError(f"waited for {seconds} seconds")


class BlockingSession(_Blocking[Session]):
    """A session with clients, in which `ask` computes sums; `BlockingServer.session` makes it."""

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        """Compute one sum of `kind`, a name in the table, and return its total.

        Clients get `payload` and `round_number`. Raises `SumFailed` if no total was released, or `LocalError`
        if the query is not possible now; the session goes on. An interrupted call abandons the sum.
        """
        ask = partial(self._opened.value.ask, kind, payload, round_number=round_number)
        return self._opened.call(ask)

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of the clients that can still be asked for a sum."""
        return self._opened.value.members

    @property
    def sums_left(self) -> int:
        return self._opened.value.sums_left

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ids of the clients in the last total."""
        return self._opened.value.contributors

    @property
    def bytes_up(self) -> Counter[Stage]:
        """How many bytes of frames clients have sent, by stage."""
        return self._opened.value.bytes_up.copy()

    @property
    def bytes_down(self) -> Counter[Stage]:
        """How many bytes of frames clients have got, by stage."""
        return self._opened.value.bytes_down.copy()

    @property
    def frames_up(self) -> Counter[Stage]:
        """How many frames clients have sent, by stage."""
        return self._opened.value.frames_up.copy()

    @property
    def frames_down(self) -> Counter[Stage]:
        """How many frames clients have got, by stage."""
        return self._opened.value.frames_down.copy()


class BlockingServer(_Blocking[Server]):
    """Accepts connections of clients, and runs sessions with these clients. `listen` makes it."""

    @property
    def address(self) -> Address:
        return self._opened.value.address

    @property
    def connected(self) -> tuple[int, ...]:
        """The ids of the clients that are connected now, ascending."""
        return self._opened.call(_connected, self._opened.value)

    def wait_for_clients(
        self, count: int, *, barred: Collection[int] = (), timeout: float | None = None
    ) -> None:
        """Wait until at least `count` clients are connected, without those in `barred` (ids). Raises
        `TimeoutError` if they are not within `timeout` seconds."""
        wait = partial(self._opened.value.wait_for_clients, count, barred=barred)
        self._opened.call(_within, timeout, wait)

    def renew(
        self,
        *,
        members: Mapping[int, bytes],
        context: ssl.SSLContext | None = None,
        notices: Collection[Notice] = (),
    ) -> None:
        """Use other members and another TLS context, and post notices, as `Server.renew` does."""
        self._opened.call(_renew, self._opened.value, members, context, notices)

    def session(
        self,
        machine: ServerMachine,
        *,
        deadlines: Deadlines | None = None,
        ledger: ServerLedger | None = None,
        expected: int | None = None,
        members: Collection[int] | None = None,
        on_event: OnMachineEvent = no_op,
        work: RunFunction = in_thread,
    ) -> BlockingSession:
        """Set up a session with the clients that join before the deadline, and return it. It ends with its
        block, with `close`, or with the server. Arguments and errors are those of `Server.session`."""
        open_session = partial(
            self._opened.value.session,
            machine,
            deadlines=deadlines,
            ledger=ledger,
            expected=expected,
            members=members,
            on_event=on_event,
            work=work,
        )
        return BlockingSession(self._opened.open_inner(open_session, name="this session"))


async def _renew(
    server: Server, members: Mapping[int, bytes], context: ssl.SSLContext | None, notices: Collection[Notice]
) -> None:
    server.renew(members=members, context=context, notices=notices)


async def _connected(server: Server) -> tuple[int, ...]:
    return server.connected


def _arguments_of(model: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorator: the function has the arguments of `model`, for type checkers and for `help`."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        returns = inspect.signature(function).return_annotation
        signature = inspect.signature(model).replace(return_annotation=returns)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


@_arguments_of(open_client)
def connect(*args: Any, **settings: Any) -> BlockingClient:
    """Take part in the sums of a server, until `close` or the end of the block. Programs need not run trio.

    The arguments are those of `open_client`. Raises `LocalError` at once if they contradict each other. If
    the server cannot be reached, the client tries without end.
    """
    return BlockingClient(EventLoopThread(partial(open_client, *args, **settings), name="this client"))


@_arguments_of(open_server)
def listen(*args: Any, **settings: Any) -> BlockingServer:
    """Listen for clients, until `close` or the end of the block. Programs need not run trio.

    The arguments are those of `open_server`. Raises `ParameterError` for invalid settings, and `OSError` if
    it cannot listen.

    >>> from threading import Thread
    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> terms = dict(trust="curious_server", corrupt=1, min_cohort=3, max_cohort=9, min_contributors=3)
    >>> rules = dict(table=table, policy=Policy(**terms, max_sums=1, unnoised_sums=1))
    >>> def take_part(member, client):
    ...     for asked in client:
    ...         client.answer(asked, {"x": [float(member)]})
    >>> local = {"insecure_plain_tcp": True}
    >>> server = listen("127.0.0.1:0", members=dict.fromkeys((1, 2, 3), bytes(32)), **local)
    >>> clients = {}
    >>> for member in (1, 2, 3):
    ...     who = dict(member=member, memory=VolatileMemory())
    ...     clients[member] = connect(server.address, **who, **rules, **local)
    ...     Thread(target=take_part, args=(member, clients[member])).start()
    >>> machine = ServerMachine(table=table, params=SessionParams(**terms))
    >>> with server.session(machine, expected=3) as session:
    ...     session.ask("mean")["x"].round(6)
    array([6.])
    >>> for opened in (*clients.values(), server):
    ...     opened.close()
    """
    return BlockingServer(EventLoopThread(partial(open_server, *args, **settings), name="this server"))
