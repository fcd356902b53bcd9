"""``network``: what is counted and divided. Nothing here depends on how long things take."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from benchmarks import network
from benchmarks.__main__ import main
from benchmarks.network import NetworkReport, measure
from secagg import Trust
from secagg.session_params import SessionParams
from sims.console_progress import OnProgress, quiet
from sims.drill.config import DrillConfig
from sims.drill.report import DrillReport

pytestmark = pytest.mark.slow  # measures real sums

SETTING = DrillConfig(
    clients=5,
    dim=4,
    kill=Fraction(0),
    params=SessionParams(trust=Trust.CURIOUS, corrupt=0, sums=2),
    seed=0,
    workers=2,
)
REPORT = NetworkReport(
    setting=SETTING,
    cores=4,
    runs=3,
    exact=True,
    session_cpu_s=2.0,
    session_wall_s=1.5,
    setup_wall_s=0.5,
    bytes_up=10,
    bytes_down=20,
    server_peak_bytes=10**6,
)


def test_real_sessions_of_both_kinds() -> None:
    report = measure(SETTING, quiet, runs=1)

    assert report.exact
    assert report.session_cpu_s > 0
    assert report.session_wall_s > report.setup_wall_s > 0
    assert report.bytes_up > 2 * 4 * 4


def test_the_share_is_the_cpu_time_of_all_cores() -> None:
    assert REPORT.wall_over_share == 3.0


def test_a_wrong_total_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "run_drill", lambda setting, watch: DrillReport(setting=setting, hung=1))

    assert not measure(SETTING, quiet, runs=1).exact


def test_a_wrong_total_of_one_process_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "run_drill", lambda setting, watch: DrillReport(setting=setting))
    monkeypatch.setattr(network, "plain_sum", lambda setting, members, index: [0] * setting.dim)

    assert not measure(SETTING, quiet, runs=1).exact


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[DrillConfig, int]]:
    found: list[tuple[DrillConfig, int]] = []

    def fake(setting: DrillConfig, progress: OnProgress, *, runs: int) -> NetworkReport:
        found.append((setting, runs))
        return replace(REPORT, setting=setting, runs=runs)

    monkeypatch.setattr(network, "measure", fake)
    return found


def test_the_command_passes_its_options_on(
    asked: list[tuple[DrillConfig, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "30", "--dim", "7", "--neighbours", "6", "--workers", "3", "--runs", "2"]

    assert main(["network", *options, "--json"]) == 0

    ((setting, runs),) = asked
    assert (setting.clients, setting.dim, setting.neighbours, setting.workers, runs) == (30, 7, 6, 3, 2)
    assert setting.trust is Trust.CURIOUS
    found = json.loads(capsys.readouterr().out)
    assert found["wall_over_share"] == 3.0
    assert found["exact"] is True


@pytest.mark.usefixtures("asked")
def test_the_command_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert "50 clients in 2 workers, 1 sum of 1,000,000 elements over TLS" in text
    assert "(CPU time / 4 cores) 3.00" in text


def test_what_cannot_work_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "--trust", "malicious_server"]) == 2
    assert "neighbours cannot be chosen" in capsys.readouterr().err
