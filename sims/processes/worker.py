"""What a worker does, from the fork to its end.

Every worker is a copy of one process, so it first gets rid of what it must not share with the
others: the fork server's signal handlers and descriptors, and the state of random generators. What
draws from the operating system (`secrets`, `cryptography`, OpenSSL) does not need this.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import trio

from sims.processes import lifeline
from sims.processes.line import Line, LineClosed


@dataclass(frozen=True)
class Failure:
    """The last word of a worker that died of an exception."""

    text: str


def run(duty: bytes, sock: socket.socket, lifeline_end: int, parent: int) -> NoReturn:
    """Do the duty and end. No exception, handler or buffer of the fork server is reached from here."""
    code = 1
    try:
        _settle(lifeline_end, parent)
        code = _work(duty, Line(sock))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def describe(error: BaseException) -> str:
    """The types of an exception's leaves, and where they were raised; never what they say."""
    return ", ".join(dict.fromkeys(map(_describe_leaf, _leaves(error))))


def _settle(lifeline_end: int, parent: int) -> None:
    lifeline.signal_on_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    lifeline.hold(lifeline_end)
    sys.unraisablehook = _unraisable
    threading.excepthook = _thread_failed
    if "numpy.random" in sys.modules:  # Python's own generator is seeded anew by the fork.
        sys.modules["numpy.random"].seed()
    gc.enable()


def _work(duty: bytes, line: Line) -> int:
    """The exit code."""
    try:
        seat = line.get()
        _do(duty, seat, line)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if all(isinstance(leaf, LineClosed) for leaf in _leaves(error)):
            return 0  # The crew wants no more of this worker. That is how most of them end.
        with suppress(LineClosed):
            line.put(Failure(describe(error)))
        return 1
    return 0


def _do(pickled: bytes, seat: object, line: Line) -> None:
    duty = pickle.loads(pickled)  # noqa: S301  # a name that the crew wrote
    if inspect.iscoroutinefunction(duty):
        trio.run(duty, seat, line)
    else:
        duty(seat, line)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _describe_leaf(error: BaseException) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    name = type(error).__name__
    if place is None:
        return name
    return f"{name} at {os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}"


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    _complain(hook.exc_value)


def _thread_failed(hook: threading.ExceptHookArgs) -> None:
    _complain(hook.exc_value)


def _complain(error: BaseException | None) -> None:
    text = "an exception" if error is None else describe(error)
    print(f"worker {os.getpid()}: {text}, in a thread or finaliser", file=sys.stderr)
