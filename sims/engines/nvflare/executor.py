"""The site's side of a job. It holds nothing of the site's: what matters is in the site's parent process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from sims.config_problems import ConfigError
from sims.engines.nvflare.carrier import HOLD
from sims.engines.nvflare.cells import LETTER, OUTCOME, ask, serve_requests
from sims.engines.nvflare.controller import ERROR, STATE, TASK
from sims.engines.nvflare.local_files import site_config
from sims.engines.nvflare.site_agent import ENDED, REFUSED, SiteAgent, SiteOutcome
from sims.engines.versions import check_nvflare

_STOPPED: Final = "stopped"
_NOT_INSTALLED: Final = SiteOutcome(
    REFUSED,
    "NotInstalled",
    "SecaggSite does not answer: add it to local/resources.json of this site, and restart the site",
)
_LOGGED: Final = "the log of this site's parent process says why"
_TRIES: Final = 3  # requests without an answer after which the parent process has no `SecaggSite`
_GLANCE: Final = 0.5  # seconds between two looks at whether the job was aborted


class SecaggExecutor(Executor):  # type: ignore[misc]  # NVFlare has no types
    """Waits until the run of a job has ended at this site, and says how. It has no arguments: a job cannot
    change with what a site takes part."""

    def __init__(self) -> None:
        super().__init__()
        self._agent: SiteAgent | None = None  # in a simulation

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN and self._agent is not None:
            self._agent.close()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        outcome = self._outcome(fl_ctx, abort_signal)
        if outcome.reason:
            # Not with `log_error`: NVFlare sends errors to the server, and the reason is for this site only.
            self.logger.warning("%s: %s: %s", outcome.state, outcome.error, outcome.reason)
        reply = make_reply(ReturnCode.OK)
        reply[STATE], reply[ERROR] = outcome.state, outcome.error
        return reply

    def _outcome(self, fl_ctx: FLContext, abort_signal: Signal) -> SiteOutcome:
        try:
            check_nvflare()
        except ConfigError as error:
            return SiteOutcome(REFUSED, type(error).__name__, str(error))
        if fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False):
            return self._take_part(fl_ctx, abort_signal)
        return self._wait_for_parent(fl_ctx, abort_signal)

    def _wait_for_parent(self, fl_ctx: FLContext, abort_signal: Signal) -> SiteOutcome:
        """Ask the parent process of this site until it says how the run has ended."""
        cell, site, job = fl_ctx.get_engine().get_cell(), fl_ctx.get_identity_name(), str(fl_ctx.get_job_id())
        failures = 0
        while not abort_signal.triggered:
            is_answered, words = ask(cell, site, OUTCOME, None, job=job, seconds=2 * HOLD)
            failures = 0 if is_answered else failures + 1
            if is_answered and words is not None:
                return _outcome_of(words)
            if failures == _TRIES:
                return _NOT_INSTALLED
        return SiteOutcome(_STOPPED)

    def _take_part(self, fl_ctx: FLContext, abort_signal: Signal) -> SiteOutcome:
        """Do here what the parent process does in a deployment."""
        engine, site, job = fl_ctx.get_engine(), fl_ctx.get_identity_name(), str(fl_ctx.get_job_id())
        agent = SiteAgent(lambda: site_config(site, Path(engine.get_workspace().get_root_dir())))
        self._agent = agent  # answers also after the run: the last packets are still to be carried
        serve_requests(engine.get_cell(), {LETTER: agent.answer}, simulated=True)
        while not abort_signal.triggered:
            outcome = agent.outcome(job, _GLANCE)
            if outcome is not None:
                return outcome
        return SiteOutcome(_STOPPED)


def _outcome_of(words: Any) -> SiteOutcome:
    """Return the outcome that the parent process has told. What is no outcome is a refusal: it would be the
    same if asked again."""
    match words:
        case [str(state), str(error)] if state in (ENDED, REFUSED):
            return SiteOutcome(state, error, _LOGGED if state == REFUSED else "")
    return SiteOutcome(REFUSED, "WrongAnswer", "restart this site: its parent process is of another version")
