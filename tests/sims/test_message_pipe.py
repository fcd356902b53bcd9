"""A pipe keeps messages whole, whatever interrupts it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from sims.workers import MessagePipe, PipeClosed
from sims.workers import message_pipe as pipe_module


@pytest.fixture
def ends() -> Iterator[tuple[MessagePipe, MessagePipe]]:
    near, far = map(MessagePipe, socket.socketpair())
    yield near, far
    near.close()
    far.close()


def test_cancelled_send_does_not_break_a_message(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, far = ends
    large = bytes(1 << 22)  # more than any socket holds

    async def main() -> None:
        with trio.move_on_after(0.01) as scope:
            await near.send(large)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send, "next")
            assert await far.receive() == large
            assert await far.receive() == "next"

    trio.run(main)


def test_cancelled_receive_loses_nothing(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, far = ends

    async def main() -> None:
        large = bytes(1 << 22)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send, large)
            for _ in range(3):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await far.receive()
            assert await far.receive() == large

    trio.run(main)


def test_tasks_and_threads_share_a_pipe(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, far = ends
    texts = [letter * (1 << 19) for letter in "abcd"]
    threads = [threading.Thread(target=near.send_sync, args=(text,)) for text in texts[:2]]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for thread in threads:
                thread.start()
            for text in texts[2:]:
                nursery.start_soon(near.send, text)
            assert {await far.receive() for _ in range(2)} | {
                await trio.to_thread.run_sync(far.receive_sync) for _ in range(2)
            } == set(texts)

    trio.run(main)
    for thread in threads:
        thread.join()


def test_closed_pipe_says_so_at_both_ends(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, far = ends
    far.send_sync("last")
    far.send_sync("never read")
    assert near.receive_sync() == "last"
    near.close()
    for closed in (near, far):
        with pytest.raises(PipeClosed):
            closed.receive_sync()
        with pytest.raises(PipeClosed):
            closed.send_sync("more")


def test_waiting_tasks_hear_that_their_own_end_is_closed(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, _ = ends

    async def refused(call: str, *arguments: object) -> None:
        with pytest.raises(PipeClosed):
            await getattr(near, call)(*arguments)

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused, "receive")
                nursery.start_soon(refused, "send", bytes(1 << 22))
                await trio.testing.wait_all_tasks_blocked()
                near.close()

    trio.run(main)


def test_dead_peer_is_not_waited_for_although_its_end_lives_on(ends: tuple[MessagePipe, MessagePipe]) -> None:
    near, far = ends
    far.send_sync("last")

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused_send)
                await trio.testing.wait_all_tasks_blocked()
                near.mark_peer_dead()
            assert await near.receive() == "last"
            with pytest.raises(PipeClosed):
                await near.receive()

    async def refused_send() -> None:
        with pytest.raises(PipeClosed):
            await near.send(bytes(1 << 22))

    trio.run(main)


def test_message_that_is_too_large_is_refused(
    ends: tuple[MessagePipe, MessagePipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_module, "LARGEST", 100)
    near, far = ends
    with pytest.raises(ValueError, match="too large"):
        near.send_sync(bytes(101))
    near.send_sync("small")
    assert far.receive_sync() == "small"
