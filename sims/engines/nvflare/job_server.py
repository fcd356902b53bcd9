"""The training server of a job, in a thread of the job's process: that of `secagg serve`, over a tunnel."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from protocols.run import RoundReport
from secagg.net.event_log import EventLog
from secagg.net.tunnel import Carrier
from sims.deploy.finished_run import FinishedRun
from sims.deploy.log import event_log_of
from sims.deploy.process_control import single_error, start_watching
from sims.deploy.renewal import LiveServerCredentials
from sims.deploy.training_server import load_deployment, open_server_run
from sims.process_resources import forbid_core_dumps
from sims.records.run_file_names import METRICS_TABLE, MODEL, NAMED_MODEL, REPORT

_GLANCE: Final = 0.2  # seconds between two looks at whether the job was aborted
_RESULTS: Final = (MODEL, NAMED_MODEL, METRICS_TABLE, REPORT)  # nothing of it is secret to who submits jobs


def serve_job(
    path: Path,
    carrier_for: Callable[[Collection[int]], Carrier],
    *,
    is_aborted: Callable[[], bool],
    on_round: Callable[[RoundReport], None],
    results: Path,
) -> bool:
    """Train the model of the scenario at `path` until its last round, and copy the results to the directory
    `results`. `carrier_for` returns what carries the connections of the members of the registry. Return False
    if the job was aborted: the run goes on when a job names the same scenario again. Raise a `SecaggError` if
    the operator of the server has to repair something."""
    forbid_core_dumps()
    section, terms, credentials = load_deployment(path)
    carrier = carrier_for(credentials.registry.members)
    with ExitStack() as stack:
        log = stack.enter_context(event_log_of(section))  # by default, that of NVFlare
        opened = open_server_run(section, terms, credentials, log, on_round, carrier)
        server = stack.enter_context(opened)
        try:
            is_over = trio.run(_serve_until, server, credentials, log, is_aborted)
        except BaseExceptionGroup as group:
            raise single_error(group) from None
    if is_over:
        _copy_results(section.run, results)
    return is_over


async def _serve_until(
    server: FinishedRun, credentials: LiveServerCredentials, log: EventLog, is_aborted: Callable[[], bool]
) -> bool:
    """Serve until the end of the run, and return True; or until the job is aborted, and return False."""
    async with trio.open_nursery() as nursery:
        start_watching(nursery, lambda: credentials.registry, log)
        nursery.start_soon(_cancel_when, is_aborted, nursery.cancel_scope)
        await server.run()
        nursery.cancel_scope.cancel()
    return server.outcome is not None


async def _cancel_when(is_aborted: Callable[[], bool], scope: trio.CancelScope) -> None:
    while not is_aborted():  # noqa: ASYNC110  (a flag of NVFlare, which trio cannot await)
        await trio.sleep(_GLANCE)
    scope.cancel()


def _copy_results(run: Path, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    for name in _RESULTS:
        if (run / name).exists():
            shutil.copyfile(run / name, results / name)
