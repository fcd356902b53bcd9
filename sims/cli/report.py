"""``secagg report``: writes the report of a run, or of all runs of a sweep, as one page of HTML."""

import argparse
import sys
import webbrowser
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_value
from sims.cli.server_key import add_server_key, server_key


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write a report of a run as one page of HTML",
        description="Write one page of HTML about the run in RUN, or about all runs of the sweep in RUN, "
        "which are then compared: what came of it in plots, what the server learned and what is not private, "
        "the scenario, and how to do it again. It opens from disk and loads nothing from anywhere.",
        epilog="The exit status is 2 if RUN is no directory of a run, or if the page cannot be written.",
    )
    text = "a run directory, such as results/NAME, or one of a sweep's runs; or a ledger"
    parser.add_argument("directory", type=Path, metavar="RUN", help=text)
    text = "where the page is written; without, it is report.html in RUN, or beside a ledger"
    add_value(parser, "--output", Path, None, "FILE", text)
    add_server_key(parser)
    parser.add_argument("--open", action="store_true", help="show it in a browser, too (default no)")
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError
    from sims.report import write_report
    from sims.report.ledger_page import write_ledger_report

    with user_errors("report", LocalError):
        if args.directory.is_file():
            path = write_ledger_report([args.directory], args.output, server_key=server_key(args, "report"))
        else:
            path = write_report(args.directory, args.output, server_key=server_key(args, "report"))
    print(path)
    if args.open and not webbrowser.open(path.resolve().as_uri()):
        print(f"secagg report: there is no browser to show {path} in", file=sys.stderr)
    return 0
