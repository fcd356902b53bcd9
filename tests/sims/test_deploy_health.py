"""The health of a server: bad while something is wrong that an operator has to repair, then good again."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from secagg.errors import LedgerError
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog, Fact
from sims.deploy import disk_room
from sims.deploy.health import Health
from sims.deploy.monitoring import health_reply
from tests.sims.deploy_site import ROOT


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[ServerLedger]:
    with ServerLedger.create(tmp_path / "ledger") as opened:
        yield opened


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: object, **_settings: object) -> None:
        raise error

    return fail


# --- health ------------------------------------------------------------------------------------------


class Patient:
    """A server whose health is examined, and what its log says."""

    def __init__(self, directory: Path, ledger: ServerLedger) -> None:
        self.registry = Registry(1, {1: bytes(32)}, 1000)
        self.now = 0.0
        self.lines: list[tuple[str, Fact]] = []
        (directory / "totals").mkdir()
        self.health = Health(
            registry=lambda: self.registry,
            ledger=ledger,
            ledger_path=directory / "ledger",
            check_output=lambda: disk_room.check_room(directory / "totals"),
            log=EventLog(lambda text, facts: self.lines.append((text, facts["about"]))),
            clock=lambda: self.now,
            fresh=-math.inf,  # each trio.run has a clock of its own
        )

    def check(self) -> tuple[HTTPStatus, list[tuple[str, str]]]:
        reply = health_reply(trio.run(self.health.faults))
        found = json.loads(reply.body)
        return reply.status, [(each["about"], each["error"]) for each in found.get("reasons", [])]


@pytest.fixture
def patient(tmp_path: Path, ledger: ServerLedger) -> Patient:
    return Patient(tmp_path, ledger)


Answer: TypeAlias = tuple[HTTPStatus, list[tuple[str, str]]]
GOOD: Answer = (HTTPStatus.OK, [])


def bad(*reasons: tuple[str, str]) -> Answer:
    return HTTPStatus.SERVICE_UNAVAILABLE, list(reasons)


def test_an_expired_registry_is_bad_until_there_is_a_new_one(patient: Patient) -> None:
    assert patient.check() == GOOD
    patient.now = 1000.0
    assert patient.check() == bad(("registry", "ExpiredRegistry"))
    patient.registry = Registry(2, {1: bytes(32)}, 2000)
    assert patient.check() == GOOD
    assert patient.lines == [("unhealthy", "registry"), ("healthy", "registry")]


def test_a_full_disk_is_bad_until_there_is_room(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, os.strerror(28))
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(full))
        expected = bad(("ledger", "ConfigError"), ("totals", "ConfigError"))
        assert patient.check() == expected
        assert patient.check() == expected
    assert patient.check() == GOOD
    assert sorted(tmp_path.rglob("*")) == before
    subjects = ["ledger", "totals"]
    assert patient.lines == [(text, each) for text in ("unhealthy", "healthy") for each in subjects]


def test_files_beyond_a_limit_of_size_are_bad(tmp_path: Path) -> None:
    """A file system that takes an empty file and no byte more, by the kernel's limit of a process."""
    code = """
import resource, signal, sys
from pathlib import Path
from sims.config_problems import ConfigError
from sims.deploy.disk_room import check_room
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
check_room(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    check_room(Path(sys.argv[1]))
except ConfigError:
    sys.exit(7)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 7


def test_a_ledger_that_was_moved_is_bad_until_it_is_back(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "ledger").rename(tmp_path / "elsewhere")
    assert patient.check() == bad(("ledger", "LedgerError"))
    (tmp_path / "elsewhere").rename(tmp_path / "ledger")
    assert patient.check() == GOOD


def test_totals_that_were_removed_are_bad(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "totals").rmdir()
    assert patient.check() == bad(("totals", "ConfigError"))


def test_the_last_error_of_the_ledger_is_told_once_if_it_is_over(patient: Patient) -> None:
    patient.health.note_ledger_error(LedgerError("it was full"))
    assert patient.check() == bad(("ledger", "LedgerError"))
    assert patient.check() == GOOD


def test_an_answer_names_no_file_and_the_log_does(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "totals").rmdir()
    (fault,) = trio.run(patient.health.faults)
    assert str(tmp_path) in fault.sentence
    assert str(tmp_path).encode() not in health_reply((fault,)).body


def test_many_questions_about_health_cost_one_probe(
    tmp_path: Path, ledger: ServerLedger, autojump_run: Callable[..., None]
) -> None:
    probes: list[None] = []
    health = Health(
        registry=lambda: Registry(1, {1: bytes(32)}),
        ledger=ledger,
        ledger_path=tmp_path / "ledger",
        check_output=lambda: probes.append(None),
        log=EventLog(lambda *_: None),
    )

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(health.faults)
        assert len(probes) == 1
        await trio.sleep(2)
        await health.faults()
        assert len(probes) == 2

    autojump_run(ask)


@pytest.fixture
def autojump_run() -> Callable[..., None]:
    def run(main: Callable[..., Any]) -> None:
        # A thread that runs must not let the clock jump.
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))

    return run
