"""What NVFlare's server may ask of a site's parent process: less than NVFlare lets it.

NVFlare leaves three checks to its server. The server says in a request whether the site's policy is to be
asked at all. It checks the paths of the commands that show files (`cat` and others), which the site then
executes. And it names a job; the name becomes a directory of the site's workspace, which is emptied before
the job is deployed, and deleted after it. A server that lies could read the site's key, and delete its
ledger. So a site executes no such command, whoever asks, and takes only jobs with names of NVFlare's form.
"""

from __future__ import annotations

import re
from typing import Any, Final

from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor

from sims.config_problems import ConfigError, shown

_JOB: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID


class JobRequests(RequestProcessor):  # type: ignore[misc]  # NVFlare has no types
    """Hands requests on to a processor of NVFlare, unless they name a job as NVFlare does not."""

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    def get_topics(self) -> list[str]:
        return list(self._processor.get_topics())

    def process(self, req: Message, app_ctx: Any) -> Message:
        job = req.get_header(RequestHeader.JOB_ID)
        if job is not None and not (isinstance(job, str) and _JOB.fullmatch(job)):
            return error_reply(f"{shown(job)} is no name of a job")
        return self._processor.process(req, app_ctx)


def bound_server() -> None:
    """Bound what the server may ask of this process, from its first request on. So this has to be called
    before NVFlare makes the agent that answers the server."""
    if FedAdminAgent.register_processor is not _register:
        FedAdminAgent.register_processor = _register


def check_bounded(agent: FedAdminAgent) -> None:
    """Raise `ConfigError` if the server may ask more of `agent`."""
    topics = agent.processors
    if SysCommandTopic.SHELL in topics or not all(isinstance(each, JobRequests) for each in topics.values()):
        raise ConfigError(
            "NVFlare's server could read files of this site: list SecaggSite in the components of "
            "resources.json, and nothing else that makes or changes an agent of NVFlare"
        )


_register_any: Final = FedAdminAgent.register_processor


def _register(agent: FedAdminAgent, processor: RequestProcessor) -> None:
    if SysCommandTopic.SHELL not in processor.get_topics():
        _register_any(agent, JobRequests(processor))
