"""The parts of the adapter of NVFlare, one by one: what a job can say, and what it cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.signal import Signal
from nvflare.private.defs import CellChannelTopic, JobFailureMsgKey

from secagg.errors import StateError
from sims.config_problems import ConfigError
from sims.engines.nvflare.carrier import CellCarrier, sites_of
from sims.engines.nvflare.cells import LETTER, OUTCOME, ask, serve_requests
from sims.engines.nvflare.controller import ERROR, STATE, TASK, SecaggController
from sims.engines.nvflare.executor import SecaggExecutor
from sims.engines.nvflare.job import SecaggRecipe
from sims.engines.nvflare.local_files import SERVER_VARIABLE, SITE_VARIABLE, server_config, site_config
from sims.engines.nvflare.site import SecaggSite
from sims.engines.nvflare.startup_kit import install_in_simulation, install_on_server, install_on_site
from tests.engines.nvflare_cells import FakeCells

JOB = "0b5e"


# --- files ---


def test_a_site_is_configured_by_its_own_files_only(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    with pytest.raises(ConfigError, match=SITE_VARIABLE):
        site_config("site-1", tmp_path, {})
    (tmp_path / "local" / "secagg.toml").write_text("")
    assert site_config("site-1", tmp_path, {}) == tmp_path / "local" / "secagg.toml"
    (tmp_path / "join-site-1.toml").write_text("")
    named = {SITE_VARIABLE: str(tmp_path / "join-{site}.toml")}
    assert site_config("site-1", tmp_path, named) == tmp_path / "join-site-1.toml"


@pytest.mark.parametrize("name", ["../secagg", "a/b", "", ".secagg", "x.toml", "/etc/passwd", 7, None])
def test_a_job_names_a_scenario_but_no_path(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="no plain name"):
        server_config(name, tmp_path, {})


def test_the_scenario_of_a_server_is_in_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "digits.toml").write_text("")
    assert server_config("digits", tmp_path, {}) == tmp_path / "local" / "digits.toml"
    with pytest.raises(ConfigError, match=SERVER_VARIABLE):
        server_config("other", tmp_path, {})
    assert server_config("other", tmp_path, {SERVER_VARIABLE: str(tmp_path / "local/digits.toml")}).exists()


# --- jobs and startup kits ---


def test_a_job_has_no_code_and_no_settings_of_sites(tmp_path: Path) -> None:
    SecaggRecipe("mine", min_clients=3, scenario="digits").export(str(tmp_path))
    files = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert files == {
        "mine/meta.json",
        "mine/app/config/config_fed_client.json",
        "mine/app/config/config_fed_server.json",
    }
    client = json.loads((tmp_path / "mine/app/config/config_fed_client.json").read_text())
    path = "sims.engines.nvflare.executor.SecaggExecutor"
    assert client["executors"] == [{"tasks": [TASK], "executor": {"path": path, "args": {}}}]
    server = json.loads((tmp_path / "mine/app/config/config_fed_server.json").read_text())
    assert server["workflows"][0]["args"] == {"scenario": "digits"}


@pytest.mark.parametrize("kind", [SecaggExecutor, SecaggSite])
def test_a_job_cannot_hand_arguments_to_a_site(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind(config="loose.toml")


def write_kit(directory: Path) -> None:
    (directory / "local").mkdir(parents=True)
    resources = {"components": [{"id": "resource_manager"}], "class_allow_list": ["nvflare.A"]}
    (directory / "local" / "resources.json.default").write_text(json.dumps(resources))
    permissions = {
        "project_admin": "any",
        "lead": {"submit_job": "any", "byoc": "any"},
        "member": {"view": "any"},
    }
    authorisation = {"format_version": "1.0", "permissions": permissions}
    (directory / "local" / "authorization.json.default").write_text(json.dumps(authorisation))


def test_a_site_gets_the_component_and_forbids_code_of_jobs(tmp_path: Path) -> None:
    write_kit(tmp_path)
    install_on_site(tmp_path)
    once = (tmp_path / "local" / "resources.json").read_text()
    install_on_site(tmp_path)
    assert (tmp_path / "local" / "resources.json").read_text() == once
    resources = json.loads(once)
    assert [each["id"] for each in resources["components"]] == ["resource_manager", "secagg_site"]
    assert resources["class_allow_list"] == ["nvflare.A", "sims.engines.nvflare.executor.SecaggExecutor"]
    assert resources["allow_log_streaming"] is False
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())["permissions"]
    assert rights == {
        "project_admin": {"submit_job": "any", "byoc": "none", "view": "any"},
        "lead": {"submit_job": "any", "byoc": "none"},
        "member": {"view": "any", "byoc": "none"},
    }


def test_a_server_allows_the_controller_only(tmp_path: Path) -> None:
    write_kit(tmp_path)
    install_on_server(tmp_path)
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == ["nvflare.A", "sims.engines.nvflare.controller.SecaggController"]
    assert len(resources["components"]) == 1
    with pytest.raises(ConfigError, match="startup kit"):
        install_on_server(tmp_path / "elsewhere")


def test_the_names_in_startup_kits_are_those_of_the_classes(tmp_path: Path) -> None:
    install_in_simulation(tmp_path)
    install_in_simulation(tmp_path)
    allowed = json.loads((tmp_path / "local" / "resources.json").read_text())["class_allow_list"]
    for kind in (SecaggController, SecaggExecutor):
        assert allowed.count(f"{kind.__module__}.{kind.__qualname__}") == 1


# --- requests between cells ---


def test_a_request_is_answered_or_not() -> None:
    cells = FakeCells()

    def refuse(_job: str, _content: Any) -> None:
        raise StateError("not now")

    serve_requests(
        cells.cell("site-1"), {LETTER: lambda job, content: [job, bytes(content)], OUTCOME: refuse}
    )
    server = cells.cell("server")
    assert ask(server, "site-1", LETTER, b"x", job=JOB, seconds=1.0) == (True, [JOB, b"x"])
    assert ask(server, "site-1", OUTCOME, None, job=JOB, seconds=1.0) == (False, None)
    assert ask(server, "site-2", LETTER, b"x", job=JOB, seconds=1.0) == (False, None)


def test_the_carrier_takes_bytes_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    cells = FakeCells()
    serve_requests(cells.cell("site-1"), {LETTER: lambda _job, content: b"re " + bytes(content)})
    serve_requests(cells.cell("site-2"), {LETTER: lambda _job, _content: {"not": "bytes"}})
    carrier = CellCarrier(cells.cell("server"), JOB, ["site-3", "site-1", "site-2"], str)

    async def exchange_all() -> list[bytes | None]:
        assert list(await carrier.nodes()) == ["site-1", "site-2", "site-3"]
        return [await carrier.exchange(site, b"hello") for site in await carrier.nodes()]

    assert trio.run(exchange_all, clock=autojump_clock) == [b"re hello", None, None]


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.01)


def test_sites_without_a_number_are_taken_as_they_are() -> None:
    assert sites_of([1, 2], ["berlin", "rome"]) == ["berlin", "rome"]
    assert sites_of([4, 10], ["clinic-10"]) == ["clinic-4", "clinic-10"]


# --- the executor, without a parent process and with one ---


class FakeContext:
    """The context of a component in NVFlare: an engine with a cell, and some names."""

    def __init__(self, cells: FakeCells, cell: str, **engine: Any) -> None:
        self.engine = SimpleNamespace(get_cell=lambda: cells.cell(cell), **engine)

    def get_engine(self) -> Any:
        return self.engine

    def get_identity_name(self) -> str:
        return "site-1"

    def get_job_id(self) -> str:
        return JOB

    def get_prop(self, key: str, default: Any = None) -> Any:
        return {FLContextKey.SIMULATE_MODE: False}.get(key, default)

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_more: None


def executed(cells: FakeCells, task: str = TASK) -> Any:
    return SecaggExecutor().execute(task, None, FakeContext(cells, f"site-1.{JOB}"), Signal())


def test_the_executor_says_how_the_run_ended_but_not_why() -> None:
    cells, answers = FakeCells(), iter([None, ["refused", "ConfigError", "/srv/site/secagg.toml: no"]])
    serve_requests(cells.cell("site-1"), {OUTCOME: lambda _job, _content: next(answers)})
    reply = executed(cells)
    assert reply.get_return_code() == ReturnCode.OK
    assert (reply[STATE], reply[ERROR]) == ("refused", "ConfigError")
    assert "srv" not in str(reply)


def test_the_executor_names_a_site_without_secagg() -> None:
    reply = executed(FakeCells())
    assert (reply[STATE], reply[ERROR]) == ("refused", "NotInstalled")


def test_the_executor_knows_one_task() -> None:
    assert executed(FakeCells(), "train").get_return_code() == ReturnCode.TASK_UNKNOWN


def test_the_executor_ends_with_its_job() -> None:
    signal = Signal()
    signal.trigger(True)
    reply = SecaggExecutor().execute(TASK, None, FakeContext(FakeCells(), "x"), signal)
    assert reply[STATE] == "stopped"


# --- the component of a site ---


class FakeSite:
    """A started `SecaggSite`, and the reports of killed processes that it has sent."""

    def __init__(self, workspace: Path, cells: FakeCells) -> None:
        self.reports: list[Any] = []
        context = FakeContext(
            cells,
            "site-1",
            args=SimpleNamespace(workspace=str(workspace)),
            get_client_name=lambda: "site-1",
            client=SimpleNamespace(send_request_before_shutdown=self._report),
        )
        self.component = SecaggSite()
        self.component.handle_event(EventType.SYSTEM_START, context)
        self._context = context

    def _report(self, *, topic: str, request: Any, **_more: Any) -> None:
        assert topic == CellChannelTopic.REPORT_JOB_FAILURE
        self.reports.append(request.payload)

    def stop(self) -> None:
        self.component.handle_event(EventType.SYSTEM_END, self._context)


def make_workspace(directory: Path, *, deployed: float | None) -> None:
    for name in ("startup", "local"):
        (directory / name).mkdir(parents=True)
    if deployed is not None:
        (directory / JOB).mkdir()
        (directory / JOB / "meta.json").write_text("{}")
        os.utime(directory / JOB / "meta.json", (deployed, deployed))


@pytest.mark.parametrize(("deployed", "reports"), [(1e9, 1), (4e9, 0), (None, 0)])
def test_a_restarted_site_reports_the_process_that_was_killed(
    tmp_path: Path, deployed: float | None, reports: int
) -> None:
    """1e9 is long before this process began, and 4e9 long after it."""
    cells = FakeCells()
    make_workspace(tmp_path, deployed=deployed)
    site = FakeSite(tmp_path, cells)
    for _ in range(2):  # the letter is no letter of a tunnel, and is not answered
        assert ask(cells.cell("server"), "site-1", LETTER, b"x", job=JOB, seconds=1.0) == (False, None)
    site.stop()
    assert [each[JobFailureMsgKey.JOB_ID] for each in site.reports] == [JOB] * reports
    assert ask(cells.cell("server"), "site-1", LETTER, b"x", job="later", seconds=1.0) == (False, None)


def test_a_site_without_configuration_says_so_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    cells = FakeCells()
    make_workspace(tmp_path, deployed=None)
    site = FakeSite(tmp_path, cells)
    assert ask(cells.cell(JOB), "site-1", LETTER, b"x", job=JOB, seconds=1.0) == (False, None)
    is_answered, words = ask(cells.cell(JOB), "site-1", OUTCOME, None, job=JOB, seconds=1.0)
    site.stop()
    assert is_answered
    assert words[:2] == ["refused", "ConfigError"]
    assert "secagg.toml does not exist" in words[2]
