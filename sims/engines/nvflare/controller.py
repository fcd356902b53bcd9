"""The server's side of a job."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from protocols.run import RoundReport
from secagg.errors import SecaggError
from sims.engines.nvflare.carrier import CellCarrier, sites_of
from sims.engines.nvflare.job_server import serve_job
from sims.engines.nvflare.local_files import DEFAULT_SCENARIO, server_config
from sims.engines.versions import check_nvflare

TASK: Final = "secagg"  # lasts as long as the run does at a site
STATE: Final = "secagg_state"  # in the result of a task: how the run ended at a site
ERROR: Final = "secagg_error"  # the name of an error class, if the site refused
_WORD: Final = re.compile(r"[0-9A-Za-z_]{0,64}")  # what a site may add to the log
_RESULTS: Final = "secagg"  # the directory in a job's results


class SecaggController(Controller):  # type: ignore[misc]  # NVFlare has no types
    """Trains the model of a scenario with the sites, round after round, and learns sums only.

    `scenario` names a file in the server's directory `local`, without ".toml", with a table [deploy]. The job
    names it and cannot change it: keys, registry and terms belong to the operator of the server, and each
    site compares the terms with its own copy.
    """

    def __init__(self, scenario: str = DEFAULT_SCENARIO) -> None:
        super().__init__()
        self.scenario = scenario

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self.cancel_all_tasks()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Train until the last round. If something is to be repaired, the job fails, and its log says why."""
        try:
            check_nvflare()
            self._train(abort_signal, fl_ctx)
        except SecaggError as error:
            self.system_panic(f"{type(error).__name__}: {error}", fl_ctx)

    def _train(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        engine, job = fl_ctx.get_engine(), str(fl_ctx.get_job_id())
        workspace = engine.get_workspace()
        task = Task(name=TASK, data=Shareable(), result_received_cb=self._log_result)
        self.broadcast(task, fl_ctx, min_responses=0)
        is_over = serve_job(
            server_config(self.scenario, Path(workspace.get_root_dir())),
            lambda members: _carrier(engine, fl_ctx, members),
            is_aborted=lambda: bool(abort_signal.triggered),
            on_round=lambda report: self._log_round(report, fl_ctx),
            results=Path(workspace.get_result_root(job)) / _RESULTS,
        )
        self.log_info(fl_ctx, "the run is over" if is_over else "the job was aborted before the last round")

    def _log_round(self, report: RoundReport, fl_ctx: FLContext) -> None:
        failure = "" if report.completed else f", which failed: {report.failure}"
        self.log_info(fl_ctx, f"round {report.number} with {report.clients} sites{failure}")

    def _log_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, site = client_task.result, client_task.client.name
        words = [result.get(key, "") for key in (STATE, ERROR)]
        if not all(isinstance(each, str) and _WORD.fullmatch(each) for each in words) or not words[0]:
            words = ["does not say how it ended"]
        self.log_info(fl_ctx, " ".join([site, *words]).rstrip())

    def process_result_of_unknown_task(
        self,
        client: Any,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """A task that a site has left after the end of the run."""


def _carrier(engine: Any, fl_ctx: FLContext, members: Collection[int]) -> CellCarrier:
    """Return what carries letters to the sites of `members`: to their parent processes, or in a simulation,
    which has none, to their job processes."""
    known, job = [client.name for client in engine.get_clients()], str(fl_ctx.get_job_id())
    is_simulated = job == SimulatorConstants.JOB_NAME  # other jobs have a random name

    def cell_of(site: str) -> str:
        return str(FQCN.join([site, job])) if is_simulated else site

    return CellCarrier(engine.get_cell(), job, sites_of(members, known), cell_of)
