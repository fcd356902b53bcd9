"""The systemd units of examples/deploy: systemd accepts them, and they run commands that exist, confined."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sims.cli import main
from tests.sims.deploy_site import ROOT

UNITS = sorted((ROOT / "examples" / "deploy").glob("*.service"))
PROGRAM = "/opt/secagg/bin/secagg"
ANALYZE = shutil.which("systemd-analyze")


def read(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#", ";"))
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names of settings have capitals
    unit.read_string(path.read_text(encoding="utf-8"))
    return unit


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_confined_and_not_restarted_in_vain(path: Path) -> None:
    unit = read(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    assert service["Restart"] == "on-failure"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["LimitCORE"] == "0"
    assert service["User"] == "secagg"
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_exists(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, command, config = read(path)["Service"]["ExecStart"].split()
    assert program == PROGRAM
    assert config.endswith(".toml")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "CONFIG" in capsys.readouterr().out


def test_there_is_a_unit_for_each_side() -> None:
    assert [path.name for path in UNITS] == ["secagg-join@.service", "secagg-serve.service"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    """With this Python in place of the program, which need not be installed here."""
    copy = tmp_path / path.name.replace("@", "@client-7")
    copy.write_text(path.read_text(encoding="utf-8").replace(PROGRAM, sys.executable), encoding="utf-8")
    assert ANALYZE is not None
    ended = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, complaints(ended.stderr, copy)) == (0, [])


def complaints(printed: str, path: Path) -> list[str]:
    """Lines about this unit; others may be about units of the machine."""
    return [line for line in printed.splitlines() if path.name in line]
