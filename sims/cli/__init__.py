"""The command ``secagg``: parses arguments, runs a command, and turns its errors into exit statuses."""

import argparse
import errno
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NoReturn

from sims.cli import commands, package_conflicts
from sims.cli.commands import UserError, require

__all__ = ["CommandParser", "main", "run_command"]

USER_ERROR = 2
# Libraries that `secagg version` lists.
DISTRIBUTIONS = (
    "secagg", "cryptography", "dp-accounting", "msgpack", "numpy",
    "pydantic", "rich", "scipy", "torch", "trio",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (by default the process's arguments) names. Return the exit status."""
    return run_command(_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse ``argv``, run the command, and print a `UserError` as a message. Return the exit status."""
    return guarded(lambda: _run(parser, argv))


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    try:
        if found := package_conflicts.complaint():
            raise UserError(found)
        return _dispatch(parser, argv)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR


def _dispatch(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help()
        return 0
    if args.extra is not None:
        require(args.extra)
    status: int = args.run(args)
    return status


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="secagg",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Privacy-preserving federated learning: a server only ever learns sums.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"secagg {metadata.version('secagg')}")
    parser.set_defaults(run=None, extra=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", prog=parser.prog)
    commands.add_all(subparsers)
    version = subparsers.add_parser("version", help="show the versions of secagg and its libraries")
    version.set_defaults(run=_print_versions)
    parser.epilog = commands.listing(subparsers)
    subparsers.help = argparse.SUPPRESS  # the listing in the epilog replaces it
    return parser


def _print_versions(_args: argparse.Namespace) -> int:
    """Print the versions of Python and of the libraries in `DISTRIBUTIONS`, for a bug report."""
    print(f"python {platform.python_version()}")
    for name in DISTRIBUTIONS:
        print(f"{name} {_installed(name)}")
    return 0


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


class CommandParser(argparse.ArgumentParser):
    """An argparse parser that raises each error as a `UserError` of one sentence, without the usage text."""

    def parse_known_args(  # type: ignore[override]  # the overloads add nothing that is used here
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as the base class does, but raise `UserError` if an argument is unknown to this command."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (try {self.prog} --help)")


WRITE_FAILED = 1
# The exit status of a process that a signal ended: 128 plus the number of the signal.
INTERRUPTED = 128 + 2
PIPE_CLOSED = 128 + 13

# Errors of writing: disk full, quota exceeded, file too large, terminal closed, output not open.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def guarded(run: Callable[[], int]) -> int:
    """Call `run` and return its exit status; 130 after Ctrl-C, 141 if a pipe is closed, 1 if output fails."""
    _replace_unknown_characters()
    try:
        try:
            return run()
        finally:
            # Flush here, because an error at the interpreter's exit could not be caught.
            print(end="", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except OSError as error:
        # An error of opening a file has a filename; an error of writing to an open file has none.
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard_output()
        print(f"secagg: cannot write the output: {error.strerror}", file=sys.stderr)
        return WRITE_FAILED


def _replace_unknown_characters() -> None:
    """Let standard output print a question mark for characters that it cannot encode, instead of failing."""
    # Streams without `reconfigure` encode nothing. A closed standard output is None.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _discard_output() -> None:
    """Redirect standard output, which failed, to the null device: its flush at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
