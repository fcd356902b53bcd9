"""Runs a server or client until it ends, gets a signal, or its registry expires; sets its limit of files."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeAlias

import trio

from secagg.errors import ParameterError, SecaggError
from secagg.identity_registry import NEVER_EXPIRES, Registry
from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.process_resources import raise_open_file_limit

Clock: TypeAlias = Callable[[], float]

_CLOCK_INTERVAL: Final = 60.0  # most seconds between two checks of the clock, which may be adjusted
_REPEAT_INTERVAL: Final = 600.0  # seconds between two reports of repeated events
_OWN: Final = 64  # open files besides connections: ledger, log, totals, libraries


def run_watched(
    work: Callable[[], Awaitable[None]], *, registry: Registry, log: EventLog, clock: Clock = time.time
) -> None:
    """Run `work` until it is done, or until SIGTERM or SIGINT. A second signal ends the process at once.
    Raise the errors of `work`, and `ExpiredRegistry` when the registry expires. `clock` returns Unix time."""
    try:
        trio.run(_watched, work, registry, log, clock)
    except BaseExceptionGroup as group:
        error = single_error(group)
        if isinstance(error, SecaggError):
            log.write("gave up", error=type(error).__name__, reason=str(error))
        raise error from None
    log.write("stopped")


async def _watched(
    work: Callable[[], Awaitable[None]], registry: Registry, log: EventLog, clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, nursery.cancel_scope, log)
        start_watching(nursery, registry, log, clock)
        await work()
        nursery.cancel_scope.cancel()


def start_watching(
    nursery: trio.Nursery, registry: Registry, log: EventLog, clock: Clock = time.time
) -> None:
    """Start tasks that raise `ExpiredRegistry` when the registry expires, and log repeated events."""
    nursery.start_soon(_stop_on_expiry, registry, clock)
    nursery.start_soon(_log_repeats, log)


async def _stop_on_signal(
    scope: trio.CancelScope, log: EventLog, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            log.write("stopping", signal=signal.Signals(number).name)
            scope.cancel()
            return


async def _stop_on_expiry(registry: Registry, clock: Clock) -> None:
    """Wait until the registry expires, if ever, then raise `ExpiredRegistry`, which cancels other tasks."""
    while registry.expires != NEVER_EXPIRES:
        registry.check_current(int(clock()))
        await trio.sleep(min(_CLOCK_INTERVAL, max(registry.expires - clock(), 0.0)))


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
