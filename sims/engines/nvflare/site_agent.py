"""A client of deployed training in a site's process: it takes part in the runs whose letters arrive.

Keys, policy, ledger, terms and data are those of the site's own configuration. A job has no say in them: its
letters carry TLS records of its server, and nothing else. Nothing of a machine is kept when the process ends:
a restarted site joins the next session.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from secagg.errors import SERVER, Closed, SecaggError, StateError
from secagg.net.event_loop_thread import EventLoopThread
from secagg.net.tunnel_dialer import TunnelDialer
from secagg.net.tunnel_letters import parse_letter
from sims.deploy.client_setup import ClientSetup, load_client_setup
from sims.deploy.join import JoinRunner
from sims.deploy.log import event_log_of
from sims.deploy.process_control import single_error, start_watching
from sims.engines.nvflare.carrier import HOLD
from sims.process_resources import forbid_core_dumps

ENDED: Final = "ended"  # the run is over, and this site has its outcome
REFUSED: Final = "refused"  # this site does not take part
_QUIET: Final = 120.0  # seconds without a letter after which the server of a run is gone
_SHORT: Final = 1.0  # seconds in which a run that does not train is left


@dataclass(frozen=True)
class SiteOutcome:
    """How a run ended at a site. The server may learn `state` and `error`, the name of a class. `reason` is
    for the owner of the site: it may quote the site's files."""

    state: str
    error: str = ""
    reason: str = ""


@dataclass
class LetterBox:
    """Implements `NodeEngine`: others hand the letters to the dialer."""

    dialer: TunnelDialer

    async def run(self) -> None:
        await trio.sleep_forever()


class SiteRun:
    """A site's part in one job, in an event loop of its own. Several threads may call its methods."""

    def __init__(self, job: str, config: Callable[[], Path]) -> None:
        self.job = job
        self._config = config
        self._outcome: SiteOutcome | None = None
        self._over = threading.Event()
        self._loop = EventLoopThread(self._open, name=f"the client of job {job}")

    def answer(self, letter: bytes) -> bytes:
        """Return the reply to a letter. Raises `SecaggError` if there is none."""
        return self._loop.call(self._loop.value.answer, letter)

    def outcome(self, seconds: float) -> SiteOutcome | None:
        """Wait up to `seconds`. Return how the run ended, or None if it goes on."""
        self._over.wait(seconds)
        return self._outcome

    def close(self) -> None:
        """Leave the run, and wait until nothing of it runs any more."""
        self._loop.close()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[TunnelDialer]:
        dialer = TunnelDialer(hold=HOLD)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_part, LetterBox(dialer))
            yield dialer  # also after the end: the last packets are still to be carried
            nursery.cancel_scope.cancel()

    async def _take_part(self, engine: LetterBox) -> None:
        """Take part until the end, and keep how it ended. Letters are answered while the data are loaded."""
        try:
            path = self._config()
            setup = await trio.to_thread.run_sync(_load, path, abandon_on_cancel=True)
            await _join(setup, engine)
        except BaseException as error:
            cause = _cause(error)
            if cause is None:
                raise
            self._refuse(cause)
        else:
            self._outcome = SiteOutcome(ENDED)
        finally:
            self._over.set()

    def _refuse(self, error: BaseException) -> None:
        """Keep why this site leaves the run, also if it is an error of its own training code: others wait for
        the outcome. Only the log has the traceback of such an error."""
        self._outcome = SiteOutcome(REFUSED, type(error).__name__, str(error))
        unforeseen = None if isinstance(error, SecaggError) else error
        logging.getLogger(__name__).warning(
            "this site leaves job %s: %s: %s. Once it is corrected, restart the site: the job goes on",
            self.job,
            type(error).__name__,
            error,
            exc_info=unforeseen,
        )


def _cause(error: BaseException) -> BaseException | None:
    """Return the error because of which a run ends, or None if it is only cancelled."""
    if isinstance(error, trio.Cancelled):
        return None
    if not isinstance(error, BaseExceptionGroup):
        return error
    _, others = error.split(trio.Cancelled)
    found = None if others is None else single_error(others)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _load(path: Path) -> ClientSetup:
    forbid_core_dumps()  # they would contain keys
    return load_client_setup(path, through_engine=True)


async def _join(setup: ClientSetup, engine: LetterBox) -> None:
    section = setup.config.client
    with ExitStack() as stack:
        log = stack.enter_context(event_log_of(section))  # by default, that of NVFlare
        ledger = stack.enter_context(setup.open_ledger())
        if setup.training is not None:
            stack.callback(setup.training.close)
        runner = JoinRunner(setup, ledger, log, sessions=0, engine=engine)
        async with trio.open_nursery() as nursery:
            start_watching(nursery, lambda: runner.registry, log)
            await runner.run()
            nursery.cancel_scope.cancel()


class SiteAgent:
    """Takes part in the jobs of a site, one at a time: the ledger belongs to one. `config` returns the path
    of the site's configuration, which is read again for every job. `on_begin` is called with every job in
    which this site begins to take part. Several threads may call its methods."""

    def __init__(
        self,
        config: Callable[[], Path],
        clock: Callable[[], float] = time.monotonic,
        on_begin: Callable[[str], None] = lambda _job: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_begin = on_begin
        self._lock = threading.Lock()
        self._run: SiteRun | None = None
        self._leaving: threading.Thread | None = None  # ends with the last run that was left
        self._heard = 0.0  # when the last letter came
        self._ended = ""  # the last job that NVFlare has ended here
        self._is_closed = False

    def answer(self, job: str, letter: bytes) -> bytes:
        """Return the reply to a letter of `job`. The first letter of a job lets this site take part in it.
        Raises `SecaggError` if there is no reply, because another job is not over, or this one was left.
        Raises `MalformedMessage` if it is no letter; it then has no effect."""
        parse_letter(letter, sender=SERVER)
        run, begins = self._run_of(job)
        if begins:
            self._on_begin(job)
        return run.answer(letter)

    def outcome(self, job: str, seconds: float) -> SiteOutcome | None:
        """Wait up to `seconds`. Return how `job` ended here, or None if it goes on or has not begun."""
        run = self._run
        if run is None or run.job != job:
            self._run_pause(seconds)
            return None
        return run.outcome(seconds)

    def _run_pause(self, seconds: float) -> None:
        """Wait for a run to begin, so that a caller that asks again does not do so in a busy loop."""
        time.sleep(min(seconds, 1.0))

    def _run_of(self, job: str) -> tuple[SiteRun, bool]:
        """Return this site's part in a job, and whether it begins."""
        with self._lock:
            if self._is_closed:
                raise Closed("this site is about to stop")
            if self._run is not None and self._run.job != job:
                self._leave(self._run, job)
            if self._leaving is not None and self._leaving.is_alive():
                raise StateError(f"job {job} has to wait: this site still trains for the one before")
            self._heard = self._clock()
            if self._run is not None:
                return self._run, False
            self._run = SiteRun(job, self._config)
            return self._run, True

    def _leave(self, run: SiteRun, job: str) -> None:
        """Leave a run that is over, or whose server is gone, in favour of another job. If it still trains,
        that takes as long as its step, for which neither NVFlare's threads nor its events are to wait."""
        is_live = run.job != self._ended and self._clock() - self._heard < _QUIET
        if run.outcome(0) is None and is_live:
            raise StateError(f"job {job} has to wait: this site still takes part in job {run.job}")
        self._run = None
        self._leaving = threading.Thread(target=run.close, name=f"leaving job {run.job}", daemon=True)
        self._leaving.start()
        self._leaving.join(_SHORT)

    def end_job(self, job: str) -> None:
        """Let another job begin at once, even if letters of `job` still come: NVFlare has ended the site's
        process of `job`, or noticed that it is gone, which ends all of the job."""
        with self._lock:
            self._ended = job

    def close(self) -> None:
        """Leave the run, and take part in no other."""
        with self._lock:
            self._is_closed = True
            run, self._run = self._run, None
        if run is not None:
            run.close()
        if self._leaving is not None:
            self._leaving.join()
