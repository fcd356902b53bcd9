"""A trio event loop in a thread of its own, for callers that do not run trio.

    with EventLoopThread(lambda: open_server(...), name="the server") as loop:
        loop.call(loop.value.wait_for_clients, 3)

An asynchronous context manager is open in the event loop (`OpenContext`). Meanwhile, other threads run
functions there (`call`). Calls that still wait are cancelled before it closes, so that nothing uses it any
more. Within it, another context manager can be open in the same way (`open_inner`): a session of a server.

**Errors.** What a called function raises is raised to its caller. If the context manager itself fails, the
calls that wait and all later ones raise the exception that caused this, without the groups of trio.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, NoReturn, Self, TypeVar

import trio

from secagg.errors import Closed, StateError

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
OpenFunction = Callable[[], AbstractAsyncContextManager[T]]


class OpenContext(Generic[T]):
    """An asynchronous context manager that is open in another thread's event loop; `value` is what it yields.
    All threads except the loop's own may use it, in the same process. `name` is its name in errors."""

    value: T

    def __init__(self, open_function: OpenFunction[T], *, name: str) -> None:
        self._open_function = open_function
        self._name = name
        self._token: trio.lowlevel.TrioToken | None = None  # of the event loop; None until this one begins
        self._loop_thread: threading.Thread | None = None
        self._process = os.getpid()  # a fork has no event loop that could answer
        self._nursery: trio.Nursery  # the calls
        self._accepts_calls = False
        self._closing = False
        self._close_requested = trio.Event()
        self._opening = trio.CancelScope()
        self._opened = threading.Event()  # or it is clear that it cannot be opened
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._failure_was_raised = False
        self._outer: OpenContext[Any] | None = None

    # --- for other threads ---

    def call(self, function: Callable[..., Awaitable[R]], *args: Any) -> R:
        """Run an async function in the event loop. Return its result, or raise its exception.

        Raises `Closed` if the context was closed, also while the call waits, or the exception that ended the
        context. If the caller is interrupted (`KeyboardInterrupt`), the function is cancelled.
        """
        self._check_thread()
        scope, future = trio.CancelScope(), Future[R]()
        try:
            if not self._soon(self._start_call, scope, future, function, args):
                future.cancel()
            return future.result()
        except CancelledError:
            self._raise_end()
        except BaseException:
            self._soon(scope.cancel)  # has no effect on a function that has ended
            raise

    def open_inner(self, open_function: OpenFunction[S], *, name: str) -> OpenContext[S]:
        """Open another context manager, which closes before this one. Raises what it raises, or as `call`."""
        self._check_thread()
        inner = OpenContext(open_function, name=name)
        inner._outer = self

        def start() -> None:
            if not self._soon(self._start_inner, inner):
                inner._end()

        inner._open_by(start)
        return inner

    def close(self) -> None:
        """Cancel all calls, close the context manager, and wait until it has ended. Raise the exception that
        ended it, unless a call has done so. To close it again has no effect."""
        self._check_thread()
        self._request_close()
        self._wait_for_end()
        if not self._failure_was_raised:
            self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close it. If the block has raised an exception, this one is raised, whatever `close` raises."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def _check_thread(self) -> None:
        if os.getpid() != self._process:
            raise StateError(f"{self._name} belongs to the process that opened it, and this is a fork of it")
        if threading.current_thread() is self._loop_thread:  # identifiers of threads are used again
            raise StateError(
                f"a callback in the event loop of {self._name} must not wait for it: use another thread"
            )

    def _soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Have the event loop call `function`. Return False if it has not begun or has ended."""
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def _request_close(self) -> None:
        self._closing = True  # read by a loop that has not begun
        self._soon(self._close_soon)

    def _open_by(self, start: Callable[[], object]) -> None:
        """Call `start`. Return when it is open, or raise why it is not. An interrupted caller closes it."""
        try:
            start()
            self._opened.wait()
        except BaseException:
            self._request_close()
            raise
        if not hasattr(self, "value"):
            self._raise_end()

    def _wait_for_end(self) -> None:
        self._ended.wait()

    def _raise_end(self) -> NoReturn:
        """Raise the exception that has ended or is ending this context, or `Closed`."""
        if not self._closing:
            self._wait_for_end()
            self._raise_failure()
            if self._outer is not None:
                self._outer._raise_end()
        raise Closed(f"{self._name} was closed")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._failure_was_raised = True
            raise self._failure

    # --- in the event loop ---

    async def run(self) -> None:
        """Open the context manager, keep it open until `close`, and close it. Raises nothing."""
        self._loop_thread = threading.current_thread()
        self._token = trio.lowlevel.current_trio_token()
        try:
            if not self._closing:
                await self._stay_open()
        except BaseException as error:
            self._failure = _first_cause(error)
        finally:
            self._end()

    async def _stay_open(self) -> None:
        with self._opening:
            async with self._open_function() as value, trio.open_nursery() as self._nursery:
                self.value = value
                self._accepts_calls = True
                self._opened.set()
                try:
                    await self._close_requested.wait()
                finally:
                    self._accepts_calls = False
                    self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        self._opened.set()
        self._ended.set()

    def _close_soon(self) -> None:
        self._close_requested.set()
        if not self._opened.is_set():
            self._opening.cancel()

    def _start_call(
        self,
        scope: trio.CancelScope,
        future: Future[R],
        function: Callable[..., Awaitable[R]],
        args: tuple[Any, ...],
    ) -> None:
        if self._accepts_calls:
            self._nursery.start_soon(_run_call, scope, future, function, args)
        else:
            future.cancel()

    def _start_inner(self, inner: OpenContext[Any]) -> None:
        if self._accepts_calls:
            self._nursery.start_soon(inner.run)
        else:
            inner._end()


async def _run_call(
    scope: trio.CancelScope,
    future: Future[R],
    function: Callable[..., Awaitable[R]],
    args: tuple[Any, ...],
) -> None:
    """Run a function and put its result or exception into `future`, which is cancelled if the function is."""
    try:
        with scope:
            future.set_result(await function(*args))
    except trio.Cancelled:
        raise
    except BaseException as error:
        future.set_exception(error)
    finally:
        future.cancel()  # has no effect on a future that has a result or an exception


def _first_cause(error: BaseException) -> BaseException | None:
    """Return the first exception in a group that is not a cancellation; None if all are."""
    if isinstance(error, BaseExceptionGroup):
        causes = map(_first_cause, error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None if isinstance(error, trio.Cancelled) else error


class EventLoopThread(OpenContext[T]):
    """Opens an asynchronous context manager in the event loop of a new thread. Raises why it does not open.

    The thread is a daemon: it does not keep a program alive that ends without `close`.
    """

    def __init__(self, open_function: OpenFunction[T], *, name: str) -> None:
        super().__init__(open_function, name=name)
        self._thread = threading.Thread(target=self._run_loop, name=f"event loop of {name}", daemon=True)
        self._open_by(self._thread.start)

    def _run_loop(self) -> None:
        try:
            trio.run(self.run)
        except BaseException as error:  # trio itself has failed
            self._failure = error
        finally:
            self._end()

    def _wait_for_end(self) -> None:
        self._thread.join()
