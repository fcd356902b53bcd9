"""The parts of the adapter of NVFlare, one by one: what a job can say, and what it cannot."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from secagg.errors import StateError
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
from sims.engines.nvflare.startup_kit import install_on_server, install_on_site
from sims.engines.versions import check_nvflare
from tests.engines.nvflare_cells import FakeCells
from tests.engines.nvflare_rig import JOB, FakeContext, FakeSite, make_workspace, send_letter, write_kit

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


# --- jobs ---


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


# --- the version of NVFlare ---

UNRELEASED = [
    "2.9.0dev0",
    "2.9.0.dev1",
    "2.9.0a1",
    "2.9.0b2",
    "2.9.0rc1",
    "2.9.1.rc1",
    "2.9.0.post1.dev2",
    "2.9rc1",
]


def test_the_installed_version_is_supported() -> None:
    assert check_nvflare().startswith("2.9.")
    for other in ("2.9.7", "2.9", "2.9.0.post1", "2.9.0+nv1"):
        assert check_nvflare(other) == other


@pytest.mark.parametrize("other", ["2.8.0", "2.10.0", "2.90.0", "3.0", "2", *UNRELEASED])
def test_another_version_is_refused_in_words(other: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"NVFlare {re.escape(other)} is installed, and only releases 2\.9\.\*"
    ):
        check_nvflare(other)


@pytest.fixture
def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sims.engines.versions.version", lambda _name: "2.10.0")


@pytest.mark.usefixtures("other_version")
def test_with_another_version_no_job_is_made_and_no_kit_changed(tmp_path: Path) -> None:
    write_kit(tmp_path)
    for call in (SecaggRecipe, lambda: install_on_site(tmp_path), lambda: install_on_server(tmp_path)):
        with pytest.raises(ConfigError, match=r"2\.10\.0"):
            call()


@pytest.mark.usefixtures("other_version", "nvflare_process")
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


@pytest.mark.parametrize(
    ("members", "known", "found", "words"),
    [
        ([1, 2], ["site-1", "site-7"], ["site-1", "site-2"], "'site-7' is the site of no member"),
        ([1, 2], ["site-1", "rome"], ["site-1", "site-2"], "'rome' is the site of no member"),
        ([1, 2], ["b-1", "a-1", "a-2"], ["a-1", "a-2"], "'a-1' and 'b-1' are both of member 1"),
        ([4, 5, 10], ["site-04"], ["site-04", "site-05", "site-10"], "not there yet: site-05, site-10"),
        ([1, 2, 3, 4], ["hub-1", "site-2", "site-4"], ["hub-1", "site-2", "site-3", "site-4"], "yet: site-3"),
        ([1, 2, 10], ["a-01", "a-10"], ["a-01", "a-02", "a-10"], "yet: a-02"),
        ([1, 2, 3, 4], ["a-01", "a-2", "a-4"], ["a-01", "a-2", "a-3", "a-4"], "yet: a-3"),
    ],
)
def test_sites_that_do_not_fit_are_named(
    caplog: pytest.LogCaptureFixture, members: list[int], known: list[str], found: list[str], words: str
) -> None:
    assert sites_of(members, known) == found
    assert words in caplog.text
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


# --- the executor, without a parent process and with one ---


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
