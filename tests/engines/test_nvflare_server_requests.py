"""What NVFlare's server may ask of a site's parent process."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.private.admin_defs import Message, MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminCode
from nvflare.private.aux_runner import AuxRunner
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.widgets.fed_event import FED_EVENT_TOPIC, ClientFedEventRunner, FedEventHeader

from sims.config_problems import ConfigError
from sims.engines.nvflare.cells import OUTCOME, ask
from sims.engines.nvflare.server_requests import JobRequests, bound_server, check_bounded
from tests.engines.nvflare_cells import FakeCells
from tests.engines.nvflare_rig import JOB, FakeSite, make_workspace, new_agent, send_letter

UUID = "0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11"
OTHER = "5d1b8f60-7a1f-4c51-8a55-0c4e0c2b7d22"

pytestmark = pytest.mark.usefixtures("nvflare_process")


APP = {"config/config_fed_client.json": "{}"}
ABOUT = {"job_id": UUID, "submitter_name": "lead", "submitter_org": "site", "submitter_role": "lead"}


def zipped(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


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
def agent(tmp_path: Path) -> FedAdminAgent:
    make_workspace(tmp_path / "site-1", deployed=None)
    return new_agent("site-1", tmp_path / "site-1")


@pytest.fixture
def _bounded(nvflare_process: None) -> None:
    bound_server()


def asked(agent: FedAdminAgent, topic: str, *, origin: Any = "server", **headers: Any) -> str:
    """Ask an agent as the cell `origin`. Return the code of the reply."""
    request = Message(topic, "cat local/site.key" if topic == SysCommandTopic.SHELL else zipped(APP))
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
        ({**ABOUT, "name": "secagg"}, AdminCode.OK),
        ({**ABOUT, "job_id": OTHER}, AdminCode.ERROR),
        ({**ABOUT, "job_id": "local"}, AdminCode.ERROR),
        ({**ABOUT, "job_id": None}, AdminCode.ERROR),
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
        codes = list(
            pool.map(lambda topic: asked(agent, topic, JOB_ID=UUID, JOB_META=ABOUT), slow.topics * 2)
        )
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
    assert asked(agent, topic, origin=origin, JOB_ID=UUID, JOB_META=ABOUT) == AdminCode.ERROR
    assert recorder.requests == []
    assert asked(agent, topic, JOB_ID=UUID, JOB_META=ABOUT) == AdminCode.OK
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
def test_the_cell_calls_the_bounded_agent(agent: FedAdminAgent) -> None:
    """NVFlare's agent hands its method to the cell when it is made."""
    called = agent.cell.core_cell.req_reg.find(CellChannel.CLIENT_MAIN, TrainingTopic.SHUTDOWN)
    request = Message(TrainingTopic.SHUTDOWN, "")
    reply = called.cb(new_cell_message({MessageHeaderKey.ORIGIN: "site-2"}, request)).payload
    assert reply.get_header(MsgHeader.RETURN_CODE) == AdminCode.ERROR
    assert "site-2" in reply.body


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    ("channel", "words"),
    [(CellChannel.CLIENT_MAIN, "end this one"), (CellChannel.AUX_COMMUNICATION, "fire events")],
)
@pytest.mark.parametrize("topic", ["*", TrainingTopic.SHUTDOWN, "mine"])
def test_a_cell_that_calls_something_else_is_noticed(
    agent: FedAdminAgent, channel: str, words: str, topic: str
) -> None:
    check_bounded(agent)
    agent.cell.register_request_cb(channel=channel, topic=topic, cb=lambda _request: None)
    with pytest.raises(ConfigError, match=words):
        check_bounded(agent)


def test_a_cell_that_calls_the_agent_as_it_was_is_noticed(agent: FedAdminAgent) -> None:
    """It was registered before the component was made."""
    bound_server()
    with pytest.raises(ConfigError, match="end this one"):
        check_bounded(agent)


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    ("origin", "fired"),
    [("server", 1), (f"server.{UUID}", 0), ("site-2", 0), (f"site-1.{UUID}", 0), ("site-1", 0), (None, 0)],
)
def test_only_the_server_fires_events(agent: FedAdminAgent, origin: Any, fired: int) -> None:
    """NVFlare keeps events in memory until it fires them, one of which ends the component of a site."""
    runner = ClientFedEventRunner()
    runner.poster = threading.current_thread()  # it fires nothing in this test
    agent.app_ctx.aux_runner = AuxRunner(agent.app_ctx)
    agent.app_ctx.aux_runner.register_aux_message_handler(FED_EVENT_TOPIC, runner._receive)
    event = Shareable()
    event.set_header(FedEventHeader.TIMESTAMP, 1.0)
    event.set_header(FedEventHeader.EVENT_TYPE, EventType.SYSTEM_END)
    event.set_peer_props({ReservedKey.IDENTITY_NAME: "server"})
    headers = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.TOPIC: FED_EVENT_TOPIC}
    called = agent.cell.core_cell.req_reg.find(CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC)
    called.cb(new_cell_message(headers, event))
    assert len(runner.in_events) == fired


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
