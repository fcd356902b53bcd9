"""Which jobs a site unpacks: with NVFlare's own code, and as a server that lies would send them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.fl_constant import SiteType
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.admin_defs import Message, MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminCode
from nvflare.private.defs import ERROR_MSG_PREFIX, RequestHeader, TrainingTopic
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.security.security import FLAuthorizer

from sims.engines.nvflare.job_files import wrong_files
from sims.engines.nvflare.server_requests import bound_server
from sims.engines.nvflare.startup_kit import install_on_site
from tests.engines.nvflare_rig import new_agent, write_kit

JOB = "0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11"
CONFIG = {"config/config_fed_client.json": "{}"}
CODE = {**CONFIG, "custom/sitecustomize.py": "print('here')"}

pytestmark = pytest.mark.usefixtures("nvflare_process")


class Site:
    """A site with a startup kit, which processes requests with NVFlare's own code."""

    def __init__(self, kit: Path) -> None:
        write_kit(kit)
        (kit / "startup").mkdir(exist_ok=True)
        install_on_site(kit)
        self.kit = kit
        self.agent = new_agent("site-1", kit)
        for processor in (DeployProcessor(), DeleteRunNumberProcessor()):
            self.agent.register_processor(processor)

    def deploy(self, content: Any, **about: Any) -> tuple[str, str]:
        """Return the code and the text of the reply."""
        submitter = {"submitter_name": "lead", "submitter_org": "site", "submitter_role": "lead"}
        return self.ask(TrainingTopic.DEPLOY, content, {"job_id": JOB, **submitter, **about})

    def ask(self, topic: str, content: Any = "", about: Any = None) -> tuple[str, str]:
        request = Message(topic, content)
        request.set_header(RequestHeader.JOB_ID, JOB)
        request.set_header(RequestHeader.APP_NAME, "app")
        if about is not None:
            request.set_header(RequestHeader.JOB_META, about)
        cell_request = new_cell_message({MessageHeaderKey.ORIGIN: "server"}, request)
        reply = self.agent._dispatch_request(cell_request).payload
        return str(reply.get_header(MsgHeader.RETURN_CODE, AdminCode.OK)), str(reply.body)

    def has_code(self) -> bool:
        return any(each.name == "custom" for each in self.kit.rglob("*"))

    def files(self) -> set[str]:
        return {str(each.relative_to(self.kit)) for each in (self.kit / JOB).rglob("*") if each.is_file()}


@pytest.fixture
def unbounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site of NVFlare that has the rights of a startup kit, and nothing else of ours."""
    site = Site(tmp_path)
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())
    monkeypatch.setattr(AppAuthzService, "app_validator", DefaultAppValidator(SiteType.CLIENT))
    monkeypatch.setattr(AuthorizationService, "the_authorizer", FLAuthorizer("site", rights))
    return site


@pytest.fixture
def site(nvflare_process: None, unbounded: Site) -> Site:
    bound_server()
    processors = unbounded.agent.processors
    unbounded.agent.processors = {}
    for processor in processors.values():
        unbounded.agent.register_processor(processor)
    return unbounded


def zipped(*names: str) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    return content.getvalue()


LIES = [{"submitter_role": "super"}, {"submitter_role": " SUPER "}, {"submitter_role": ["x"]}]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_nvflare_alone_lets_a_server_bring_code(unbounded: Site, lie: Any) -> None:
    """Although no role of the kit may. This is what the next test is about."""
    assert unbounded.deploy(zipped(*CODE)) == (AdminCode.ERROR, f"{ERROR_MSG_PREFIX}: BYOC not permitted")
    assert not unbounded.has_code()
    unbounded.deploy(zipped(*CODE), **lie)
    assert unbounded.has_code()


@pytest.mark.parametrize("lie", [{}, *LIES], ids=str)
def test_no_server_brings_code(site: Site, lie: Any) -> None:
    code, _text = site.deploy(zipped(*CODE), **lie)
    assert code == AdminCode.ERROR
    assert not site.has_code()
    assert site.files() == set()


@pytest.mark.parametrize(
    "lie",
    [
        *LIES,
        {"submitter_role": None},
        {"submitter_role": 7},
        {"submitter_name": ["x"]},
        {"submitter_org": b"x"},
    ],
    ids=str,
)
def test_a_submitter_has_a_name_and_no_role_for_everything(site: Site, lie: Any) -> None:
    code, text = site.deploy(zipped(*CONFIG), **lie)
    assert code == AdminCode.ERROR
    assert "submitter" in text
    assert site.files() == set()


def test_a_job_of_configuration_is_unpacked_once(site: Site) -> None:
    assert site.deploy(zipped(*CONFIG))[0] == AdminCode.OK
    before = site.files()
    assert f"{JOB}/app_site-1/config/config_fed_client.json" in before
    for more in ("config/other.json", "custom/sitecustomize.py"):
        code, text = site.deploy(zipped(*CONFIG, more))
        assert (code, "deployed already" in text) == (AdminCode.ERROR, True)
    assert site.files() == before
    assert site.ask(TrainingTopic.DELETE_RUN)[0] == AdminCode.OK
    assert site.deploy(zipped(*CONFIG))[0] == AdminCode.OK


def test_a_job_that_runs_is_not_unpacked_again_although_its_files_were_deleted(site: Site) -> None:
    site.agent.app_ctx.client_executor.run_processes[JOB] = {}
    assert site.deploy(zipped(*CONFIG))[0] == AdminCode.ERROR
    assert site.files() == set()


@pytest.mark.parametrize(
    "name",
    [
        "custom/x.py",
        "custom/",
        "custom",
        "./custom/x.py",
        "config/../custom/x.py",
        "config//custom/x.py",
        "Custom/x.py",
        "cu\u017ftom/x.py",
        "config/custom/x.py",
        "config\\custom\\x.py",
        "/custom/x.py",
        "custom\0/x.py",
        "custom/\0",
    ],
)
def test_a_directory_of_code_is_found_under_every_name(name: str) -> None:
    assert "no code" in str(wrong_files(zipped("config/a.json", name)))


@pytest.mark.parametrize(
    "name", ["config/custom.json", "customs/x", "config/my custom/x", "config/custom_x/y"]
)
def test_other_names_are_no_code(name: str) -> None:
    assert wrong_files(zipped(name)) is None


@pytest.mark.parametrize(
    "content", [b"", b"PK", "text", None, bytearray(zipped("a")), {"a": 1}, b"x" * 100], ids=type
)
def test_what_is_no_archive_is_refused(content: Any) -> None:
    assert wrong_files(content) is not None


def test_an_archive_that_is_damaged_anywhere_is_refused_or_names_its_files() -> None:
    """Whatever its directory says, code is found or it is refused in words: it never raises."""
    whole = zipped(*CODE)
    for place in range(len(whole)):
        for value in (0, 255, whole[place] ^ 1):
            assert isinstance(wrong_files(whole[:place] + bytes([value]) + whole[place + 1 :]), str | None)
        assert wrong_files(whole[:place]) is not None


def test_a_job_that_would_fill_the_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        archive.writestr("config/a", bytes(1 << 20))
    assert wrong_files(content.getvalue()) is None
    monkeypatch.setattr("sims.engines.nvflare.job_files._MOST_BYTES", (1 << 20) - 1)
    assert "at most" in str(wrong_files(content.getvalue()))
    assert "at most" in str(wrong_files(zipped(*map(str, range(10_001)))))
