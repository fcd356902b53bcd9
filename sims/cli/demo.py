"""``secagg demo``: shows what a server sees of secure sums, then trains models while some clients attack."""

import argparse
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_trust, add_value, add_whole

BROKEN_PROMISE = 1
SUMS, LEARNING = "sums", "learning"


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="show secure sums at work, and training over them while clients attack it",
        description="Two acts. The first is one session of secure sums in this process, and what its server "
        "saw of it. In the second, worker processes train together over TLS while some of them attack and "
        "others vanish; it ends with a report.",
        epilog="The exit status is 1 if anything came out otherwise than promised.",
    )
    parser.add_argument("--only", choices=(SUMS, LEARNING), help="one of the two acts (default None)")
    add_whole(parser, "--clients", 10, 1024, 50, "size of the cohort in the first act")
    add_whole(parser, "--dim", 4, 1 << 24, 1000, "elements of the vectors there")
    add_whole(parser, "--sums", 2, 62, 3, "sums in the session, a mean and then steps of a median")
    add_trust(parser)
    add_whole(parser, "--seed", 0, 1 << 32, 0, "seed of simulated data and drop-outs of the first act")
    text = "where the second act makes a directory of its own"
    add_value(parser, "--out", Path, Path("results"), "DIR", text)
    text = "two rounds of the second act's first algorithm, among few clients (default no)"
    parser.add_argument("--quick", action="store_true", help=text)
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    status = 0 if args.only == LEARNING else _sums(args)
    return status if status or args.only == SUMS else _learning(args)


def _sums(args: argparse.Namespace) -> int:
    from secagg import Trust
    from secagg.errors import LocalError
    from sims.console_progress import Console
    from sims.demo.demo_session import watch
    from sims.demo.session_result_and_text import DemoSetting, show

    console = Console()
    setting = DemoSetting(args.clients, args.dim, args.sums, Trust.parse(args.trust), args.seed)
    with user_errors("demo", LocalError):
        result = watch(setting, console)
    show(result, console)
    return 0 if result.as_promised else BROKEN_PROMISE


def _learning(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError
    from sims import cli
    from sims.console_progress import Console
    from sims.demo.training_result_and_text import (
        SCENARIO,
        TrainingSetting,
        announce,
        free_directory,
        outcome,
        runs_in,
        show,
    )
    from sims.report import write_report

    console, out = Console(), free_directory(args.out)
    announce(console, out)
    with redirect_stdout(StringIO()):  # hides the table of `simulate`, which is too detailed here
        status = cli.main(["simulate", SCENARIO, "--out", str(out), *(["--quick"] if args.quick else [])])
    if status:
        return status
    with user_errors("demo", LocalError):
        directory = out / (f"{SCENARIO}-quick" if args.quick else SCENARIO)
        runs = runs_in(directory)
        report = write_report(directory)
        show(console, TrainingSetting.of(runs[0]), [outcome(run) for run in runs], report)
    return 0
