"""Runs a server or client until it ends or gets a signal; sets its limit of files."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeAlias

import trio

from secagg.errors import ExpiredRegistry, ParameterError, SecaggError
from secagg.identity_registry import Registry
from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.process_resources import raise_open_file_limit

Clock: TypeAlias = Callable[[], float]

_CLOCK_INTERVAL: Final = 5.0  # seconds between two looks at the clock
_REPEAT_INTERVAL: Final = 600.0  # seconds between two reports of repeated events
_OWN: Final = 64  # open files besides connections: ledger, log, totals, libraries


def run_watched(
    work: Callable[[], Awaitable[None]],
    *,
    registry: Callable[[], Registry],
    log: EventLog,
    on_hangup: Callable[[], None] = lambda: None,
    clock: Clock = time.time,
) -> None:
    """Run `work` until it is done, or until SIGTERM or SIGINT. A second signal ends the process at once. On
    SIGHUP, call `on_hangup`. Raise the errors of `work`. The log says when the registry in force, which
    `registry` returns, has expired, and when another one is there. `clock` returns Unix time."""
    try:
        trio.run(_watched, work, registry, log, on_hangup, clock)
    except BaseExceptionGroup as group:
        error = single_error(group)
        if isinstance(error, SecaggError):
            log.write("gave up", error=type(error).__name__, reason=str(error))
        raise error from None
    log.write("stopped")


async def _watched(
    work: Callable[[], Awaitable[None]],
    registry: Callable[[], Registry],
    log: EventLog,
    on_hangup: Callable[[], None],
    clock: Clock,
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_take_signals, nursery.cancel_scope, log, on_hangup)
        start_watching(nursery, registry, log, clock)
        await work()
        nursery.cancel_scope.cancel()


def start_watching(
    nursery: trio.Nursery, registry: Callable[[], Registry], log: EventLog, clock: Clock = time.time
) -> None:
    """Start tasks that log the expiry of the registry in force, and repeated events."""
    nursery.start_soon(_log_expiry, registry, log, clock)
    nursery.start_soon(_log_repeats, log)


async def _take_signals(
    scope: trio.CancelScope,
    log: EventLog,
    on_hangup: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP:
                on_hangup()
                continue
            log.write("stopping", signal=signal.Signals(number).name)
            scope.cancel()
            return


async def _log_expiry(registry: Callable[[], Registry], log: EventLog, clock: Clock) -> None:
    """Log once that a registry has expired; log the version that takes its place."""
    expired: int | None = None
    while True:
        found = registry()
        try:
            found.check_current(int(clock()))
        except ExpiredRegistry as error:
            if expired != found.version:
                log.write("expired", registry=found.version, reason=str(error))
            expired = found.version
        else:
            if expired is not None:
                log.write("registry in force", registry=found.version)
            expired = None
        await trio.sleep(_CLOCK_INTERVAL)


async def _log_repeats(log: EventLog) -> None:
    while True:
        await trio.sleep(_REPEAT_INTERVAL)
        log.write_repetitions()


def single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception to raise for `group`: a `KeyboardInterrupt` if there is one, else the first error
    if all are `SecaggError`s, else the group itself."""
    leaves = list(_leaves(group))
    interrupts = [leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)]
    if interrupts:
        return interrupts[0]
    return leaves[0] if all(isinstance(leaf, SecaggError) for leaf in leaves) else group


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def allow_connections(most: int) -> None:
    """Increase the limit of open files for `most` connections. Raise `ConfigError` if this is forbidden."""
    try:
        raise_open_file_limit(most + _OWN)
    except ParameterError as error:
        raise ConfigError(str(error)) from None
