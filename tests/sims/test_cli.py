"""The command line: what it does with arguments that name no command, or one that cannot run."""

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from sims.cli import _parser, commands, main
from sims.cli.commands import UserError

ROOT = Path(__file__).resolve().parents[2]


class FakeCommand(ModuleType):
    """A command ``fake`` that needs an extra, and fails as told."""

    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__("sims.cli.fake")
        self.failure = failure
        self.ran = False

    def add(self, subparsers: commands.Subparsers) -> None:
        subparsers.add_parser("fake").set_defaults(run=self.run, extra="sims")

    def run(self, _args: argparse.Namespace) -> int:
        self.ran = True
        if self.failure is not None:
            raise self.failure
        return 0


def register(monkeypatch: pytest.MonkeyPatch, command: FakeCommand) -> None:
    monkeypatch.setitem(sys.modules, command.__name__, command)
    monkeypatch.setattr(commands, "COMMANDS", (*commands.COMMANDS, "fake"))


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


@pytest.mark.parametrize(
    "failure",
    [
        ZeroDivisionError(),
        FileNotFoundError(errno.ENOENT, "no such file", "some file"),
        OSError(errno.ENOSPC, "no space left", "some file"),
        ConnectionResetError(errno.ECONNRESET, "connection reset"),
    ],
)
def test_error_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    register(monkeypatch, FakeCommand(failure))
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))

    with pytest.raises(type(failure)):
        main(["fake"])


def test_unknown_option_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 2

    assert capsys.readouterr().err == (
        "secagg demo: unrecognized arguments: --json (try secagg demo --help)\n"
    )


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its commands and of theirs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_help_of_every_option_tells_its_default() -> None:
    actions = [action for parser in parsers(_parser()) for action in parser._actions]
    valued = [each for each in actions if each.option_strings and each.nargs != 0]
    shown = [each for each in valued if each.help != argparse.SUPPRESS]

    assert {"clients", "trust", "bound", "seed"} <= {each.dest for each in shown}
    for option in shown:
        assert str(option.help).endswith(f" (default {option.default})"), option.option_strings


# --- terminals and pipes ---


def start(*args: str, stdout: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, because its exit is part of what is tested."""
    script = "import sys; from sims.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=ROOT,
        text=True,
        check=False,
    )


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """A pipe whose reader has gone, such as `head` after its last line."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full_disk() -> Iterator[int]:
    try:
        device = os.open("/dev/full", os.O_WRONLY)
    except FileNotFoundError:
        pytest.skip("this system has no /dev/full")
    yield device
    os.close(device)


# The second leaves by SystemExit, the third draws with another library, the fourth does not buffer.
WAYS_TO_WRITE = [
    (("preflight",), ""),
    (("--help",), ""),
    (("demo", "--clients", "10", "--dim", "4"), ""),
    (("version",), "1"),
]


@pytest.mark.parametrize(("command", "unbuffered"), WAYS_TO_WRITE)
def test_closed_pipe_ends_quietly(closed_pipe: int, command: tuple[str, ...], unbuffered: str) -> None:
    ended = start(*command, stdout=closed_pipe, PYTHONUNBUFFERED=unbuffered)

    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(("command", "unbuffered"), WAYS_TO_WRITE)
def test_full_disk_is_one_sentence_and_exit_1(
    full_disk: int, command: tuple[str, ...], unbuffered: str
) -> None:
    ended = start(*command, stdout=full_disk, PYTHONUNBUFFERED=unbuffered)

    expected = f"secagg: cannot write the output: {os.strerror(errno.ENOSPC)}\n"
    assert (ended.returncode, ended.stderr) == (1, expected)


def test_characters_that_the_output_lacks_are_replaced() -> None:
    small = ("--only", "sums", "--clients", "10", "--dim", "4")
    ended = start("demo", *small, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "server's view     ???" in ended.stdout


def test_interrupt_is_quiet_and_exit_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, FakeCommand(KeyboardInterrupt()))
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))

    assert main(["fake"]) == 130

    assert capsys.readouterr() == ("", "")


def test_output_that_was_closed_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    # So Python sets it when the shell closed the descriptor.
    monkeypatch.setattr(sys, "stdout", None)

    assert main(["preflight"]) == 0


# --- help and version ---


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("usage: secagg")
    assert all(name in out for name in commands.COMMANDS)
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
    monkeypatch.setattr("sims.cli.DISTRIBUTIONS", ("secagg", "no-such-distribution"))

    assert main(["version"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert f"secagg {version('secagg')}" in lines
    assert "no-such-distribution not installed" in lines
