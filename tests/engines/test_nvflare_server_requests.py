"""What NVFlare's server may ask of a site's parent process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.private.admin_defs import Message, MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminCode
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from sims.config_problems import ConfigError
from sims.engines.nvflare.cells import OUTCOME, ask
from sims.engines.nvflare.server_requests import JobRequests, bound_server, check_bounded
from tests.engines.nvflare_cells import FakeCells
from tests.engines.nvflare_rig import JOB, FakeSite, make_workspace, new_agent, send_letter

UUID = "0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11"
OTHER = "5d1b8f60-7a1f-4c51-8a55-0c4e0c2b7d22"

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
    return new_agent("site-1")


@pytest.fixture
def _bounded(nvflare_process: None) -> None:
    bound_server()


def asked(agent: FedAdminAgent, topic: str, *, origin: Any = "server", **headers: Any) -> str:
    """Ask an agent as the cell `origin`. Return the code of the reply."""
    request = Message(topic, "cat local/site.key")
    for name, value in headers.items():
        request.set_header(getattr(RequestHeader, name), value)
    reply = agent._dispatch_request(new_cell_message({MessageHeaderKey.ORIGIN: origin}, request)).payload
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
        (UUID, AdminCode.OK),
        (None, AdminCode.OK),
        ("local", AdminCode.ERROR),
        ("../site-1", AdminCode.ERROR),
        (f"{UUID}/../local", AdminCode.ERROR),
        (f"{UUID}\n", AdminCode.ERROR),
        (UUID.upper(), AdminCode.ERROR),
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


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    ("about", "code"),
    [
        (None, AdminCode.OK),
        ({"job_id": UUID, "name": "secagg"}, AdminCode.OK),
        ({"job_id": OTHER}, AdminCode.ERROR),
        ({"job_id": "local"}, AdminCode.ERROR),
        ({"job_id": None}, AdminCode.ERROR),
        ({}, AdminCode.ERROR),
        (UUID, AdminCode.ERROR),
    ],
)
@pytest.mark.parametrize("topic", [TrainingTopic.DEPLOY, TrainingTopic.START_JOB])
def test_a_job_has_one_name(agent: FedAdminAgent, topic: str, about: Any, code: str) -> None:
    """NVFlare's launcher takes the second one for the path of the files that a job has brought."""
    recorder = Recorder(topic)
    agent.register_processor(recorder)
    assert asked(agent, topic, JOB_ID=UUID, JOB_META=about) == code
    assert len(recorder.requests) == (code == AdminCode.OK)


@pytest.mark.usefixtures("_bounded")
def test_a_second_name_alone_is_refused(agent: FedAdminAgent) -> None:
    agent.register_processor(Recorder(TrainingTopic.START_JOB))
    assert asked(agent, TrainingTopic.START_JOB, JOB_META={"job_id": UUID}) == AdminCode.ERROR
    assert asked(agent, TrainingTopic.START_JOB, JOB_META={}) == AdminCode.ERROR


class Slow(Recorder):
    """Notes how many requests it processes at a time, at most."""

    def __init__(self, *topics: str) -> None:
        super().__init__(*topics)
        self.now = self.most = 0

    def process(self, req: Message, app_ctx: Any) -> Message:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.1)
        self.now -= 1
        return super().process(req, app_ctx)


@pytest.mark.usefixtures("_bounded")
def test_no_job_is_started_while_one_is_unpacked(agent: FedAdminAgent) -> None:
    slow = Slow(TrainingTopic.DEPLOY, TrainingTopic.START_JOB)
    agent.register_processor(slow)
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda topic: asked(agent, topic, JOB_ID=UUID), slow.topics * 2))
    assert codes == [AdminCode.OK] * 4
    assert slow.most == 1


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    "origin",
    ["site-2", "site-1", f"site-1.{UUID}", f"server.{UUID}", "server.", "Server", "admin", "", None, 7],
)
@pytest.mark.parametrize(
    "topic", [TrainingTopic.SHUTDOWN, TrainingTopic.ABORT, TrainingTopic.DELETE_RUN, TrainingTopic.DEPLOY]
)
def test_only_the_server_may_ask(agent: FedAdminAgent, topic: str, origin: Any) -> None:
    recorder = Recorder(topic)
    agent.register_processor(recorder)
    assert asked(agent, topic, origin=origin, JOB_ID=UUID) == AdminCode.ERROR
    assert recorder.requests == []
    assert asked(agent, topic, JOB_ID=UUID) == AdminCode.OK
    assert len(recorder.requests) == 1


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (f"site-1.{UUID}", AdminCode.OK),
        ("server", AdminCode.OK),
        (f"site-1.{OTHER}", AdminCode.ERROR),
        (f"site-2.{UUID}", AdminCode.ERROR),
        ("site-2", AdminCode.ERROR),
        ("site-1", AdminCode.ERROR),
    ],
)
def test_a_process_of_the_site_tells_how_far_its_job_is(agent: FedAdminAgent, origin: str, code: str) -> None:
    agent.register_processor(Recorder(TrainingTopic.NOTIFY_JOB_STATUS))
    assert asked(agent, TrainingTopic.NOTIFY_JOB_STATUS, origin=origin, JOB_ID=UUID) == code


@pytest.mark.usefixtures("_bounded")
def test_the_cell_calls_the_bounded_agent() -> None:
    """NVFlare's agent hands its method to the cell when it is made."""
    callbacks: list[Any] = []
    agent = new_agent("site-1")
    agent.cell = SimpleNamespace(register_request_cb=lambda **about: callbacks.append(about["cb"]))
    agent.register_cell_cb()
    request = Message(TrainingTopic.SHUTDOWN, "")
    reply = callbacks[0](new_cell_message({MessageHeaderKey.ORIGIN: "site-2"}, request)).payload
    assert reply.get_header(MsgHeader.RETURN_CODE) == AdminCode.ERROR
    assert "site-2" in reply.body


@pytest.mark.usefixtures("_bounded")
def test_an_agent_that_answers_others_again_is_noticed(
    agent: FedAdminAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bounded(agent)
    other = new_agent()
    other._dispatch_request = lambda _request: None
    with pytest.raises(ConfigError, match="other sites"):
        check_bounded(other)
    monkeypatch.setattr(FedAdminAgent, "_dispatch_request", lambda _agent, _request: None)
    with pytest.raises(ConfigError, match="other sites"):
        check_bounded(agent)


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
