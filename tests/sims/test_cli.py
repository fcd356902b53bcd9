"""The command line: what it does with arguments that name no command, or one that cannot run."""

import argparse
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

from sims.cli import main, registry
from sims.cli.errors import UserError


class FakeCommand(ModuleType):
    """A command ``fake`` that needs an extra, and fails as told."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("sims.cli.fake")
        self.failure = failure
        self.ran = False

    def add(self, subparsers: registry.Subparsers) -> None:
        subparsers.add_parser("fake").set_defaults(run=self.run, extra="sims")

    def run(self, _args: argparse.Namespace) -> int:
        self.ran = True
        if self.failure is not None:
            raise self.failure
        return 0


def register(monkeypatch: pytest.MonkeyPatch, command: FakeCommand) -> None:
    monkeypatch.setitem(sys.modules, command.__name__, command)
    monkeypatch.setattr(registry, "COMMANDS", (*registry.COMMANDS, "fake"))


def test_missing_extra_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = FakeCommand()
    register(monkeypatch, command)
    # None in sys.modules makes an import fail as if the module were not installed.
    monkeypatch.setitem(sys.modules, "rich", None)

    assert main(["fake"]) == 2

    out, err = capsys.readouterr()
    assert err == "this command needs the extra 'sims': pip install 'secagg[sims]'\n"
    assert out == ""
    assert not command.ran


def test_command_runs_when_its_extra_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    command = FakeCommand()
    register(monkeypatch, command)
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))

    assert main(["fake"]) == 0

    assert command.ran


def test_user_error_is_one_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, FakeCommand(UserError("the file is empty")))
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))

    assert main(["fake"]) == 2

    assert capsys.readouterr().err == "the file is empty\n"


def test_error_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, FakeCommand(ZeroDivisionError()))
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))

    with pytest.raises(ZeroDivisionError):
        main(["fake"])


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("usage: secagg")
    assert all(name in out for name in registry.COMMANDS)
    assert err == ""


def test_unknown_command_is_one_sentence_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2

    out, err = capsys.readouterr()
    assert "no-such-command" in err
    assert err.count("\n") == 1
    assert out == ""


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])

    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"secagg {version('secagg')}\n"


def test_version_command_tells_what_is_and_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sims.cli.version.DISTRIBUTIONS", ("secagg", "no-such-distribution"))

    assert main(["version"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert f"secagg {version('secagg')}" in lines
    assert "no-such-distribution not installed" in lines
