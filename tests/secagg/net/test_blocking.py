"""Clients and servers without trio: in plain threads and in asyncio programs, over sockets and TLS."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from secagg.errors import Closed, InputError, ParameterError, StateError, TooFewClients
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.net import (
    Address,
    BlockingClient,
    BlockingServer,
    BlockingSession,
    ClientTls,
    Deadlines,
    connect,
    listen,
    open_client,
)
from secagg.net.certificates import make_certificate
from secagg.net.event_log import EventLog
from secagg.net.events import ServerConnected
from secagg.sum_spec import Total
from tests.secagg.net.rig import KIND, PART, SEED, World
from tests.secagg.net.test_event_loop_thread import SECONDS, interrupt
from tests.secagg.net.tls_contexts import NOW, PATIENCE, certificate, context_of, host_context


class Site:
    """A server and its clients on this machine, none of which runs trio."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(**{"clients": 2, **settings})

    def listen(self, **changes: Any) -> BlockingServer:
        settings: dict[str, Any] = {
            "members": self.world.registry.members,
            "context": host_context(self.world),
            "patience": PATIENCE,
            "on_event": EventLog(self.world.diary),
            **changes,
        }
        return listen("127.0.0.1:0", **settings)

    def connect(self, server: BlockingServer, member: int, **changes: Any) -> BlockingClient:
        settings: dict[str, Any] = {
            "table": self.world.table,
            "policy": self.world.policy,
            "memory": self.world.memories[member],
            "context": context_of(member),
            "patience": PATIENCE,
            "on_event": EventLog(self.world.diaries[member]),
            **changes,
        }
        return connect(server.address, member=member, **settings)

    def session(self, server: BlockingServer, **changes: Any) -> BlockingSession:
        return server.session(self.world.machine(), **{"expected": self.world.clients, **changes})

    def ask(self, session: BlockingSession) -> Total:
        self.world.round += 1
        return session.ask(KIND, self.world.round.to_bytes(2, "big"), round_number=self.world.round)

    def answer_all(self, client: BlockingClient, member: int) -> int:
        """A well-behaved client, until it is closed. Returns how many questions it has answered."""
        return sum(client.answer(asked, self.world.values(member, asked)) for asked in client)

    def check(self, total: Total, session: BlockingSession) -> None:
        """It is that of all clients."""
        assert total.count == self.world.clients
        assert session.contributors == tuple(range(self.world.clients))
        expected = sum(self.world.vector(member, self.world.round) for member in range(self.world.clients))
        assert list(total[PART]) == list(expected)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


# --- plain threads ---


def test_two_clients_in_two_threads_of_one_process(pool: ThreadPoolExecutor) -> None:
    site = Site()
    with site.listen() as server, ExitStack() as stack:
        clients = [stack.enter_context(site.connect(server, member)) for member in range(2)]
        answered = [pool.submit(site.answer_all, client, member) for member, client in enumerate(clients)]
        server.wait_for_clients(2, timeout=SECONDS)
        assert server.connected == (0, 1)
        with site.session(server) as session:
            assert session.members == (0, 1)
            assert session.sums_left == 3
            for _ in range(2):
                site.check(site.ask(session), session)
            assert session.sums_left == 1
        assert session.contributors == (0, 1)  # also when the session is over
        assert session.frames_up.total() < session.bytes_up.total()
        assert session.frames_down.total() < session.bytes_down.total()
        assert session.frames_up.keys() == session.bytes_up.keys()
        for client, count in zip(clients, answered, strict=True):
            client.close()
            assert count.result(SECONDS) == 2


def test_a_client_can_decline_and_flush(pool: ThreadPoolExecutor) -> None:
    site = Site(clients=3)

    def decline(client: BlockingClient) -> bool:
        asked = client.next()
        declined = client.decline(asked)
        client.flush()
        return declined and not client.decline(asked)

    with site.listen() as server, ExitStack() as stack:
        clients = [stack.enter_context(site.connect(server, member)) for member in range(3)]
        declined = pool.submit(decline, clients[2])
        for member in range(2):
            pool.submit(site.answer_all, clients[member], member)
        with site.session(server) as session:
            assert site.ask(session).count == 2
            assert session.contributors == (0, 1)
        assert declined.result(SECONDS)


def test_wrong_values_are_the_callers_error_and_the_question_stays_open(pool: ThreadPoolExecutor) -> None:
    site = Site()
    with site.listen() as server, site.connect(server, 0) as first, site.connect(server, 1) as second:
        pool.submit(site.answer_all, second, 1)

        def answer() -> bool:
            asked = first.next()
            with pytest.raises(InputError):
                first.answer(asked, {PART: [0.5]})
            return first.answer(asked, site.world.values(0, asked))

        answered = pool.submit(answer)
        with site.session(server) as session:
            site.check(site.ask(session), session)
        assert answered.result(SECONDS)


# --- asyncio ---


def test_a_client_in_an_asyncio_program(pool: ThreadPoolExecutor) -> None:
    site = Site()

    async def contribute(server: BlockingServer, member: int) -> None:
        with site.connect(server, member) as client:
            for _ in range(2):
                asked = await asyncio.to_thread(client.next)
                values = site.world.values(member, asked)
                assert await asyncio.to_thread(client.answer, asked, values)
            await asyncio.to_thread(client.flush)
            await asyncio.to_thread(done.wait, SECONDS)

    async def contribute_both(server: BlockingServer) -> None:
        async with asyncio.TaskGroup() as group:
            for member in range(2):
                group.create_task(contribute(server, member))

    done = threading.Event()
    with site.listen() as server:
        program = pool.submit(lambda: asyncio.run(contribute_both(server)))
        with site.session(server) as session:
            for _ in range(2):
                site.check(site.ask(session), session)
        done.set()
        program.result(SECONDS)


def test_a_server_in_an_asyncio_program(pool: ThreadPoolExecutor) -> None:
    site = Site()

    def compute(server: BlockingServer) -> None:
        with site.session(server) as session:
            site.check(site.ask(session), session)

    async def main() -> None:
        with site.listen() as server, ExitStack() as stack:
            for member in range(2):
                client = stack.enter_context(site.connect(server, member))
                pool.submit(site.answer_all, client, member)
            await asyncio.to_thread(compute, server)

    asyncio.run(main())


def test_a_cancelled_asyncio_task_leaves_nothing_that_waits() -> None:
    site = Site()

    async def wait_for_a_question(server: BlockingServer, waits: asyncio.Event) -> None:
        with site.connect(server, 0) as client:
            waits.set()
            await asyncio.to_thread(client.next)

    async def main() -> None:
        waits = asyncio.Event()
        with site.listen() as server:
            task = asyncio.create_task(wait_for_a_question(server, waits))
            await waits.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())  # waits for the threads of `to_thread`


# --- how waiting ends ---


def test_a_client_that_another_thread_closes_stops_its_iteration(pool: ThreadPoolExecutor) -> None:
    site = Site()
    with site.listen() as server, site.connect(server, 0) as client:
        answered = pool.submit(site.answer_all, client, 0)
        client.close()
        assert answered.result(SECONDS) == 0
        with pytest.raises(Closed):
            client.next()
        client.close()


def test_an_exception_in_the_block_ends_what_waits_in_other_threads(pool: ThreadPoolExecutor) -> None:
    site = Site()
    with site.listen() as server:
        client = site.connect(server, 0)
        asked = pool.submit(client.next)
        with pytest.raises(KeyError, match="mine"), client:
            raise KeyError("mine")
        assert isinstance(asked.exception(SECONDS), Closed)


def test_there_may_be_no_question_in_time(pool: ThreadPoolExecutor) -> None:
    site = Site()
    is_asked = threading.Event()

    def on_event(event: object) -> None:
        if isinstance(event, Asked):
            is_asked.set()

    with (
        site.listen() as server,
        site.connect(server, 0) as other,
        site.connect(server, 1, on_event=on_event) as client,
    ):
        for seconds in (0, 0.001):
            with pytest.raises(TimeoutError):
                client.next(timeout=seconds)
        pool.submit(site.answer_all, other, 0)
        with site.session(server) as session:
            total = pool.submit(site.ask, session)
            assert is_asked.wait(SECONDS)
            asked = client.next(timeout=0)
            with pytest.raises(TimeoutError):
                client.next(timeout=0)
            assert client.answer_with(asked, partial(site.world.values, 1, asked))
            site.check(total.result(SECONDS), session)


def test_an_error_of_a_callback_is_raised_by_the_next_call_as_it_is() -> None:
    def broken(event: object) -> None:
        raise KeyError("callback")

    site = Site()
    with (
        site.listen() as server,
        pytest.raises(KeyError, match="callback"),
        site.connect(server, 0, on_event=broken) as client,
    ):
        client.next()


def test_a_callback_must_not_wait_for_its_own_client() -> None:
    raised: list[Exception] = []

    def on_event(event: object) -> None:
        if isinstance(event, ServerConnected):
            ready.wait(SECONDS)
            try:
                clients[0].next(timeout=0)
            except Exception as error:
                raised.append(error)
            heard.set()

    ready, heard = threading.Event(), threading.Event()
    clients: list[BlockingClient] = []
    site = Site()
    with site.listen() as server, site.connect(server, 0, on_event=on_event) as client:
        clients.append(client)
        ready.set()
        assert heard.wait(SECONDS)
    assert [type(error) for error in raised] == [StateError]


def test_ctrl_c_ends_a_client() -> None:
    site = Site()
    ready = threading.Event()

    def on_event(event: object) -> None:
        if isinstance(event, ServerConnected):
            ready.wait(SECONDS)
            interrupt()

    def wait(client: BlockingClient) -> None:
        with client:
            ready.set()
            client.next()

    with site.listen() as server:
        client = site.connect(server, 0, on_event=on_event)
        with pytest.raises(KeyboardInterrupt):
            wait(client)
        with pytest.raises(Closed):
            client.next()


# --- servers ---


def test_a_session_that_too_few_clients_join_is_not_set_up() -> None:
    site = Site()
    with site.listen() as server, site.connect(server, 0):
        server.wait_for_clients(1)
        with pytest.raises(TooFewClients):
            site.session(server, expected=1, deadlines=Deadlines(join=0.1))
        with pytest.raises(TimeoutError):
            server.wait_for_clients(2, timeout=0)
        with pytest.raises(TimeoutError):
            server.wait_for_clients(1, barred=[0], timeout=0)


def test_a_server_has_one_session_at_a_time() -> None:
    site = Site()
    with site.listen() as server, site.connect(server, 0), site.connect(server, 1):
        with site.session(server), pytest.raises(StateError, match="one session"):
            site.session(server)
        site.session(server).close()


@pytest.mark.parametrize("what", ["session", "server"])
def test_a_sum_ends_when_another_thread_closes_its_session(what: str, pool: ThreadPoolExecutor) -> None:
    site = Site()
    with site.listen() as server, site.connect(server, 0) as client, site.connect(server, 1):
        session = site.session(server)
        total = pool.submit(site.ask, session)
        client.next(timeout=SECONDS)
        (session if what == "session" else server).close()
        assert isinstance(total.exception(SECONDS), Closed)
        with pytest.raises(Closed):
            site.ask(session)
    assert not site.world.diary.facts("excluded")


def test_an_interrupted_sum_is_abandoned_and_the_session_goes_on(pool: ThreadPoolExecutor) -> None:
    site = Site()

    def on_event(event: object) -> None:
        if isinstance(event, Asked) and not questions:
            questions.append(event)
            interrupt()

    questions: list[Asked] = []
    with (
        site.listen() as server,
        site.connect(server, 0, on_event=on_event) as first,
        site.connect(server, 1) as second,
        site.session(server) as session,
    ):
        with pytest.raises(KeyboardInterrupt):
            site.ask(session)
        for member, client in enumerate((first, second)):
            pool.submit(site.answer_all, client, member)
        site.check(site.ask(session), session)


# --- mistakes ---


def test_what_cannot_be_opened_says_so_at_once() -> None:
    site = Site()
    with site.listen() as server:
        with pytest.raises(ParameterError):
            site.connect(server, 0, context=None)
        with pytest.raises(OSError, match="in use"):
            listen(server.address, members={}, context=host_context(site.world))
    with pytest.raises(TypeError, match="colour"):
        listen(Address("127.0.0.1", 0), members={}, colour="red")  # type: ignore[call-arg]


def test_the_arguments_are_those_of_the_functions_for_trio() -> None:
    assert inspect.signature(connect).parameters == inspect.signature(open_client).parameters
    assert inspect.signature(connect).return_annotation == "BlockingClient"


def test_a_server_takes_up_other_members_and_certificates() -> None:
    site = Site(clients=3)
    with site.listen(members={0: site.world.registry.members[0]}) as server:
        server.renew(members=site.world.registry.members, context=host_context(site.world))
        with site.connect(server, 0), site.connect(server, 1):
            server.wait_for_clients(2, timeout=SECONDS)
            assert server.connected == (0, 1)


def test_a_client_is_offered_a_registry_and_a_key() -> None:
    site, authority, key = Site(clients=2), Identity.generate(), Identity.generate()
    tls = ClientTls(seeded_identity(SEED, 1), certificate(1), certificate(100))
    newer = Registry(1, {**site.world.registry.members, 1: key.public})
    with (
        site.listen() as server,
        site.connect(server, 1, context=tls, authority=authority.public) as client,
    ):
        client.offer_key(key, make_certificate(key, now=NOW))
        client.offer_registry(newer.sign(authority))
    (line,) = site.world.diaries[1].facts("registry adopted")
    assert "new key is listed" in str(line["own_key"])
