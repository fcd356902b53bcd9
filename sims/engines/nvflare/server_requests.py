"""What others may ask of a site's parent process: less than NVFlare lets them.

NVFlare does not look at who has sent a request to a site: another site could end it, or delete its jobs. So a
site takes requests from the cell of the server only, and lets its own processes of jobs say how far they are.

NVFlare leaves three checks to its server. The server says in a request whether the site's policy is to be
asked at all. It checks the paths of the commands that show files (`cat` and others), which the site then
executes. And it names a job; the name becomes a directory of the site's workspace, which is emptied before
the job is deployed, and deleted after it. The site refuses paths as names, but not the plain name of another
directory, such as `local`. A server that lies could read the site's key, and delete its ledger. So a site
executes no such command, whoever asks, and takes only jobs with names of NVFlare's form.

A job has a second name, in what the server says about it. NVFlare's launcher makes the path of the Python
files that the job has brought from it. So a site takes no job with two names. And it starts none while it
unpacks one, because NVFlare checks only after that whether the job may bring files. A process that runs
already is not kept from these: the server could deploy its job again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor

from sims.config_problems import ConfigError, shown

_JOB: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID
_IN_TURN: Final = (TrainingTopic.DEPLOY, TrainingTopic.START_JOB)
_turn: Final = threading.Lock()


class JobRequests(RequestProcessor):  # type: ignore[misc]  # NVFlare has no types
    """Hands requests on to a processor of NVFlare, unless they name a job as NVFlare does not."""

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    def get_topics(self) -> list[str]:
        return list(self._processor.get_topics())

    def process(self, req: Message, app_ctx: Any) -> Message:
        wrong = _wrong_name(req)
        if wrong is not None:
            return error_reply(wrong)
        turn: AbstractContextManager[Any] = _turn if req.topic in _IN_TURN else nullcontext()
        with turn:
            return self._processor.process(req, app_ctx)


def _wrong_name(req: Message) -> str | None:
    """Return what is wrong with the names of the job that a request is about, or None."""
    job, about = req.get_header(RequestHeader.JOB_ID), req.get_header(RequestHeader.JOB_META)
    if job is not None and not (isinstance(job, str) and _JOB.fullmatch(job)):
        return f"{shown(job)} is no name of a job"
    if about is None:
        return None
    second = about.get(JobMetaKey.JOB_ID.value) if isinstance(about, Mapping) else None
    if type(second) is str and second == job:
        return None
    return f"the job has two names: {shown(job)} and {shown(second)}"


def bound_server() -> None:
    """Bound what the server and others may ask of this process, from its first request on. So this has to be
    called before NVFlare makes the agent that answers the server."""
    if FedAdminAgent.register_processor is not _register:
        FedAdminAgent.register_processor = _register
    if FedAdminAgent._dispatch_request is not _dispatch:
        FedAdminAgent._dispatch_request = _dispatch


def check_bounded(agent: FedAdminAgent) -> None:
    """Raise `ConfigError` if others may ask more of `agent`."""
    topics = agent.processors
    if SysCommandTopic.SHELL in topics or not all(isinstance(each, JobRequests) for each in topics.values()):
        raise ConfigError(f"NVFlare's server could read files of this site: {_REMEDY}")
    if getattr(agent._dispatch_request, "__func__", None) is not _dispatch:
        raise ConfigError(f"other sites of NVFlare could end this one, and delete its jobs: {_REMEDY}")


_REMEDY: Final = (
    "list SecaggSite in the components of resources.json, and nothing else that makes or changes an agent of "
    "NVFlare"
)
_register_any: Final = FedAdminAgent.register_processor
_dispatch_any: Final = FedAdminAgent._dispatch_request


def _register(agent: FedAdminAgent, processor: RequestProcessor) -> None:
    if SysCommandTopic.SHELL not in processor.get_topics():
        _register_any(agent, JobRequests(processor))


def _dispatch(agent: FedAdminAgent, request: Any) -> Any:
    """Answer a request, unless it comes from a cell that has nothing to ask of this site."""
    origin = request.get_header(MessageHeaderKey.ORIGIN)
    if origin == FQCN.ROOT_SERVER or _is_own_report(agent, origin, request.payload):
        return _dispatch_any(agent, request)
    refusal = f"the cell {shown(origin)} may not ask this of a site"
    logging.getLogger(__name__).warning("refused: %s", refusal)
    return new_cell_message({}, error_reply(refusal))


def _is_own_report(agent: FedAdminAgent, origin: object, req: object) -> bool:
    """Return whether a process of this site tells how far its own job is."""
    if not isinstance(req, Message) or req.topic != TrainingTopic.NOTIFY_JOB_STATUS:
        return False
    job = req.get_header(RequestHeader.JOB_ID)
    return isinstance(job, str) and origin == FQCN.join([agent.cell.get_fqcn(), job])
