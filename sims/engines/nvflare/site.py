"""The part of a site that belongs to the site: a component of its parent process, in local/resources.json."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.defs import CellChannel, CellChannelTopic, JobFailureMsgKey, new_cell_message

from sims.config_problems import ConfigError
from sims.engines.nvflare.carrier import HOLD
from sims.engines.nvflare.cell_links import bound_links, check_links
from sims.engines.nvflare.cells import LETTER, OUTCOME, serve_requests
from sims.engines.nvflare.local_files import site_config
from sims.engines.nvflare.server_requests import bound_server, check_bounded
from sims.engines.nvflare.site_agent import SiteAgent, SiteOutcome
from sims.engines.versions import check_nvflare

_KILLED: Final = -9  # what NVFlare reports of a job process that was killed
_REPORT_SECONDS: Final = 5.0


class SecaggSite(FLComponent):  # type: ignore[misc]  # NVFlare has no types
    """Takes part in secure sums with the keys, policy, ledger and data of this site. It is created from the
    site's own file, has no arguments, and answers letters of any job, from the server's process of that job:
    the server at the other end of the TLS connection must be the one in the site's configuration, and its
    terms the site's."""

    def __init__(self) -> None:
        super().__init__()
        bound_links()
        bound_server()
        self._agent: SiteAgent | None = None
        self._engine: Any = None
        self._began = time.time()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._start(fl_ctx.get_engine())
        elif event_type == EventType.JOB_COMPLETED and self._agent is not None:
            self._agent.end_job(str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID)))
        elif event_type == EventType.SYSTEM_END and self._agent is not None:
            self._agent.close()

    def _start(self, engine: Any) -> None:
        site, workspace = engine.get_client_name(), Path(engine.args.workspace)
        self._engine = engine

        def config() -> Path:
            self._check()
            return site_config(site, workspace)

        try:
            self._check()
        except ConfigError as error:  # say at once what every job will say
            self.logger.error("this site takes part in no job: %s", error)
        agent = SiteAgent(config, on_begin=self._report_killed)
        self._agent = agent

        def outcome_of(job: str, _content: bytes) -> list[str] | None:
            outcome = agent.outcome(job, HOLD)
            return None if outcome is None else words_of(outcome)

        serve_requests(engine.get_cell(), {LETTER: agent.answer, OUTCOME: outcome_of})

    def _check(self) -> None:
        """Raise `ConfigError` if this site can take part in no job."""
        check_nvflare()
        check_bounded(self._engine.admin_agent)
        check_links(self._engine.admin_agent.cell.core_cell)

    def _report_killed(self, job: str) -> None:
        """Tell the server that the site's process of this job was killed, if the job is older than this one.
        NVFlare itself does so if only the job's process was killed. If all of the site was, the server would
        wait for this report until the end of the job, and then call the job a failure, although this site
        takes part again."""
        workspace = Workspace(self._engine.args.workspace, site_name=self._engine.get_client_name())
        deployed = Path(workspace.get_job_meta_path(job))
        if not deployed.exists() or deployed.stat().st_mtime >= self._began:
            return
        self.logger.info("job %s goes on at this site without a process of its own", job)
        content = {JobFailureMsgKey.JOB_ID: job, JobFailureMsgKey.CODE: _KILLED, JobFailureMsgKey.REASON: ""}
        self._engine.client.send_request_before_shutdown(
            target=FQCN.ROOT_SERVER,
            channel=CellChannel.SERVER_MAIN,
            topic=CellChannelTopic.REPORT_JOB_FAILURE,
            request=new_cell_message({}, content),
            timeout=_REPORT_SECONDS,
            optional=True,
        )


def words_of(outcome: SiteOutcome) -> list[str]:
    """Return what others may learn of an outcome. Its reason stays in this process and its log."""
    return [outcome.state, outcome.error]
