"""``secagg drill``: runs a session over TLS, kills some client processes, and checks every total."""

import argparse
import json
from fractions import Fraction

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_key_agreement, add_trust, add_value, add_whole, proportion

BROKEN_PROMISE = 1


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "drill",
        help="kill clients of a session and check that every sum is exact or aborted",
        description="Starts a process for each client, connects them to a server over TLS, and kills some at "
        "random points of the protocol. Exits with 1 if a sum is wrong or a process remains.",
    )
    add_whole(parser, "--clients", 3, 1024, 30, "size of the cohort")
    add_whole(parser, "--sums", 1, 64, 5, "sums in the session")
    add_whole(parser, "--dim", 1, 1 << 24, 50_000, "elements of the vectors")
    text = "fraction of the clients killed over the whole session"
    add_value(parser, "--kill", proportion, Fraction(1, 5), "X", text)
    add_trust(parser)
    add_key_agreement(parser)
    text = "fraction of the clients that may collude with the server"
    add_value(parser, "--corrupt", proportion, Fraction(1, 10), "X", text)
    add_whole(parser, "--workers", 0, 1024, 0, "processes that host all clients; 0: one per client")
    add_whole(
        parser, "--neighbours", 0, 1024, 0, "least neighbours on a ring; 0: the graph depends on the cohort"
    )
    add_whole(parser, "--seed", 0, 1 << 32, 0, "seed of inputs and kills; keys are always fresh")
    parser.add_argument("--insecure-plain-tcp", action="store_true", help="without TLS, to measure its cost")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from secagg import Trust
    from secagg.errors import LocalError
    from secagg.session_params import SessionParams
    from sims.console_progress import Console
    from sims.drill.config import DrillConfig
    from sims.drill.report import print_report
    from sims.drill.run import run_with_progress
    from sims.workers import WorkerStartError

    console = Console(stderr=args.json)
    with user_errors("drill", LocalError, WorkerStartError):
        setting = DrillConfig(
            clients=args.clients,
            dim=args.dim,
            kill=args.kill,
            params=SessionParams(
                trust=Trust.parse(args.trust),
                corrupt=int(args.corrupt * args.clients),
                sums=args.sums,
                key_agreement=args.key_agreement,
            ),
            seed=args.seed,
            workers=args.workers,
            neighbours=args.neighbours,
            tls=not args.insecure_plain_tcp,
        )
        report = run_with_progress(setting, console)
    if args.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report, console)
    return 0 if report.as_promised else BROKEN_PROMISE
