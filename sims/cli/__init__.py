"""The command ``secagg``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from sims.cli import grouping, intruders, registry, terminal
from sims.cli.errors import UserError
from sims.cli.extras import require

__all__ = ["CommandParser", "main", "run_command"]

USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (by default the process's arguments) asks for."""
    return run_command(_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse ``argv``, run what it asks for, and turn a `UserError` into a message and an exit status."""
    return terminal.guarded(lambda: _run(parser, argv))


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    try:
        if found := intruders.complaint():
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
    version = f"secagg {metadata.version('secagg')}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(run=None, extra=None)
    commands = parser.add_subparsers(metavar="COMMAND", prog=parser.prog)
    registry.add_all(commands)
    parser.epilog = grouping.listing(commands)
    commands.help = argparse.SUPPRESS  # as the listing says more
    return parser


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, instead of the usage and then a sentence."""

    def parse_known_args(  # type: ignore[override]  # the overloads add nothing that is used here
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As inherited, but a command's parser itself refuses what it does not know.

        Otherwise the refusal would come from the root, and would point to the root's help.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (try {self.prog} --help)")
