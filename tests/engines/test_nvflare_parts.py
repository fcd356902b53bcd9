"""The parts of the adapter of NVFlare, one by one: what a job can say, and what it cannot."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.private.defs import CellChannelTopic, JobFailureMsgKey
from nvflare.security.security import FLAuthorizer

from secagg.errors import MalformedMessage, StateError
from secagg.net.tunnel_letters import MAX_DATA, MAX_SEGMENTS, Letter, Segment
from sims.config_problems import ConfigError
from sims.engines.nvflare.carrier import CellCarrier, sites_of
from sims.engines.nvflare.cells import JOB as JOB_HEADER
from sims.engines.nvflare.cells import LETTER, LONGEST_LETTER, OUTCOME, ask, letter_bytes, serve_requests
from sims.engines.nvflare.controller import ERROR, STATE, TASK, SecaggController
from sims.engines.nvflare.executor import SecaggExecutor
from sims.engines.nvflare.job import SecaggRecipe
from sims.engines.nvflare.local_files import SERVER_VARIABLE, SITE_VARIABLE, server_config, site_config
from sims.engines.nvflare.site import SecaggSite
from sims.engines.nvflare.site_agent import SiteAgent, SiteOutcome
from sims.engines.nvflare.startup_kit import install_in_simulation, install_on_server, install_on_site
from sims.engines.nvflare.versions import check_nvflare
from tests.engines.nvflare_cells import FakeCells

JOB = "0b5e"
LETTERS = [Letter(b"instance", number).encode() for number in (1, 2)]


@pytest.fixture(autouse=True)
def short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites answer letters soon, although they have nothing to send."""
    monkeypatch.setattr("sims.engines.nvflare.site_agent.HOLD", 0.05)


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


def write_kit(directory: Path, permissions: Any = None, **changes: Any) -> None:
    (directory / "local").mkdir(parents=True)
    resources = {"components": [{"id": "resource_manager"}], "class_allow_list": ["nvflare.A"], **changes}
    (directory / "local" / "resources.json.default").write_text(json.dumps(resources))
    permissions = permissions or {
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
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())["permissions"]
    no_code = {"byoc": "none", "server-predeployed-flwr": "none"}
    assert rights["lead"] == {"submit_job": "any", **no_code}
    assert rights["member"] == {"view": "any", **no_code}


CODE = ("byoc", "server-predeployed-flwr")
COMMANDS = ("submit_job", "clone_job", "abort_job", "download_job", "list_jobs", "sys_info", "ls", "mine")


def is_allowed(kit: Path, role: str, right: str, org: str = "site") -> bool:
    """Return whether NVFlare lets a user with this role do something at a site."""
    content = json.loads((kit / "local" / "authorization.json").read_text())
    user = Person("user", org, role)
    allowed, _error = FLAuthorizer("site", content).authorize(AuthzContext(right, user, user))
    return bool(allowed)


@pytest.mark.parametrize(
    "permissions",
    [
        {"lead": "any"},
        {"lead": "any", "other": {"mine": "any"}},
        {"lead": ["any"]},
        {"lead": {"*": "any", "byoc": "any"}},
        {"lead": {**dict.fromkeys(COMMANDS, "any"), "byoc": "any", "BYOC": "any"}},
        {"Lead": {**dict.fromkeys(COMMANDS, "any"), "Server-Predeployed-FLWR": "any"}},
    ],
)
def test_a_role_keeps_all_rights_but_those_to_bring_code(tmp_path: Path, permissions: Any) -> None:
    write_kit(tmp_path, permissions)
    install_on_site(tmp_path)
    assert [right for right in CODE if is_allowed(tmp_path, "lead", right)] == []
    denied = {right for right in COMMANDS if not is_allowed(tmp_path, "lead", right)}
    assert denied <= {"mine"}
    assert ("mine" in denied) == ("mine" not in str(permissions))


def test_files_of_a_kit_stay_as_private_as_they_are(tmp_path: Path) -> None:
    write_kit(tmp_path)
    (tmp_path / "local" / "resources.json.default").chmod(0o600)
    install_on_site(tmp_path)
    assert (tmp_path / "local" / "resources.json").stat().st_mode & 0o777 == 0o600


def test_a_role_with_one_condition_for_all_rights_keeps_it(tmp_path: Path) -> None:
    write_kit(tmp_path, {"lead": "o:site", "guest": "none"})
    install_on_site(tmp_path)
    assert is_allowed(tmp_path, "lead", "submit_job")
    assert not is_allowed(tmp_path, "lead", "submit_job", org="elsewhere")
    assert not is_allowed(tmp_path, "guest", "submit_job")


@pytest.mark.parametrize("install", [install_on_site, install_on_server])
@pytest.mark.parametrize("entry", ["*", "nvflare.", "nvflare.app_common", "nvflare", "A", "", "a..B", 7])
def test_a_list_that_allows_more_classes_than_it_names_is_refused(
    tmp_path: Path, install: Any, entry: Any
) -> None:
    write_kit(tmp_path, class_allow_list=["nvflare.A", entry])
    with pytest.raises(ConfigError, match=r"class_allow_list has .* full names of the classes"):
        install(tmp_path)
    assert {each.suffix for each in (tmp_path / "local").iterdir()} == {".default"}


@pytest.mark.parametrize("install", [install_on_site, install_on_server])
def test_a_list_that_only_warns_is_enforced(tmp_path: Path, install: Any) -> None:
    write_kit(tmp_path, class_list_enforcement_mode="warn")
    install(tmp_path)
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("resources.json", "{not json", "line 1"),
        ("resources.json", "[]", "in braces"),
        ("resources.json", "[" * 100_000, "not valid JSON"),
        ("resources.json", '{"components": 7}', "components must be a list"),
        ("resources.json", '{"class_allow_list": {}}', "must be a list of classes"),
        ("authorization.json", "\xff", "not valid JSON"),
        ("authorization.json", "{}", "table of roles"),
        ("authorization.json", '{"permissions": []}', "table of roles"),
        ("authorization.json", '{"permissions": {"lead": 7}}', "the rights of 'lead'"),
    ],
)
def test_a_damaged_kit_is_refused_in_words(tmp_path: Path, name: str, text: str, words: str) -> None:
    write_kit(tmp_path)
    (tmp_path / "local" / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=words) as refused:
        install_on_site(tmp_path)
    assert name in str(refused.value)
    assert len(list((tmp_path / "local").iterdir())) == 3  # nothing is written


def test_the_default_kit_of_nvflare_allows_named_classes_only(tmp_path: Path) -> None:
    write_kit(tmp_path, class_allow_list=list(DEFAULT_CLASS_ALLOW_LIST))
    install_on_site(tmp_path)
    allowed = json.loads((tmp_path / "local" / "resources.json").read_text())["class_allow_list"]
    assert len(allowed) == len(DEFAULT_CLASS_ALLOW_LIST) + 1


# --- the version of NVFlare ---


def test_the_installed_version_is_supported() -> None:
    assert check_nvflare().startswith("2.9.")
    assert check_nvflare("2.9.7") == "2.9.7"


@pytest.mark.parametrize("other", ["2.8.0", "2.10.0", "2.90.0", "3.0", "2"])
def test_another_version_is_refused_in_words(other: str) -> None:
    with pytest.raises(ConfigError, match=rf"NVFlare {re.escape(other)} is installed, and only 2\.9\.\*"):
        check_nvflare(other)


@pytest.fixture
def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sims.engines.nvflare.versions.version", lambda _name: "2.10.0")


@pytest.mark.usefixtures("other_version")
def test_with_another_version_no_job_is_made_and_no_kit_changed(tmp_path: Path) -> None:
    write_kit(tmp_path)
    for call in (SecaggRecipe, lambda: install_on_site(tmp_path), lambda: install_on_server(tmp_path)):
        with pytest.raises(ConfigError, match=r"2\.10\.0"):
            call()


@pytest.mark.usefixtures("other_version")
def test_with_another_version_neither_server_nor_site_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    panics: list[str] = []
    monkeypatch.setattr(SecaggController, "system_panic", lambda _self, why, _context: panics.append(why))
    SecaggController().control_flow(Signal(), FakeContext(FakeCells(), f"server.{JOB}"))
    assert "2.10.0" in panics[0]
    reply = executed(FakeCells())
    assert (reply[STATE], reply[ERROR]) == ("refused", "ConfigError")

    cells = FakeCells()
    make_workspace(tmp_path, deployed=None)
    site = FakeSite(tmp_path, cells)
    assert "this site takes part in no job: NVFlare 2.10.0 is installed" in caplog.text
    assert send_letter(cells)
    answer = ask(cells.cell(f"site-1.{JOB}"), "site-1", OUTCOME, None, job=JOB, seconds=1.0)
    site.stop()
    assert answer == (True, ["refused", "ConfigError"])


def test_a_server_allows_the_controller_only(tmp_path: Path) -> None:
    write_kit(tmp_path)
    install_on_server(tmp_path)
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == ["nvflare.A", "sims.engines.nvflare.controller.SecaggController"]
    assert len(resources["components"]) == 1
    with pytest.raises(ConfigError, match="startup kit"):
        install_on_server(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("install", "start"),
    [(install_on_site, "fed_server.json"), (install_on_server, "fed_client.json")],
    ids=["site", "server"],
)
def test_the_kit_of_another_kind_is_left_as_it_is(tmp_path: Path, install: Any, start: str) -> None:
    write_kit(tmp_path)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / start).write_text("{}")
    with pytest.raises(ConfigError, match="--server"):
        install(tmp_path)
    assert not (tmp_path / "local" / "resources.json").exists()


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

    serve_requests(cells.cell("site-1"), {LETTER: lambda job, content: [job, content], OUTCOME: refuse})
    server, own = cells.cell(f"server.{JOB}"), cells.cell(f"site-1.{JOB}")
    assert ask(server, "site-1", LETTER, b"x", job=JOB, seconds=1.0) == (True, [JOB, b"x"])
    assert ask(own, "site-1", OUTCOME, None, job=JOB, seconds=1.0) == (False, None)
    assert ask(server, "site-2", LETTER, b"x", job=JOB, seconds=1.0) == (False, None)


@pytest.mark.parametrize(
    ("topic", "sender"),
    [
        (LETTER, "server"),
        (LETTER, "server.another-job"),
        (LETTER, f"server.{JOB}.0"),
        (LETTER, "site-2"),
        (LETTER, f"site-2.{JOB}"),
        (LETTER, f"site-1.{JOB}"),
        (OUTCOME, f"server.{JOB}"),
        (OUTCOME, "site-2"),
        (OUTCOME, f"site-2.{JOB}"),
        (OUTCOME, "site-1"),
        (OUTCOME, "site-1.another-job"),
    ],
)
def test_other_cells_get_no_answer(caplog: pytest.LogCaptureFixture, topic: str, sender: str) -> None:
    cells, handled = FakeCells(), []
    serve_requests(cells.cell("site-1"), dict.fromkeys((LETTER, OUTCOME), lambda *all_: handled.append(all_)))
    assert ask(cells.cell(sender), "site-1", topic, b"x", job=JOB, seconds=1.0) == (False, None)
    assert handled == []
    assert f"'{sender}'" in caplog.text


@pytest.mark.parametrize(
    ("sender", "is_answered"), [("server", True), ("site-2", False), (f"server.{JOB}", False)]
)
def test_in_a_simulation_the_server_has_one_cell(sender: str, is_answered: bool) -> None:
    cells = FakeCells()
    serve_requests(cells.cell("site-1"), {LETTER: lambda _job, letter: letter}, simulated=True)
    assert ask(cells.cell(sender), "site-1", LETTER, b"x", job=JOB, seconds=1.0)[0] == is_answered


@pytest.mark.parametrize("content", [10**13, None, "text", [1], bytes(LONGEST_LETTER + 1)], ids=type)
def test_what_cannot_be_a_letter_is_refused_in_one_line(
    caplog: pytest.LogCaptureFixture, content: Any
) -> None:
    cells, handled = FakeCells(), []
    serve_requests(cells.cell("site-1"), {LETTER: lambda *all_: handled.append(all_)})
    server = cells.cell(f"server.{JOB}")
    assert ask(server, "site-1", LETTER, content, job=JOB, seconds=1.0) == (False, None)
    assert handled == []
    assert [each.exc_info for each in caplog.records] == [None]


@pytest.mark.parametrize("job", ["", "a job", "x" * 65, "../0b5e", "a.b", "0b5e\n", 7, None])
def test_a_request_names_its_job(caplog: pytest.LogCaptureFixture, job: Any) -> None:
    cells, handled = FakeCells(), []
    serve_requests(cells.cell("site-1"), {LETTER: lambda *all_: handled.append(all_)})
    server = cells.cell(f"server.{job}")
    assert ask(server, "site-1", LETTER, b"x", job=job, seconds=1.0) == (False, None)
    assert handled == []
    assert len(caplog.text) < 300


def test_the_longest_letter_is_taken() -> None:
    segments = [Segment(key=bytes([each]) * 16) for each in range(MAX_SEGMENTS - 1)]
    letter = Letter(b"instance", 1, (*segments, Segment(key=b"k" * 16, data=bytes(MAX_DATA)))).encode()
    assert letter_bytes(memoryview(letter)) == letter
    assert letter_bytes(letter + b"x") is None


def test_an_unforeseen_error_stays_at_the_site(caplog: pytest.LogCaptureFixture) -> None:
    cells = FakeCells()

    def fail(_job: str, _content: bytes) -> None:
        raise RuntimeError("/srv/site/data")

    serve_requests(cells.cell("site-1"), {LETTER: fail})
    reply = cells.cell(f"server.{JOB}").send_request(
        target="site-1", topic=LETTER, request=new_cell_message({JOB_HEADER: JOB}, b"x")
    )
    assert "srv" not in f"{reply.headers} {reply.payload}"
    assert "/srv/site/data" in caplog.text


def test_the_carrier_takes_bytes_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    cells = FakeCells()
    serve_requests(cells.cell("site-1"), {LETTER: lambda _job, content: b"re " + content})
    serve_requests(cells.cell("site-2"), {LETTER: lambda _job, _content: {"not": "bytes"}})
    carrier = CellCarrier(cells.cell(f"server.{JOB}"), JOB, ["site-3", "site-1", "site-2"], str)

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


def test_the_executor_says_how_the_run_ended_and_where_the_reason_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cells, answers = FakeCells(), iter([None, ["refused", "ConfigError"]])
    serve_requests(cells.cell("site-1"), {OUTCOME: lambda _job, _content: next(answers)})
    reply = executed(cells)
    assert reply.get_return_code() == ReturnCode.OK
    assert (reply[STATE], reply[ERROR]) == ("refused", "ConfigError")
    assert "ConfigError: the log of this site's parent process says why" in caplog.text


@pytest.mark.parametrize(
    "words", ["ended", ["ended"], ["over", ""], ["refused", 7], [], 7, ["ended", "", "x"]]
)
def test_the_executor_ends_if_the_parent_process_does_not_say_how(words: Any) -> None:
    cells = FakeCells()
    serve_requests(cells.cell("site-1"), {OUTCOME: lambda _job, _content: words})
    reply = executed(cells)
    assert (reply[STATE], reply[ERROR]) == ("refused", "WrongAnswer")


@pytest.mark.parametrize(
    ("state", "error", "logged"),
    [
        ("ended", "", "site-1 ended"),
        ("refused", "ConfigError", "site-1 refused ConfigError"),
        ("ended", "all\nserver: lies", "site-1 does not say how it ended"),
        ("x" * 1000, "", "site-1 does not say how it ended"),
        (7, None, "site-1 does not say how it ended"),
    ],
)
def test_the_log_of_the_server_has_plain_words_of_sites(
    monkeypatch: pytest.MonkeyPatch, state: Any, error: Any, logged: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(SecaggController, "log_info", lambda _self, _context, line: lines.append(line))
    task = SimpleNamespace(result={STATE: state, ERROR: error}, client=SimpleNamespace(name="site-1"))
    SecaggController()._log_result(task, FakeContext(FakeCells(), "server"))
    assert lines == [logged]


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
    assert not send_letter(cells, b"x")  # it is no letter, and not one of this job
    assert site.reports == []
    for _ in range(2):
        assert send_letter(cells)
    site.stop()
    assert [each[JobFailureMsgKey.JOB_ID] for each in site.reports] == [JOB] * reports
    assert not send_letter(cells, job="later")


def send_letter(cells: FakeCells, letter: bytes = LETTERS[0], *, job: str = JOB) -> bool:
    """Send a letter to a site as the server's process of a job does. Return whether it was answered."""
    return ask(cells.cell(f"server.{job}"), "site-1", LETTER, letter, job=job, seconds=1.0)[0]


def test_a_site_without_configuration_says_so_to_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    cells = FakeCells()
    make_workspace(tmp_path, deployed=None)
    site = FakeSite(tmp_path, cells)
    assert send_letter(cells)
    own = cells.cell(f"site-1.{JOB}")
    answer = ask(own, "site-1", OUTCOME, None, job=JOB, seconds=1.0)
    site.stop()
    assert answer == (True, ["refused", "ConfigError"])
    assert "secagg.toml does not exist" in caplog.text


class Interrupted(SystemExit):
    """An error that is no `Exception`."""


@pytest.mark.parametrize(
    "error",
    [ValueError("row 7 of /srv/site/data"), Interrupted("row 7 of /srv/site/data"), MemoryError("row 7")],
    ids=type,
)
@pytest.mark.parametrize("in_a_group", [False, True])
def test_an_error_of_the_site_itself_ends_the_run_and_not_the_site(
    caplog: pytest.LogCaptureFixture, error: BaseException, in_a_group: bool
) -> None:
    def config() -> Path:
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [error])]) if in_a_group else error

    agent = SiteAgent(config)
    for job in ("job-1", "job-2"):
        for letter in LETTERS:
            assert agent.answer(job, letter)
        outcome = agent.outcome(job, 5.0)
        assert outcome == SiteOutcome("refused", type(error).__name__, str(error))
    agent.close()
    assert f"this site leaves job job-2: {type(error).__name__}: row 7" in caplog.text
    assert "Traceback" in caplog.text


def test_a_run_that_is_left_is_no_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loads = threading.Event()

    def load(_path: Path, **_more: Any) -> None:
        loads.set()
        time.sleep(0.2)
        raise ValueError("too late")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sims.engines.nvflare.site_agent.load_client_setup", load)
        agent = SiteAgent(lambda: tmp_path)
        agent.answer(JOB, LETTERS[0])
        assert loads.wait(5.0)
        agent.close()
    assert "leaves job" not in caplog.text


def test_what_is_no_letter_neither_begins_nor_prolongs_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over, now = threading.Event(), [0.0]
    monkeypatch.setattr(
        "sims.engines.nvflare.site_agent.load_client_setup", lambda *_all, **_more: is_over.wait(10.0)
    )
    agent = SiteAgent(lambda: tmp_path, clock=lambda: now[0])
    with pytest.raises(MalformedMessage):
        agent.answer("evil", b"no letter")
    assert agent.answer(JOB, LETTERS[0])
    now[0] = 100.0
    with pytest.raises(MalformedMessage):
        agent.answer(JOB, b"no letter")
    with pytest.raises(StateError):
        agent.answer("later", LETTERS[0])
    now[0] = 150.0  # 150 s after the last letter
    assert agent.answer("later", LETTERS[0])
    agent.close()
    is_over.set()


def test_other_cells_cannot_keep_a_site_from_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    cells = FakeCells()
    make_workspace(tmp_path, deployed=None)
    site = FakeSite(tmp_path, cells)
    for job in ("evil", JOB):
        assert not ask(cells.cell("site-2"), "site-1", LETTER, LETTERS[0], job=job, seconds=1.0)[0]
    assert not send_letter(cells, b"no letter", job="evil")
    assert send_letter(cells)
    site.stop()
