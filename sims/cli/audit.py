"""``secagg audit``: reports what a run revealed, its privacy cost, and whether its records are intact."""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sims.cli.commands import Subparsers, UserError, user_errors
from sims.cli.options import add_value, delta
from sims.cli.server_key import add_server_key, server_key
from sims.records.run_file_names import LEDGER

if TYPE_CHECKING:
    from sims.audit.audit_result import Audit

WRONG = 1
_NARROW = 40


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="audit what a run revealed, its privacy cost, and whether its records are intact",
        description="Audit the files of RUN alone: whether they are those that "
        "were signed, every released sum and what a server learned from it, its cost in "
        "privacy, what is not private and why, drop-outs, and whether every byte is accounted for.",
        epilog="The exit status is 0 if all records fit together, 1 if one of them was altered, if bytes are "
        "not what the protocol says, or if a canary refutes the noise that was promised, and 2 if RUN is "
        "neither a run directory nor a ledger, or cannot be read.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="the directory of a run, or of a sweep; or ledgers of one deployment: that of the server, those "
        "of clients, or several, which are then compared with each other",
    )
    text = "put several runs beside each other in one table, as is done with a sweep (default no)"
    parser.add_argument("--compare", action="store_true", help=text)
    add_server_key(parser)
    text = "at which epsilon is computed, above 0 and below 1; without, the scenario's"
    add_value(parser, "--delta", delta, None, "NUMBER", text)
    parser.add_argument("--all", action="store_true", help="list each sum (default ranges of rounds)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError
    from sims.audit.audit_run import audit_run
    from sims.records import find_runs
    from sims.report.page import with_page_checked

    if any(not path.is_dir() for path in args.runs):
        return _run_on_ledgers(args)
    if not args.compare and len(args.runs) > 1:
        raise UserError("secagg audit: give one run, or --compare to put several beside each other")
    key = server_key(args, "audit")
    with user_errors("audit", LocalError):
        paths = [run.path for path in args.runs for run in find_runs(path)]  # of a sweep, all its runs
        audits = [with_page_checked(audit_run(path, server_key=key, delta=args.delta)) for path in paths]
    (_compare if args.compare or len(paths) > 1 else _show)(args, audits)
    return 0 if all(audit.sound for audit in audits) else WRONG


def _run_on_ledgers(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError
    from sims.audit.ledger_audit import audit_ledgers
    from sims.cli.audit_text import printable
    from sims.cli.ledger_text import as_json, ledger_lines

    check_ledger_paths(args.runs, "audit")
    with user_errors("audit", LocalError):
        audit = audit_ledgers(args.runs, server_key=server_key(args, "audit"), delta=args.delta)
    if args.json:
        print(json.dumps(as_json(audit), indent=2))
    else:
        for line in ledger_lines(audit, everything=args.all):
            print(_wrapped(printable(line)))
    return 0 if audit.intact else WRONG


def check_ledger_paths(paths: Sequence[Path], command: str) -> None:
    """Raise `UserError` unless all paths are files: directories of runs are audited by themselves."""
    for path in paths:
        if path.is_dir():
            raise UserError(
                f"secagg {command}: {path} is a directory, and others are files: give runs, or ledgers; the "
                f"ledger of a run is {path / LEDGER}"
            )
        if not path.exists():
            raise UserError(
                f"secagg {command}: {path} does not exist: give the directory of a run, or ledgers"
            )


def _show(args: argparse.Namespace, audits: "list[Audit]") -> None:
    from sims.audit.audit_run import as_json
    from sims.cli.audit_text import lines, printable

    (audit,) = audits
    if args.json:
        print(json.dumps(as_json(audit), indent=2))
        return
    for line in lines(audit, everything=args.all):
        print(_wrapped(printable(line)))


def _wrapped(line: str) -> str:
    """Return the line, wrapped to the width of the terminal; unchanged if the output is no terminal."""
    if not sys.stdout.isatty() or not line:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, max(width, _NARROW), subsequent_indent=indent, drop_whitespace=True)


def _compare(args: argparse.Namespace, audits: "list[Audit]") -> None:
    from sims.audit.table_of_runs import as_json, compared
    from sims.cli.audit_text import printable, table

    found = compared(audits)
    print(json.dumps(as_json(found), indent=2) if args.json else "\n".join(map(printable, table(found))))
