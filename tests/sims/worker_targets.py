"""What the workers of the pools under test do, and a program that opens one and waits to be killed."""

from __future__ import annotations

import ctypes
import os
import random
import re
import resource
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import trio

from sims.workers import MessagePipe, PipeClosed, open_worker_pool
from sims.workers.process_lifetime_and_queries import signal_on_death_of_parent

SECRET = "the-input-of-a-client"


async def echo(config: object, pipe: MessagePipe) -> None:
    """Send back the config, then every message."""
    await pipe.send((config, os.getpid()))
    while True:
        await pipe.send(await pipe.receive())


def echo_without_loop(config: object, pipe: MessagePipe) -> None:
    pipe.send_sync((config, os.getpid()))
    while True:
        pipe.send_sync(pipe.receive_sync())


async def end_somehow(how: str, pipe: MessagePipe) -> None:
    """Say one thing, and then end in one of many ways."""
    await pipe.send(how)
    match how:
        case "return":
            return
        case "raise":
            raise ValueError(SECRET)
        case "raise in a task":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_raise)
        case "exit 3":
            sys.exit(3)
        case "exit at once":
            os._exit(4)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "wait":
            await pipe.receive()


async def _raise() -> None:
    raise KeyError(SECRET)


def say_farewell(config: object, pipe: MessagePipe) -> None:
    """Write a word to a file when the pool closes."""
    pipe.send_sync("here")
    try:
        pipe.receive_sync()
    except PipeClosed:
        time.sleep(0.1)  # It uses the time that it is given.
        Path(str(config)).write_text("farewell")


def be_stubborn(how: str, pipe: MessagePipe) -> None:
    """Ignore the pipe and every polite signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if how == "refuse to die with the parent":
        signal_on_death_of_parent(0)
    pipe.send_sync("here")
    match how:
        case "read":
            os.read(os.pipe()[0], 1)
        case "compute":  # one C call after the other
            while True:
                sum(range(10**5))
        case "hold the lock":  # a single C call, in which no other thread of the process ever runs
            re.match(r"(a+)+$", "a" * 60 + "b")
        case "babble":
            while True:
                pipe.send_sync(bytes(1 << 16))
    time.sleep(3600)


def list_descriptors(config: object, pipe: MessagePipe) -> None:
    """Say what this process has open, and how large a core file it may write."""
    listed = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself
            listed[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    pipe.send_sync((pipe.fileno(), listed, resource.getrlimit(resource.RLIMIT_CORE)[0]))
    pipe.receive_sync()


def draw(config: object, pipe: MessagePipe) -> None:
    """Draw from every generator there is."""
    import numpy as np

    pipe.send_sync((random.random(), secrets.token_hex(16), float(np.random.random())))


def write(config: object, pipe: MessagePipe) -> None:
    """Say what is to be read, print, and raise where nothing but a hook of Python's sees it."""
    pipe.send_sync(os.read(0, 1))
    print("on standard output")  # noqa: T201
    thread = threading.Thread(target=_fail)
    thread.start()
    thread.join()


def _fail() -> NoReturn:
    raise ValueError(SECRET)


def breed(config: object, pipe: MessagePipe) -> None:
    """Leave a process behind that has a copy of the pipe and ends by nothing but SIGKILL."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    pipe.send_sync(pid)


async def open_and_wait(*hows: str) -> None:
    """Open a pool of stubborn workers, name all processes, and wait for the end."""
    try:
        async with open_worker_pool(be_stubborn, hows, grace=0.1) as pool:
            for _ in hows:
                await anext(pool.events())
            _tell(pool.fork_server_pid, *pool.pids())
            await trio.sleep_forever()
    except KeyboardInterrupt:
        _tell("interrupted", pool.remaining_processes())


def _tell(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


if __name__ == "__main__":
    # A shell starts a program in the background with SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The target has to be a function of an importable module, and this one is executed.
    from tests.sims import worker_targets

    trio.run(worker_targets.open_and_wait, *sys.argv[1:])
