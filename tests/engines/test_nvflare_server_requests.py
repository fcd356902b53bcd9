"""What NVFlare's server may ask of a site's parent process."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.private.admin_defs import Message, MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminCode
from nvflare.private.defs import RequestHeader, SysCommandTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from sims.config_problems import ConfigError
from sims.engines.nvflare.cells import OUTCOME, ask
from sims.engines.nvflare.server_requests import JobRequests, bound_server, check_bounded
from tests.engines.nvflare_cells import FakeCells
from tests.engines.nvflare_rig import JOB, FakeSite, make_workspace, send_letter

pytestmark = pytest.mark.usefixtures("nvflare_process")


class Recorder(RequestProcessor):  # type: ignore[misc]  # NVFlare has no types
    """Keeps the requests that it gets."""

    def __init__(self, *topics: str) -> None:
        self.topics = list(topics)
        self.requests: list[Message] = []

    def get_topics(self) -> list[str]:
        return self.topics

    def process(self, req: Message, app_ctx: Any) -> Message:
        self.requests.append(req)
        return Message("reply", "done")


@pytest.fixture
def agent() -> FedAdminAgent:
    """An agent of NVFlare without a cell."""
    made = FedAdminAgent.__new__(FedAdminAgent)
    made.processors, made.auditor = {}, None
    made.app_ctx = SimpleNamespace(new_context=lambda: nullcontext(SimpleNamespace()))
    return made


@pytest.fixture
def _bounded(nvflare_process: None) -> None:
    bound_server()


def asked(agent: FedAdminAgent, topic: str, **headers: Any) -> str:
    """Ask an agent as NVFlare's server does. Return the code of the reply."""
    request = Message(topic, "cat local/site.key")
    for name, value in headers.items():
        request.set_header(getattr(RequestHeader, name), value)
    reply = agent._dispatch_request(new_cell_message({}, request)).payload
    return str(reply.get_header(MsgHeader.RETURN_CODE, AdminCode.OK))


@pytest.mark.usefixtures("_bounded")
def test_a_site_executes_no_command_on_its_files_whoever_asks(agent: FedAdminAgent) -> None:
    """Also if the request says that the site's policy is not to be asked."""
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)
    check_bounded(agent)
    assert asked(agent, SysCommandTopic.SHELL) == AdminCode.ERROR
    assert len(agent.processors) > 10


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11", AdminCode.OK),
        (None, AdminCode.OK),
        ("local", AdminCode.ERROR),
        ("../site-1", AdminCode.ERROR),
        ("0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11/../local", AdminCode.ERROR),
        ("0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11\n", AdminCode.ERROR),
        ("0B5E3F9C-1C5E-4A8E-9D0E-3B8F6F6C2A11", AdminCode.ERROR),
        ("", AdminCode.ERROR),
        (["local"], AdminCode.ERROR),
        (7, AdminCode.ERROR),
    ],
)
def test_a_job_has_the_name_of_no_other_directory(agent: FedAdminAgent, job: Any, code: str) -> None:
    """NVFlare deletes the directory of a job with its files."""
    recorder = Recorder("delete")
    agent.register_processor(recorder)
    headers = {} if job is None else {"JOB_ID": job}
    assert asked(agent, "delete", **headers) == code
    assert len(recorder.requests) == (code == AdminCode.OK)


def test_a_site_that_is_not_bounded_takes_part_in_no_job(
    agent: FedAdminAgent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent.processors = {"delete": Recorder("delete")}
    with pytest.raises(ConfigError, match="could read files"):
        check_bounded(agent)
    agent.processors = {SysCommandTopic.SHELL: JobRequests(Recorder())}
    with pytest.raises(ConfigError, match="could read files"):
        check_bounded(agent)
    make_workspace(tmp_path, deployed=None)
    cells = FakeCells()
    site = FakeSite(tmp_path, cells, agent)
    assert "this site takes part in no job: NVFlare's server could read files" in caplog.text
    assert send_letter(cells)
    answer = ask(cells.cell(f"site-1.{JOB}"), "site-1", OUTCOME, None, job=JOB, seconds=1.0)
    site.stop()
    assert answer == (True, ["refused", "ConfigError"])
