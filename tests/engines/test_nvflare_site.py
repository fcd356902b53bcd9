"""The component of a site: what it answers, whom, and how it ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.private.defs import JobFailureMsgKey

from secagg.errors import MalformedMessage, StateError
from sims.config_problems import ConfigError
from sims.engines.nvflare.cells import LETTER, OUTCOME, ask
from sims.engines.nvflare.local_files import SITE_VARIABLE
from sims.engines.nvflare.site_agent import SiteAgent, SiteOutcome, SiteRun
from tests.engines.nvflare_cells import FakeCells
from tests.engines.nvflare_poc import wait_until
from tests.engines.nvflare_rig import JOB, LETTERS, FakeSite, make_workspace, send_letter

pytestmark = pytest.mark.usefixtures("nvflare_process")


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


def test_the_next_job_waits_for_a_step_of_training_and_others_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_trained, close = threading.Event(), SiteRun.close

    def close_after_step(run: SiteRun) -> None:
        assert is_trained.wait(10.0)
        close(run)

    def no_config() -> Path:
        raise ConfigError("none")

    monkeypatch.setattr(SiteRun, "close", close_after_step)
    monkeypatch.setattr("sims.engines.nvflare.site_agent._SHORT", 0.05)
    agent = SiteAgent(no_config)
    assert agent.answer(JOB, LETTERS[0])
    assert agent.outcome(JOB, 5.0) is not None
    for _ in range(2):
        with pytest.raises(StateError, match="still trains"):
            agent.answer("later", LETTERS[0])
    is_trained.set()
    wait_until(lambda: is_answered(agent, "later"), "the next job begins", 10.0)
    agent.close()


def is_answered(agent: SiteAgent, job: str) -> bool:
    try:
        return bool(agent.answer(job, LETTERS[0]))
    except StateError:
        return False


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
