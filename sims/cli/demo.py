"""``secagg demo``: one session, told from the server's side."""

import argparse

from sims.cli.errors import UserError
from sims.cli.options import Whole, add_trust
from sims.cli.registry import Subparsers

BROKEN_PROMISE = 1


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("demo", help="show secure sums at work, and what the server saw of them")
    Whole("--clients", 10, 1024, 50, "size of the cohort").add(parser)
    Whole("--dim", 4, 1 << 24, 1000, "elements of the vectors").add(parser)
    Whole("--sums", 2, 62, 3, "sums in the session, a mean and then steps of a median").add(parser)
    add_trust(parser)
    Whole("--seed", 0, 1 << 32, 0, "seed of simulated data and drop-outs only").add(parser)
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from secagg import Trust
    from secagg.errors import LocalError
    from sims.console import Console
    from sims.demo.story import Setting
    from sims.demo.view import show, watch

    console = Console()
    setting = Setting(args.clients, args.dim, args.sums, Trust.parse(args.trust), args.seed)
    try:
        story = watch(setting, console)
    except LocalError as error:
        raise UserError(f"secagg demo: {error}") from None
    show(story, console)
    return 0 if story.as_promised else BROKEN_PROMISE
