"""Another package in the place of one of ours is named before anything of it is imported."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from secagg import __main__
from sims.cli import main, package_conflicts

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "sims.cli": "import sys; from sims.cli import main; sys.exit(main())",
    "secagg": "import sys; from secagg.__main__ import main; sys.exit(main())",
}


def start(script: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """`secagg version`, with these directories in front of all others."""
    places = os.pathsep.join(map(str, (*path, ROOT)))
    return subprocess.run(
        [sys.executable, "-c", SCRIPTS[script], "version"],
        env={**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def fake(directory: Path, name: str) -> Path:
    package = directory / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    return package


@pytest.mark.parametrize(
    ("script", "name"),
    [("sims.cli", "fl"), ("secagg", "protocols"), ("secagg", "sims")],
)
def test_a_package_on_the_path_is_named_and_not_imported(tmp_path: Path, script: str, name: str) -> None:
    package = fake(tmp_path, name)
    ended = start(script, tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"secagg: {name} is {package}, and not the package of this distribution: take it off PYTHONPATH, or "
        "start from another directory\n"
    )


def test_a_distribution_that_brought_the_package_is_named(tmp_path: Path) -> None:
    package = fake(tmp_path, "fl")
    info = tmp_path / "flip_learning-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flip-learning\nVersion: 1.0\n")
    (info / "RECORD").write_text("fl/__init__.py,,\nflip_learning-1.0.dist-info/METADATA,,\n")
    ended = start("sims.cli", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"secagg: fl is {package} (of flip-learning), and not the package of this distribution: uninstall "
        "flip-learning, or use an environment of its own for secagg\n"
    )


def test_without_conflicts_the_installed_command_is_the_command() -> None:
    ended = start("secagg")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\nsecagg " in ended.stdout


def test_our_packages_are_marked() -> None:
    assert package_conflicts.PACKAGES == ("protocols", "fl", "sims")
    assert [
        name for name in package_conflicts.PACKAGES if import_module(name).__distribution__ != "secagg"
    ] == []


def test_a_package_installed_over_ours_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in the same place, with other content."""
    monkeypatch.setattr(package_conflicts, "MARK", "another mark")
    assert main(["version"]) == 2
    assert f"secagg: fl is {ROOT / 'fl'}, and not the package of this " in capsys.readouterr().err


def test_a_package_that_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(package_conflicts, "PACKAGES", ("package_of_tomorrow",))
    assert main(["version"]) == 2
    assert capsys.readouterr().err == (
        "secagg: the package package_of_tomorrow is missing: install secagg again\n"
    )


def test_looking_imports_nothing_of_what_is_looked_at() -> None:
    look = (
        "import runpy, sys; names = runpy.run_path(sys.argv[1]); assert names['complaint']() is None; "
        "print(sorted({'secagg', *names['PACKAGES']} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", look, package_conflicts.__file__],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "[]\n"


def test_the_installed_command_runs_here_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["secagg", "version"])
    monkeypatch.delitem(sys.modules, "secagg.__main__")  # else runpy warns that it was imported already
    with pytest.raises(SystemExit) as leaving:
        runpy.run_module("secagg", run_name="__main__")
    assert leaving.value.code == 0
    assert "secagg " in capsys.readouterr().out


def test_the_installed_command_stops_before_another_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "_complaint", lambda: "somebody is in the place of fl")
    assert __main__.main() == 2
    assert capsys.readouterr() == ("", "somebody is in the place of fl\n")
