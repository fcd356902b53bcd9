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
files that the job has brought from it. So a site takes no job with two names.

NVFlare unpacks a job first, and asks then whether its submitter may bring Python files. If the job is not
signed, the server says who that is: the role "super" may do everything, and if a role is no text, the files
stay. So a site unpacks no job with such files, whoever has submitted it, and none that it has already: a
process of it may run. And it starts no job while it unpacks one.

In the parent process, another cell could also fire NVFlare's events, with a request for components
(`aux_communication`). Only the server may.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_engine import ClientEngine

from sims.config_problems import ConfigError, shown
from sims.engines.nvflare.job_files import wrong_files

_JOB: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID
_SUBMITTER: Final = (JobMetaKey.SUBMITTER_NAME, JobMetaKey.SUBMITTER_ORG, JobMetaKey.SUBMITTER_ROLE)
_EVERYTHING: Final = "super"  # a role of NVFlare's own tests, which has every right
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
            return _refused(wrong)
        turn: AbstractContextManager[Any] = _turn if req.topic in _IN_TURN else nullcontext()
        with turn:
            wrong = _wrong_deployment(req, app_ctx) if req.topic == TrainingTopic.DEPLOY else None
            return self._processor.process(req, app_ctx) if wrong is None else _refused(wrong)


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


def _wrong_deployment(req: Message, engine: Any) -> str | None:
    """Return what is wrong with a job that is to be unpacked, or None."""
    job, about = req.get_header(RequestHeader.JOB_ID), req.get_header(RequestHeader.JOB_META)
    if job is None or about is None:
        return "a job to be deployed has a name and metadata"
    submitter = [about.get(key.value) for key in _SUBMITTER]
    if not all(type(each) is str for each in submitter):
        return "the name, organisation and role of a submitter are texts"
    if " ".join(submitter[-1].lower().split()) == _EVERYTHING:  # as NVFlare reads it
        return f"no submitter may have the role {_EVERYTHING}"
    workspace = Workspace(engine.args.workspace, site_name=engine.get_client_name())
    if job in engine.get_all_job_ids() or Path(workspace.get_run_dir(job)).exists():
        return f"job {job} has been deployed already"
    return wrong_files(req.body)


def _refused(why: str) -> Message:
    logging.getLogger(__name__).warning("refused: %s", why)
    return error_reply(why)


def bound_server() -> None:
    """Bound what the server and others may ask of this process, from its first request on. So this has to be
    called before NVFlare makes the agent that answers the server."""
    if FedAdminAgent.register_processor is not _register:
        FedAdminAgent.register_processor = _register
    if FedAdminAgent._dispatch_request is not _dispatch:
        FedAdminAgent._dispatch_request = _dispatch
    if ClientEngine._handle_aux_message is not _answer_component:
        ClientEngine._handle_aux_message = _answer_component


def check_bounded(agent: FedAdminAgent) -> None:
    """Raise `ConfigError` if others may ask more of `agent`, or if its cell calls anything else."""
    topics = agent.processors
    if SysCommandTopic.SHELL in topics or not all(isinstance(each, JobRequests) for each in topics.values()):
        raise ConfigError(f"NVFlare's server could read files of this site: {_REMEDY}")
    if not _calls_only(agent, CellChannel.CLIENT_MAIN, _dispatch):
        raise ConfigError(f"other sites of NVFlare could end this one, and delete its jobs: {_REMEDY}")
    if not _calls_only(agent, CellChannel.AUX_COMMUNICATION, _answer_component):
        raise ConfigError(f"other sites of NVFlare could fire events in this one: {_REMEDY}")


def _calls_only(agent: FedAdminAgent, channel: str, function: Any) -> bool:
    """Return whether the agent's cell calls `function` for all requests of a channel. A callback for a topic
    has precedence over that for all topics."""
    registered = agent.cell.core_cell.req_reg.reg
    found = [each.cb for place, each in registered.items() if place.startswith(f"{channel}:")]
    return f"{channel}:*" in registered and all(getattr(each, "__func__", None) is function for each in found)


_REMEDY: Final = (
    "list SecaggSite in the components of resources.json, and nothing else that makes or changes an agent of "
    "NVFlare"
)
_register_any: Final = FedAdminAgent.register_processor
_dispatch_any: Final = FedAdminAgent._dispatch_request
_answer_any: Final = ClientEngine._handle_aux_message


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


def _answer_component(engine: ClientEngine, request: Any) -> Any:
    """Answer a request to a component of the parent process, if it comes from the server."""
    origin = request.get_header(MessageHeaderKey.ORIGIN)
    if origin == FQCN.ROOT_SERVER:
        return _answer_any(engine, request)
    logging.getLogger(__name__).warning("refused: the cell %s may fire no events here", shown(origin))
    return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST}, None)


def _is_own_report(agent: FedAdminAgent, origin: object, req: object) -> bool:
    """Return whether a process of this site tells how far its own job is."""
    if not isinstance(req, Message) or req.topic != TrainingTopic.NOTIFY_JOB_STATUS:
        return False
    job = req.get_header(RequestHeader.JOB_ID)
    return isinstance(job, str) and origin == FQCN.join([agent.cell.get_fqcn(), job])
