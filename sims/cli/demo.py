"""``secagg demo``: one session, told from the server's side."""

import argparse

from sims.cli.errors import UserError
from sims.cli.numbers import whole
from sims.cli.preflight import TRUST_LEVELS
from sims.cli.registry import Subparsers

BROKEN_PROMISE = 1


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("demo", help="show secure sums at work, and what the server saw of them")
    parser.add_argument("--clients", type=whole(10, 1024), default=50, help="size of the cohort")
    parser.add_argument("--dim", type=whole(4, 1 << 24), default=1000, help="elements of the vectors")
    parser.add_argument("--sums", type=whole(2, 62), default=3, help="a mean, then steps of a median")
    parser.add_argument("--trust", choices=TRUST_LEVELS, default="malicious_server")
    parser.add_argument(
        "--seed", type=whole(0, 1 << 32), default=0, help="of simulated data and drop-outs only"
    )
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from secagg import Trust
    from secagg.errors import LocalError
    from sims.demo.story import Setting
    from sims.demo.view import show, watch

    console = Console()
    setting = Setting(args.clients, args.dim, args.sums, Trust(args.trust), args.seed)
    try:
        story = watch(setting, console)
    except LocalError as error:
        raise UserError(f"secagg demo: {error}") from None
    show(story, console)
    return 0 if story.as_promised else BROKEN_PROMISE
